"""Who computes a step together. A World is an argument of a step, never a global.

Workers are numbered domain by domain, the leader's first. A domain is lost as a whole: one worker,
or the ranks of one node, which with `shard: node` hold one copy of the model together. Between
domains everything is replicated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headway.errors import PeerLost
from headway.plan.batch import Share, share_of
from headway.plan.devices import require_device
from headway.spec.resolve import Resolved
from headway.train.mates import Mates
from headway.train.peers import Peers, naming_lost_peers

# A dead peer closes its connections and is noticed at once, and the launcher ends the others; this
# bounds the wait for one that is alive but stuck. Compiling a large model takes minutes.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
FORM_TIMEOUT = timedelta(minutes=3)
CONTROL_TIMEOUT = timedelta(hours=1)
"""Between the ranks of a live domain, who have other means to notice a loss: one of them may wait
for a store that is away, or for a long save, while the others wait for it."""


@dataclass(frozen=True)
class Place:
    """Where a worker is. It stays there, whoever comes and goes."""

    device: torch.device
    local_rank: int = 0
    """In its domain."""
    domain_size: int = 1
    """Workers of a domain. Those of the first write checkpoints."""
    shard_mesh: DeviceMesh | None = None
    """The ranks of this domain, when they hold the model together."""
    domain_groups: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = field(
        default=None, repr=False
    )
    """Of the same ranks, for data and for control, as long as their processes live."""


@dataclass(frozen=True)
class World:
    rank: int
    num_workers: int
    generation: int
    place: Place
    replicas: Peers | None = field(default=None, repr=False)
    """Workers that hold the same part of the model: gradients are added up over them."""
    domain: Mates | None = field(default=None, repr=False)
    """The ranks that hold the model together with this one."""

    @property
    def device(self) -> torch.device:
        return self.place.device

    @property
    def is_first(self) -> bool:
        """The one that writes metrics and the manifests of checkpoints."""
        return self.rank == 0

    @property
    def leads(self) -> bool:
        """One of those that write checkpoints."""
        return self.rank < self.place.domain_size

    @property
    def shard_size(self) -> int:
        return 1 if self.place.shard_mesh is None else self.place.domain_size

    def share(self, num_slices: int) -> Share:
        """This worker's part of a step or of an evaluation."""
        return share_of(num_slices, self.num_workers, self.shard_size, self.rank)

    def most_passes(self, num_slices: int) -> int:
        """Passes of the worker that has the most: the first."""
        return share_of(num_slices, self.num_workers, self.shard_size, 0).passes

    def require_whole(self) -> None:
        """Raises PeerLost if a worker is known to be lost: what is left of the step is in vain. Not
        inside a domain, whose ranks compute their slices together."""
        if self.domain is None and self.replicas is not None and self.replicas.is_over:
            raise PeerLost("the generation is over")

    def add_up(self, *tensors: torch.Tensor) -> None:
        """COLLECTIVE. Each tensor becomes its sum over all workers. If a rank loses a peer, this
        raises on all ranks of its domain."""
        lost = None
        if self.replicas is not None:
            try:
                for tensor in tensors:
                    self.replicas.add_up(tensor)
            except PeerLost as error:
                lost = error
        self.agree(lost)
        if self.domain is not None:
            for tensor in tensors:
                self.domain.add_up(tensor)

    def agree(self, lost: PeerLost | None) -> None:
        """COLLECTIVE in the domain. Raises PeerLost if any rank of it has lost a peer: with a copy
        of the model in several hands, all continue or none."""
        self._control_in_domain([], lost)

    def control(self, values: list[int], lost: PeerLost | None = None) -> list[int]:
        """COLLECTIVE. The control all-reduce: sums of the values over all workers, on the host, so
        that no device is waited for. `lost`: a collective before it has failed here. Then nobody
        gets a result: a step is committed only if every worker's sums are complete.

        Over replicas first, which a worker with incomplete sums does not join; then inside the
        domain, on a group that a new generation does not shut: all its ranks get the result or
        none."""
        if self.replicas is not None and lost is None:
            vector = torch.tensor(values, dtype=torch.int64)
            try:
                self.replicas.add_up(vector)
                values = vector.tolist()
            except PeerLost as error:
                lost = error
        return self._control_in_domain(values, lost)

    def _control_in_domain(self, values: list[int], lost: PeerLost | None) -> list[int]:
        if self.domain is not None:
            gathered = self.domain.gather([*values, int(lost is not None)])
            *values, num_lost = (sum(column) for column in zip(*gathered, strict=True))
            if num_lost and lost is None:
                lost = PeerLost("another rank of this domain lost a peer")
        if lost is not None:
            raise lost
        return values

    def any(self, flag: bool) -> bool:
        """COLLECTIVE. Whether any worker raises the flag."""
        return self.control([int(flag)]) != [0]

    def wait_for_all(self) -> None:
        """COLLECTIVE. Returns when every worker has come here."""
        self.any(False)


def form_world(
    rank: int,
    nodes: int,
    ranks_per_node: int,
    device: torch.device,
    sharded: bool,
    store: Path,
    generation: int,
) -> World:
    """COLLECTIVE. One that stays as it is: when a worker is lost, so is the world. Meets the other
    workers at the file `store`, a new one for every start."""
    num_workers = nodes * ranks_per_node
    local_rank = rank % ranks_per_node
    if num_workers == 1:
        return World(rank, 1, generation, Place(device))
    with naming_lost_peers():
        meeting = FileStore(str(store), num_workers)
        meeting.set_timeout(FORM_TIMEOUT)
        dist.init_process_group(
            backends_of(device),
            store=meeting,
            rank=rank,
            world_size=num_workers,
            timeout=COLLECTIVE_TIMEOUT,
        )
        if not sharded:
            place = Place(device, local_rank, ranks_per_node)
            assert dist.group.WORLD is not None
            return World(rank, num_workers, generation, place, Peers(dist.group.WORLD))
        mesh = init_device_mesh(
            device.type, (nodes, ranks_per_node), mesh_dim_names=("replica", "shard")
        )
    group = mesh.get_group("shard")
    return World(
        rank,
        num_workers,
        generation,
        Place(device, local_rank, ranks_per_node, mesh["shard"]),
        Peers(mesh.get_group("replica")) if nodes > 1 else None,
        Mates(Peers(group), Peers(group), generation),
    )


def live_place(local_rank: int, ranks: int, device: torch.device, store: Path | None) -> Place:
    """COLLECTIVE in the domain, if it has several `ranks`: they hold the model together, and meet
    at the file `store`. Their group lasts as long as their processes; whom else they compute with
    changes."""
    if store is None:
        return Place(device)
    with naming_lost_peers():
        meeting = FileStore(str(store), ranks)
        meeting.set_timeout(FORM_TIMEOUT)
        dist.init_process_group(
            backends_of(device),
            store=meeting,
            rank=local_rank,
            world_size=ranks,
            timeout=COLLECTIVE_TIMEOUT,
        )
        mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("shard",))
        control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        assert isinstance(control, dist.ProcessGroup)
    return Place(device, local_rank, ranks, mesh, (mesh.get_group("shard"), control))


def device_of(resolved: Resolved, number: int) -> torch.device:
    """The device of that number on this machine, which from now on is the current one. Raises
    BadInput if the machine has not what the run asks for."""
    if resolved.device != "cuda":
        return torch.device("cpu")
    present = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    require_device(resolved.run.resources.accelerators, number, present)
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


def backends_of(device: torch.device) -> str:
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
