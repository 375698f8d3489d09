"""The workers that compute a step together. A World is an argument of a step, never a global.

Workers are numbered domain by domain, starting with the leader's. A failure domain is lost as a
whole: one worker, or the ranks of one node, which with `shard: node` hold one copy of the model
together. Between domains everything is replicated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headway.errors import Exit, PeerLost
from headway.plan.batch_division import MicroBatchShare, share_of
from headway.train.collectives import GroupMonitor, WaitTimer, WorkerGroup, forming_group
from headway.train.device import (
    HostRead,
    backends_of,
    connected_device,
    copied_to,
    is_accelerator,
)
from headway.train.domain_group import DomainGroup
from headway.train.file_limit import raise_file_limit
from headway.train.stop_request import StopRequest
from headway.train.watchdog import MAX_HANGS, abort

# gloo's, in all members of a group or in none: an address has the same size in every group, instead
# of a number for each member, and a TCPStore is asked for 128 addresses at once.
os.environ["GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER"] = os.environ["GLOO_ENABLE_STORE_V2_API"] = "1"

# A dead peer closes its connections and is noticed at once, and the launcher stops the others; this
# bounds the wait for one that is alive but stuck. Compiling a large model takes minutes.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
FORM_TIMEOUT = timedelta(minutes=3)
CONTROL_TIMEOUT = timedelta(hours=1)
"""Between the ranks of a live domain, which notice a loss by other means: one of them may wait for
an unreachable store, or for a long save, while the others wait for it."""


@dataclass(frozen=True)
class RankPlacement:
    """Device and position of a worker in its domain. They stay when other workers come and go."""

    device: torch.device
    local_rank: int = 0
    """Rank in the domain."""
    domain_size: int = 1
    """Workers of a domain."""
    shard_mesh: DeviceMesh | None = None
    """The ranks of this domain, if the model is sharded over them."""
    domain_groups: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = field(
        default=None, repr=False
    )
    """Process groups of the same ranks, for data and for control. They last as long as the
    processes."""


@dataclass(frozen=True)
class World:
    rank: int
    num_workers: int
    generation: int
    placement: RankPlacement
    replicas: WorkerGroup | None = field(default=None, repr=False)
    """Workers that hold the same part of the model: gradients are all-reduced over them."""
    domain: DomainGroup | None = field(default=None, repr=False)
    """The ranks that the model is sharded over, this one included."""
    everyone: WorkerGroup | None = field(default=None, repr=False)
    """All workers, if they are several and the world never changes."""
    ends_as_a_whole: bool = False
    """Whether the loss of any worker ends this world for all of them."""

    @property
    def device(self) -> torch.device:
        return self.placement.device

    @property
    def is_leader(self) -> bool:
        """Whether it is the leader, which writes metrics and the manifests of checkpoints."""
        return self.rank == 0

    @property
    def num_writers(self) -> int:
        """Workers that write a checkpoint together, the first ones by rank. Only the leader's
        domain if the others may be lost while training continues: that must not end a save."""
        return self.num_workers if self.ends_as_a_whole else self.placement.domain_size

    @property
    def writes_checkpoints(self) -> bool:
        return self.rank < self.num_writers

    @property
    def shard_size(self) -> int:
        return 1 if self.placement.shard_mesh is None else self.placement.domain_size

    @property
    def agrees_on_device(self) -> bool:
        """Whether agreements are made on the device, between all workers. On accelerators the first
        loss ends the world, so nobody has to tell the others of one."""
        return is_accelerator(self.device)

    def share(self, num_micro_batches: int) -> MicroBatchShare:
        """This worker's share of a step or of an evaluation."""
        return share_of(num_micro_batches, self.num_workers, self.shard_size, self.rank)

    def max_passes(self, num_micro_batches: int) -> int:
        """Passes of the worker that has the most: the first one."""
        return share_of(num_micro_batches, self.num_workers, self.shard_size, 0).num_passes

    def require_all_alive(self) -> None:
        """Raises PeerLost if a worker is known to be lost: the rest of the step would be wasted.
        Not inside a domain, whose ranks compute their micro-batches together."""
        if self.domain is None and self.replicas is not None and self.replicas.is_over:
            raise PeerLost("the generation is over")

    def sums(self, vector: torch.Tensor) -> list[float]:
        """COLLECTIVE, SYNC. Sums of a small vector over all workers. If one rank loses a peer, all
        ranks of its domain raise PeerLost."""
        if self.agrees_on_device:
            return self.start_sums(vector)()
        lost = None
        if self.replicas is not None:
            try:
                self.replicas.all_reduce(vector)
            except PeerLost as error:
                lost = error
        self.raise_if_any_lost(lost)
        if self.domain is not None:
            self.domain.all_reduce(vector)
        found: list[float] = vector.tolist()
        return found

    def raise_if_any_lost(self, lost: PeerLost | None) -> None:
        """COLLECTIVE in the domain. Raises PeerLost if any of its ranks has lost a peer: they hold
        one copy of the model together, so all continue or none."""
        if self.agrees_on_device:
            if lost is not None:
                raise lost
            return
        self._control_in_domain([], lost)

    def start_sums(self, vector: torch.Tensor) -> Callable[[], list[float]]:
        """COLLECTIVE. On accelerators: starts to sum a small vector on the device over all workers,
        to the same bits on all of them. Returns a function that waits for the sums: SYNC."""
        return (
            HostRead(vector).values if self.everyone is None else self.everyone.start_sums(vector)
        )

    def control_all_reduce(self, values: list[int], lost: PeerLost | None = None) -> list[int]:
        """COLLECTIVE. Sums of the values over all workers. `lost`: an earlier collective failed
        here. Then no worker gets a result: a step is committed only if the sums of every worker are
        complete.

        Over replicas first, which a worker with incomplete sums does not join; then inside the
        domain, on a group that a new generation does not shut: all its ranks get the result or
        none."""
        if self.agrees_on_device:
            self.raise_if_any_lost(lost)
            return values if self.everyone is None else self._start_control(values)()
        if self.replicas is not None and lost is None:
            vector = torch.tensor(values, dtype=torch.int64)
            try:
                self.replicas.all_reduce(vector)
                values = vector.tolist()
            except PeerLost as error:
                lost = error
        return self._control_in_domain(values, lost)

    def _start_control(self, values: list[int]) -> Callable[[], list[int]]:
        vector = copied_to(self.device, np.array(values, dtype=np.float64))  # integers are exact
        sums = self.start_sums(vector)
        return lambda: [int(one) for one in sums()]

    def _control_in_domain(self, values: list[int], lost: PeerLost | None) -> list[int]:
        if self.domain is not None:
            gathered = self.domain.all_gather([*values, int(lost is not None)])
            *values, num_lost = (sum(column) for column in zip(*gathered, strict=True))
            if num_lost and lost is None:
                lost = PeerLost("another rank of this domain lost a peer")
        if lost is not None:
            raise lost
        return values

    def any(self, flag: bool) -> bool:
        """COLLECTIVE. Whether the flag is set on any worker."""
        return self.control_all_reduce([int(flag)]) != [0]

    def start_any(self, flag: bool) -> Callable[[], bool]:
        """COLLECTIVE. Starts to find out whether the flag is set on any worker. Whoever asks in
        every pass reads the answer a pass later, so that an accelerator always has work."""
        if self.everyone is None or not self.agrees_on_device:
            found = self.any(flag)
            return lambda: found
        control = self._start_control([int(flag)])
        return lambda: control() != [0]

    def barrier(self) -> None:
        """COLLECTIVE. Returns once every worker has called it."""
        self.any(False)


class WorldSource(Protocol):
    """Gives a worker its worlds, one after the other."""

    def next(self, is_wanted: Callable[[], bool]) -> World | None:
        """COLLECTIVE. Waits for a place in the run and for all other workers. None: `is_wanted` is
        false, and there is no place."""
        ...

    @property
    def has_state(self) -> bool:
        """Whether this worker entered the newest world with the run's state."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether there are too few workers to continue: save, and wait."""
        ...

    @property
    def num_newer_generations(self) -> int:
        """Generations made since the newest world, as far as this worker knows."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Whether this worker's machine is wanted back."""
        ...

    @property
    def saves_before_change(self) -> bool:
        """Whether this process exits when the members change: the state has to be saved first."""
        ...

    @property
    def restarts_because(self) -> str | None:
        """Why workers that were to survive a loss restart; None: they survive it, or never do."""
        ...

    @property
    def reason(self) -> str:
        """Why the newest world was made."""
        ...

    @property
    def worker_names(self) -> list[str]:
        """Names of the workers of the newest world, by rank."""
        ...

    def report_hang(self, times: int) -> None:
        """No step was committed for long, `times` times in a row. From any thread."""
        ...

    def report_state(self) -> None:
        """This worker has the run's state now."""
        ...

    def report_step_seconds(self, seconds: float) -> None:
        """How long a step takes: other workers may have to wait for the end of one."""
        ...

    def wait_for_change(self, is_wanted: Callable[[], bool]) -> None:
        """Until there is a newer generation, or this worker has to leave."""
        ...

    def end_world(self, lost: PeerLost) -> None:
        """The newest world has lost a peer. Raises it where there is never another world."""
        ...

    def finish(self, world: World) -> None:
        """COLLECTIVE. All is saved, and nobody needs the others any more."""
        ...

    @property
    def exit_code(self) -> Exit | None:
        """Exit code of this process, if it is not to be that of the run."""
        ...

    def close(self, reason: str) -> None:
        """The process ends, and reports why."""
        ...


class OneWorld:
    """The only world of a run that restarts as a whole when a worker is lost."""

    has_state = is_paused = is_leaving = saves_before_change = False
    exit_code: Exit | None = None
    restarts_because: str | None = None
    num_newer_generations = 0
    reason = "started"

    def __init__(self, world: World, timer: WaitTimer | None = None) -> None:
        """`timer`: the monitor of its groups."""
        self._world = world
        self.timer = timer or WaitTimer()

    @property
    def worker_names(self) -> list[str]:
        return [f"worker {rank}" for rank in range(self._world.num_workers)]

    def report_hang(self, times: int) -> None:
        if times >= MAX_HANGS:
            abort()  # counts as a lost worker: all restart

    def next(self, is_wanted: Callable[[], bool]) -> World | None:
        return self._world

    def report_state(self) -> None:
        pass

    def report_step_seconds(self, seconds: float) -> None:
        pass

    def wait_for_change(self, is_wanted: Callable[[], bool]) -> None:
        raise AssertionError("there is never another world")

    def end_world(self, lost: PeerLost) -> None:
        raise lost

    def finish(self, world: World) -> None:
        pass

    def close(self, reason: str) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class WorldOfLauncher(OneWorld):
    """The only world of a worker that another launcher starts again unless it exits with 0."""

    def __init__(self, world: World, timer: WaitTimer, stop: StopRequest) -> None:
        super().__init__(world, timer)
        self._stop = stop

    def finish(self, world: World) -> None:
        if world.any(self._stop.is_for_good):
            self.exit_code = Exit.DONE


@dataclass(frozen=True)
class WorldShape:
    """Nodes of a world that does not change, and the ranks of each."""

    nodes: int
    ranks_per_node: int
    copy_nodes: int | None
    """Nodes that a copy of the model is sharded over, 0: all; None: it is not sharded."""

    @property
    def num_workers(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def copy_size(self) -> int:
        """Workers that hold one copy of the model together."""
        assert self.copy_nodes is not None
        return (self.copy_nodes or self.nodes) * self.ranks_per_node

    @property
    def mesh(self) -> dict[str, int]:
        """Dimensions of the device mesh and their sizes. A dimension that has all workers has
        their group, and makes none of its own."""
        if self.copy_nodes is None:
            return {}
        num_copies = self.num_workers // self.copy_size
        copies = {"replica": num_copies} if num_copies > 1 else {}
        return {**copies, "shard": self.copy_size}

    @property
    def group_sizes(self) -> list[int]:
        """Sizes of the process groups that each worker forms, in order."""
        dimensions = self.mesh.values()
        return [self.num_workers, *(size for size in dimensions if size < self.num_workers)]


def form_world(
    *,
    rank: int,
    shape: WorldShape,
    device: torch.device,
    store: Path | Store,
    generation: int,
    monitor: GroupMonitor | None = None,
) -> World:
    """COLLECTIVE. A world that does not change: when a worker is lost, so is the world. The workers
    rendezvous at `store`, or at the file of that name: a new one for every start."""
    num_workers = shape.num_workers
    if num_workers == 1:
        return World(rank, 1, generation, RankPlacement(device))
    raise_file_limit(num_workers, sum(shape.group_sizes))
    with forming_group():
        rendezvous = store if isinstance(store, Store) else FileStore(str(store), num_workers)
        rendezvous.set_timeout(FORM_TIMEOUT)
        dist.init_process_group(
            backends_of(device),
            store=rendezvous,
            rank=rank,
            world_size=num_workers,
            timeout=COLLECTIVE_TIMEOUT,
            device_id=connected_device(device),
        )
        assert dist.group.WORLD is not None
        everyone = WorkerGroup(dist.group.WORLD, monitor)
        if not shape.mesh:
            ranks = shape.ranks_per_node
            placement = RankPlacement(device, rank % ranks, ranks)
            return World(rank, num_workers, generation, placement, everyone, None, everyone, True)
        mesh = init_device_mesh(
            device.type, tuple(shape.mesh.values()), mesh_dim_names=tuple(shape.mesh)
        )
    group = mesh.get_group("shard")
    replicas = None
    if "replica" in shape.mesh:
        replicas = WorkerGroup(mesh.get_group("replica"), monitor)
    return World(
        rank,
        num_workers,
        generation,
        RankPlacement(device, rank % shape.copy_size, shape.copy_size, mesh["shard"]),
        replicas,
        DomainGroup(WorkerGroup(group, monitor), WorkerGroup(group, monitor), generation),
        everyone,
        ends_as_a_whole=True,
    )


def live_placement(
    *, local_rank: int, domain_size: int, device: torch.device, store: Path | Store | None
) -> RankPlacement:
    """COLLECTIVE in the domain, if it has several ranks: the model is sharded over them, and they
    rendezvous at the file `store`. Their group lasts as long as their processes; the other domains
    of the run change."""
    if store is None:
        return RankPlacement(device)
    with forming_group():
        rendezvous = store if isinstance(store, Store) else FileStore(str(store), domain_size)
        rendezvous.set_timeout(FORM_TIMEOUT)
        dist.init_process_group(
            backends_of(device),
            store=rendezvous,
            rank=local_rank,
            world_size=domain_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        mesh = init_device_mesh(device.type, (domain_size,), mesh_dim_names=("shard",))
        control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        assert isinstance(control, dist.ProcessGroup)
        # NCCL connects the ranks at their first collective, and only then finds what is missing.
        mesh.get_group("shard").allreduce([torch.zeros(1, device=device)]).wait()
    return RankPlacement(
        device, local_rank, domain_size, mesh, domain_groups=(mesh.get_group("shard"), control)
    )
