"""The collectives of one group of workers. A peer that goes away is a PeerLost, wherever it
surfaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from headway.errors import PeerLost

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
    "Application timeout caused pair closure",  # of the other sums, when one took too long
)


class Watch(Protocol):
    """Who wants to know that this worker waits for others, and knows of the group's end."""

    @property
    def is_over(self) -> bool: ...
    def begins(self) -> None: ...
    def ends(self) -> None: ...


class Unwatched:
    is_over = False

    def begins(self) -> None:
        pass

    def ends(self) -> None:
        pass


class Adding:
    """A sum on its way. Nobody may read or write the tensor before `finish`."""

    def __init__(self, work: Any, watch: Watch) -> None:
        self._work, self._watch = work, watch

    def finish(self) -> None:
        work, self._work = self._work, None
        wait_for(work, self._watch)


class Peers:
    def __init__(self, group: dist.ProcessGroup, watch: Watch | None = None) -> None:
        self._group = group
        self._watch = watch or Unwatched()
        self.rank, self.size = group.rank(), group.size()

    @property
    def is_over(self) -> bool:
        """Nothing more can come of it: its generation is broken."""
        return self._watch.is_over

    def start_adding_up(self, tensor: torch.Tensor) -> Adding:
        """COLLECTIVE. The tensor becomes its sum over the group, when that is finished."""
        with naming_lost_peers(self._watch):
            return Adding(self._group.allreduce([tensor]), self._watch)

    def add_up(self, tensor: torch.Tensor) -> None:
        """COLLECTIVE."""
        self.start_adding_up(tensor).finish()

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """COLLECTIVE. Everyone's, by rank."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with naming_lost_peers(self._watch):
            work = self._group.allgather([parts], [tensor])
        wait_for(work, self._watch)
        return parts

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """COLLECTIVE. The tensor becomes the one of rank `source`."""
        with naming_lost_peers(self._watch):
            work = self._group.broadcast(tensor, source)
        wait_for(work, self._watch)


def wait_for(work: Any, watch: Watch) -> None:
    watch.begins()
    try:
        with naming_lost_peers(watch):
            work.wait()
    finally:
        watch.ends()


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error says that another worker went away, wherever it surfaced."""
    return isinstance(error, RuntimeError | PeerLost) and (
        isinstance(error, PeerLost | dist.DistError)
        or any(sign in str(error) for sign in LOST_PEER_SIGNS)
    )


@contextmanager
def naming_lost_peers(watch: Watch | None = None) -> Iterator[None]:
    """Whatever goes wrong in a group that is over, is because it is."""
    words = None
    try:
        yield
    except RuntimeError as error:
        if not is_lost_peer(error) and not (watch is not None and watch.is_over):
            raise
        words = str(error)
    if words is not None:
        # Out here, so that no traceback holds on to the group and its work.
        raise PeerLost(f"another worker went away: {words}")
