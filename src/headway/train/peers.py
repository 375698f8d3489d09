"""The collectives of one group of workers. A peer that goes away is a PeerLost, wherever it
surfaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
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
NO_MEMORY = "DefaultCPUAllocator"
"""Of errors here that look like gloo's."""
SOON = timedelta(seconds=0.5)
"""What waits in a group whose connections were shut ends in milliseconds."""
_abandoned: list[tuple[Any, ...]] = []
"""Work that nobody waits for any longer, its group and its tensors. gloo misses now and then that
connections were shut, and such work ends with its timeout, after minutes. Whoever freed the group
before would wait for it."""


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

    def __init__(
        self, finish: Callable[[], None], abandon: Callable[[], None] = lambda: None
    ) -> None:
        self._finish: Callable[[], None] | None = finish
        self.abandon = abandon
        """Instead of `finish`: the group is lost, and nobody will use the sum."""

    def finish(self) -> None:
        finish, self._finish = self._finish, None
        assert finish is not None
        finish()


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
        _free_abandoned()
        with naming_lost_peers(self._watch):
            work = self._group.allreduce([tensor])
        return Adding(
            lambda: self._finish(work, tensor), lambda: _abandon(self._group, work, tensor)
        )

    def add_up(self, tensor: torch.Tensor) -> None:
        """COLLECTIVE."""
        self.start_adding_up(tensor).finish()

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """COLLECTIVE. Everyone's, by rank."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with naming_lost_peers(self._watch):
            work = self._group.allgather([parts], [tensor])
        self._finish(work, tensor, *parts)
        return parts

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """COLLECTIVE. The tensor becomes the one of rank `source`."""
        with naming_lost_peers(self._watch):
            work = self._group.broadcast(tensor, source)
        self._finish(work, tensor)

    def _finish(self, work: Any, *of: torch.Tensor) -> None:
        watch = self._watch
        watch.begins()
        try:
            with naming_lost_peers(watch):
                if isinstance(watch, Unwatched):
                    work.wait()  # without a timeout: with one, NCCL would hold up the host
                    return
                was_over = watch.is_over
                while not _ends_soon(work):
                    if was_over:
                        _abandon(self._group, work, *of)
                        raise PeerLost("the generation is over")
                    was_over = watch.is_over
        finally:
            watch.ends()


def _abandon(group: dist.ProcessGroup, work: Any, *of: torch.Tensor) -> None:
    _abandoned.append((group, work, of))


def _free_abandoned() -> None:
    """What has ended meanwhile: mostly all of it, in milliseconds."""
    if _abandoned:
        _abandoned[:] = [one for one in _abandoned if not one[1].is_completed()]


def _ends_soon(work: Any) -> bool:
    try:
        work.wait(SOON)
    except RuntimeError as error:
        if "Operation timed out" not in str(error):
            raise
        if not work.is_completed():
            return False
        work.wait()  # it ended in that moment, and says how
    return True


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error says that another worker went away, wherever it surfaced."""
    if not isinstance(error, RuntimeError | PeerLost) or NO_MEMORY in str(error):
        return False
    return isinstance(error, PeerLost | dist.DistError) or any(
        sign in str(error) for sign in LOST_PEER_SIGNS
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
