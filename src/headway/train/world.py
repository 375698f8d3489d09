"""Who computes a step together. A World is an argument of a step, never a global.

Workers are numbered node by node. Ranks of one node form a domain: they fail together, and with
`shard: node` they hold one copy of the model together. Between domains everything is replicated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headway.errors import PeerLost
from headway.plan.batch import Share, share_of

# A dead peer closes its connections and is noticed at once, and the launcher ends the others; this
# bounds the wait for one that is alive but stuck. Compiling a large model takes minutes.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
FORM_TIMEOUT = timedelta(minutes=3)


@dataclass(frozen=True)
class World:
    rank: int
    num_workers: int
    local_rank: int
    ranks_per_node: int
    device: torch.device
    generation: int
    shard_mesh: DeviceMesh | None = None
    """The ranks of this node, when they hold the model together."""
    replica_group: dist.ProcessGroup | None = field(default=None, repr=False)
    """Workers that hold the same part of the model: gradients are added up over them."""

    @property
    def is_first(self) -> bool:
        """The one that writes metrics and checkpoints."""
        return self.rank == 0

    @property
    def shard_size(self) -> int:
        return 1 if self.shard_mesh is None else self.ranks_per_node

    def share(self, num_slices: int) -> Share:
        """This worker's part of a step or of an evaluation."""
        return share_of(num_slices, self.num_workers, self.shard_size, self.rank)

    def most_passes(self, num_slices: int) -> int:
        """Passes of the worker that has the most: the first."""
        return share_of(num_slices, self.num_workers, self.shard_size, 0).passes

    def add_up(self, *tensors: torch.Tensor) -> None:
        """COLLECTIVE. Each tensor becomes its sum over all workers."""
        if self.num_workers > 1:
            with naming_lost_peers():
                for tensor in tensors:
                    dist.all_reduce(tensor)

    def add_up_replicas(self, tensor: torch.Tensor) -> None:
        """COLLECTIVE. The tensor becomes its sum over the workers that hold the same part."""
        with naming_lost_peers():
            dist.all_reduce(tensor, group=self.replica_group)

    def any(self, flag: bool) -> bool:
        """COLLECTIVE. Whether any worker raises the flag."""
        raised = torch.tensor([int(flag)], dtype=torch.int64, device=self.device)
        self.add_up(raised)
        return bool(raised.item())  # SYNC

    def wait_for_all(self) -> None:
        """COLLECTIVE. Returns when every worker has come here."""
        self.any(False)


def form_world(
    rank: int,
    nodes: int,
    ranks_per_node: int,
    device_type: str,
    sharded: bool,
    store: Path,
    generation: int,
) -> World:
    """COLLECTIVE. Meets the other workers at the file `store`, a new one for every start."""
    num_workers = nodes * ranks_per_node
    local_rank = rank % ranks_per_node
    device = torch.device("cpu")
    if device_type == "cuda":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if num_workers == 1:
        return World(rank, 1, local_rank, ranks_per_node, device, generation)
    with naming_lost_peers():
        meeting = FileStore(str(store), num_workers)
        meeting.set_timeout(FORM_TIMEOUT)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo",
            store=meeting,
            rank=rank,
            world_size=num_workers,
            timeout=COLLECTIVE_TIMEOUT,
        )
        if not sharded:
            return World(rank, num_workers, local_rank, ranks_per_node, device, generation)
        mesh = init_device_mesh(
            device_type, (nodes, ranks_per_node), mesh_dim_names=("replica", "shard")
        )
    return World(
        rank,
        num_workers,
        local_rank,
        ranks_per_node,
        device,
        generation,
        shard_mesh=mesh["shard"],
        replica_group=mesh.get_group("replica"),
    )


def leave_world(world: World) -> None:
    if world.num_workers > 1 and dist.is_initialized():
        dist.destroy_process_group()


LOST_PEER_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "[enforce fail at",
    "gloo/transport",
    "remote process exited",
    "NCCL communicator was aborted",
    "Store::get",
    "wait timeout",
)


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error says that another worker went away, wherever it surfaced."""
    return isinstance(error, RuntimeError | PeerLost) and (
        isinstance(error, PeerLost | dist.DistError)
        or any(sign in str(error) for sign in LOST_PEER_SIGNS)
    )


@contextmanager
def naming_lost_peers() -> Iterator[Any]:
    try:
        yield
    except RuntimeError as error:
        if is_lost_peer(error):
            raise PeerLost(f"another worker went away: {error}") from error
        raise
