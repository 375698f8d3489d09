"""Collectives over one process group: all_reduce, all_gather, all_to_all, broadcast, send. A lost
peer raises PeerLost, wherever torch notices it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from headway.errors import PeerLost, RunFailed
from headway.train.broken_device import broken_device
from headway.train.device import HostRead, is_accelerator, recorded_event
from headway.train.lost_peer_signs import (
    LOST_PEER_SIGNS,
    is_loss_while_forming,
    why_not_formed,
)

POLL_TIMEOUT = timedelta(seconds=0.5)
"""Time between two checks whether the group is over. Work in a group whose connections were shut
fails within milliseconds."""
LOOK_SECONDS = 0.5
"""Between two looks at where a device stands that the host waits for."""
_abandoned: list[tuple[Any, ...]] = []
"""Work that nobody waits for any longer, with its group and tensors. gloo sometimes misses that the
connections were shut, and such work ends only with its timeout, after minutes; freeing the group
earlier would block until then."""


class GroupMonitor(Protocol):
    """Is told when this worker waits in a collective, and knows when the group is over."""

    @property
    def is_over(self) -> bool: ...
    def wait_begins(self) -> None: ...
    def wait_ends(self) -> None: ...


class Unmonitored:
    is_over = False

    def wait_begins(self) -> None:
        pass

    def wait_ends(self) -> None:
        pass


class DeviceMark:
    """Where one collective stands in the device's order of work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = recorded_event(device)
        self._after: Any = None

    def stream_waits(self) -> None:
        """The stream that computes waits for the collective from here on."""
        self._after = recorded_event(self._device)

    @property
    def is_reached(self) -> bool:
        return bool(self._before.query())

    @property
    def is_past(self) -> bool:
        return self._after is not None and bool(self._after.query())


class WaitTimer(Unmonitored):
    """Knows for how long this worker has been waiting in a collective. On an accelerator the host
    does not wait there: its device does, once it has come to a collective and does not get past it.
    Then others have not come; a device that has not come there itself is the one that is late."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._marks: deque[DeviceMark] = deque()
        self._next_look = 0.0

    def launches(self, device: torch.device) -> DeviceMark:
        mark = DeviceMark(device)
        self._marks.append(mark)
        return mark

    @property
    def newest(self) -> DeviceMark | None:
        return self._marks[-1] if self._marks else None

    def device_wait_begins(self) -> None:
        self._next_look = time.monotonic() + LOOK_SECONDS

    def look(self) -> None:
        """While the host waits for the device."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        while self._marks and self._marks[0].is_past:
            self._marks.popleft()
            self._since = None
        if self._since is None and self._marks and self._marks[0].is_reached:
            self._since = now

    def device_wait_ends(self, past: DeviceMark | None) -> None:
        """`past`: the collective that the device has completed, and all before it."""
        self._since = None
        while self._marks and self._marks.popleft() is not past:
            pass

    def wait_begins(self) -> None:
        self._since = time.monotonic()

    def wait_ends(self) -> None:
        self._since = None

    @property
    def seconds(self) -> float:
        since = self._since
        return 0.0 if since is None else time.monotonic() - since


class PendingCollective:
    """A collective in flight. Its tensors must not be read or written before `wait` returns."""

    def __init__(
        self, wait: Callable[[], None], abandon: Callable[[], None] = lambda: None
    ) -> None:
        self._wait: Callable[[], None] | None = wait
        self.abandon = abandon
        """Instead of `wait`: the group is lost, and nobody will use the result."""

    def wait(self) -> None:
        wait, self._wait = self._wait, None
        assert wait is not None
        wait()


class WorkerGroup:
    """The workers of one process group, and their collectives."""

    def __init__(self, group: dist.ProcessGroup, monitor: GroupMonitor | None = None) -> None:
        self._group = group
        self._monitor = monitor or Unmonitored()
        self.rank, self.size = group.rank(), group.size()

    @property
    def is_over(self) -> bool:
        """Whether the group's generation is broken: no collective can succeed any more."""
        return self._monitor.is_over

    def start_all_reduce(self, tensor: torch.Tensor) -> PendingCollective:
        """COLLECTIVE. Starts to replace the tensor by its sum over the group."""
        _free_abandoned()
        mark = None
        if isinstance(self._monitor, WaitTimer) and is_accelerator(tensor.device):
            mark = self._monitor.launches(tensor.device)
        with raising_peer_lost(self._monitor):
            work = self._group.allreduce([tensor])

        def wait() -> None:
            self._wait(work, tensor)
            if mark is not None:
                mark.stream_waits()

        return PendingCollective(wait, lambda: _abandon(self._group, work, tensor))

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """COLLECTIVE. The tensor becomes its sum over the group."""
        self.start_all_reduce(tensor).wait()

    def start_sums(self, vector: torch.Tensor) -> Callable[[], list[float]]:
        """COLLECTIVE. Starts to sum a small vector on the device over the group. Returns a function
        that waits for the sums: SYNC."""
        self.all_reduce(vector)
        timer = self._monitor if isinstance(self._monitor, WaitTimer) else WaitTimer()
        mark, read = timer.newest, HostRead(vector)

        def sums() -> list[float]:
            timer.device_wait_begins()
            try:
                with raising_peer_lost(timer):
                    return read.values(timer.look)
            finally:
                timer.device_wait_ends(mark)

        return sums

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """COLLECTIVE. The tensors of all workers, by rank."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with raising_peer_lost(self._monitor):
            work = self._group.allgather([parts], [tensor])
        self._wait(work, tensor, *parts)
        return parts

    def start_all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        received_sizes: list[int],
        sent_sizes: list[int],
    ) -> PendingCollective:
        """COLLECTIVE. Starts to send a part of `sent` to each worker, and to receive one from each:
        so many elements, by rank, 0 for many of them."""
        _free_abandoned()
        with raising_peer_lost(self._monitor):
            work = self._group.alltoall_base(received, sent, received_sizes, sent_sizes)
        return PendingCollective(
            lambda: self._wait(work, received, sent),
            lambda: _abandon(self._group, work, received, sent),
        )

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """COLLECTIVE. The tensor becomes that of rank `source`."""
        with raising_peer_lost(self._monitor):
            work = self._group.broadcast(tensor, source)
        self._wait(work, tensor)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Sends a contiguous tensor to rank `to`, which receives it."""
        with raising_peer_lost(self._monitor):
            work = self._group.send([tensor], to, 0)
        self._wait(work, tensor)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """The tensor becomes what rank `source` sends."""
        with raising_peer_lost(self._monitor):
            work = self._group.recv([tensor], source, 0)
        self._wait(work, tensor)

    def _wait(self, work: Any, *tensors: torch.Tensor) -> None:
        monitor = self._monitor
        monitor.wait_begins()
        try:
            with raising_peer_lost(monitor):
                if isinstance(monitor, Unmonitored):
                    work.wait()  # without a timeout: with one, NCCL would block the host
                    return
                was_over = monitor.is_over
                while not _completes_soon(work):
                    if was_over:
                        _abandon(self._group, work, *tensors)
                        raise PeerLost("the generation is over")
                    was_over = monitor.is_over
        finally:
            monitor.wait_ends()


def _abandon(group: dist.ProcessGroup, work: Any, *tensors: torch.Tensor) -> None:
    _abandoned.append((group, work, tensors))


def _free_abandoned() -> None:
    """Frees the work that has completed meanwhile: usually all of it, after milliseconds."""
    if _abandoned:
        _abandoned[:] = [one for one in _abandoned if not one[1].is_completed()]


def _completes_soon(work: Any) -> bool:
    try:
        work.wait(POLL_TIMEOUT)
    except RuntimeError:
        if not work.is_completed():
            return False  # the wait has timed out, not the work
        work.wait()  # raises if it failed; it may have completed well just now
    return True


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error means that another worker was lost, wherever it was raised."""
    if not isinstance(error, RuntimeError | PeerLost):
        return False
    if broken_device(error) is not None:  # this worker's own, by NCCL's words
        return False
    return isinstance(error, PeerLost | dist.DistError) or any(
        sign in str(error) for sign in LOST_PEER_SIGNS
    )


@contextmanager
def raising_peer_lost(monitor: GroupMonitor | None = None) -> Iterator[None]:
    """Turns torch's errors for a lost peer into PeerLost; in a group that is over, any error."""
    words = None
    try:
        yield
    except RuntimeError as error:
        if not is_lost_peer(error) and not (monitor is not None and monitor.is_over):
            raise
        words = str(error)
    if words is not None:
        # Outside `except`, so that no traceback keeps the group and its work alive.
        raise PeerLost(f"another worker was lost: {words}")


@contextmanager
def forming_group() -> Iterator[None]:
    """While a group forms, only timeouts and closed connections become PeerLost. torch's other
    errors of groups fail the run with their words: they are no loss of anybody."""
    words, is_of_store = None, False
    try:
        yield
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        words = str(error)
        is_of_store = isinstance(error, dist.DistNetworkError | dist.DistStoreError)
    if words is not None:
        if is_of_store or is_loss_while_forming(words):
            raise PeerLost(f"another worker was lost: {words}")
        raise RunFailed(why_not_formed(words))
