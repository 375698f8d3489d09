"""Streams, events and collectives of the simulated device.

Operators compute at once. Collectives do not: a call hands copies of its tensors to the thread of
its group, which sends them over gloo, one collective after the other, and returns. Its output is
garbage from then on, until something computes on a stream that waits for the collective, or the
host waits for that stream. So a wait that is missing shows as NaN. The simulation itself waits only
where a device would stand still, which is not counted as a host sync.

`Fault` plants what goes wrong at one collective of one rank. A device whose peer is gone stands
still without an error, as with NCCL: later operators compute garbage, events are never reached, and
a host that waits for the device waits forever. So does, after `Fault.patience`, one whose peer is
late: in runs without a fault there is no such limit.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PythonCallbackWork, Work

BROKEN = "CUDA error: unspecified launch failure"
TICK_SECONDS = 0.005


@dataclass(frozen=True)
class Fault:
    """What goes wrong where `rank` launches its collective number `launch`, from 1.

    - breaks: its device fails with the operators before the collective.
    - hangs: an operator before it never ends, so that it does not begin.
    - fails: the launch raises NCCL's error, and the others wait.
    - never: all launch it, and it and those after it complete nowhere.
    """

    kind: Literal["breaks", "hangs", "fails", "never"]
    rank: int
    launch: int
    patience: float = 5.0
    """Seconds that a device may wait for a peer before it counts as standing still."""
    seconds: int = 60
    """Time after which all workers are ended."""


@dataclass(frozen=True)
class Launch:
    """A collective in the log."""

    op: str
    ranks: tuple[int, ...]
    num_bytes: int
    """Bytes of the larger of input and output."""


class Pending:
    """Work that the device has begun."""

    def __init__(self, arrive: Callable[[], None] = lambda: None) -> None:
        self.has_ended = threading.Event()
        self.stands_still = False
        self._arrive: Callable[[], None] | None = arrive

    def awaited(self) -> bool:
        """Whether it ended, and its results are visible. Returns at once if it never will."""
        deadline = time.monotonic() + DEVICE.patience
        while not self.has_ended.wait(TICK_SECONDS):
            self.stands_still = self.stands_still or time.monotonic() > deadline
            if self.stands_still:
                return False
        self._show()
        return True

    def is_done(self) -> bool:
        if self.has_ended.is_set():
            self._show()
        return self.has_ended.is_set()

    def _show(self) -> None:
        arrive, self._arrive = self._arrive, None
        if arrive is not None:
            arrive()


def standing_still() -> Pending:
    pending = Pending()
    pending.stands_still = True
    return pending


class SimulatedStream:
    """A stream: what its next operator has to wait for."""

    def __init__(self, priority: int = 0, device: object = None) -> None:
        self.stream_id = self.device_index = self.device_type = 0
        self.pending: list[Pending] = []

    def wait_stream(self, other: SimulatedStream) -> None:
        self.pending += other.pending

    def wait_event(self, event: SimulatedEvent) -> None:
        self.pending += event.pending

    def record_event(self, event: SimulatedEvent | None = None) -> SimulatedEvent:
        event = event or SimulatedEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        DEVICE.host_waits(self.pending, "stream")

    def query(self) -> bool:
        return self.record_event().query()

    def catch_up(self) -> None:
        """Before an operator: what it may read has arrived, unless the device stands still."""
        DEVICE.strike_operator(self)
        if self.pending:
            self.pending = [one for one in self.pending if not one.awaited()]


class SimulatedEvent:
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.pending: list[Pending] = []

    def record(self, stream: SimulatedStream | None = None) -> None:
        self.pending = [*(stream or DEVICE.current).pending]

    def wait(self, stream: SimulatedStream | None = None) -> None:
        (stream or DEVICE.current).wait_event(self)

    def query(self) -> bool:
        """Counted as a host sync where it says that the device has come so far."""
        DEVICE.require_sound()
        if not all(one.is_done() for one in self.pending):
            return False
        DEVICE.note_sync("event")
        return True

    def synchronize(self) -> None:
        DEVICE.host_waits(self.pending, "event")


class Streams:
    """The streams of this process's device, its collectives and its fault."""

    def __init__(self) -> None:
        self.default = SimulatedStream()
        self.note_sync: Callable[[str], None] = lambda what: None
        self.launches: list[Launch] = []
        self.host_collectives: list[Launch] = []
        """Collectives of tensors on the host."""
        self.num_host_groups = 0
        """Most process groups for tensors on the host, seen at a collective."""
        self.fault: Fault | None = None
        self._is_broken = False
        self._local = threading.local()
        self._groups: dict[int, _Group] = {}

    @property
    def current(self) -> SimulatedStream:
        return getattr(self._local, "stream", None) or self.default

    @contextmanager
    def on(self, stream: SimulatedStream | None) -> Iterator[None]:
        before = getattr(self._local, "stream", None)
        self._local.stream = stream or before
        try:
            yield
        finally:
            self._local.stream = before

    @property
    def patience(self) -> float:
        return float("inf") if self.fault is None else self.fault.patience

    def require_sound(self) -> None:
        if self._is_broken:
            raise RuntimeError(f"{BROKEN}\nCompile with `TORCH_USE_CUDA_DSA`")

    def host_waits(self, pending: list[Pending], what: str) -> None:
        """The host waits until the device has come so far: forever, where it stands still."""
        while True:
            self.require_sound()
            if all(one.is_done() for one in pending):
                break
            time.sleep(TICK_SECONDS)
        self.note_sync(what)

    def make_group(self, store: Any, rank: int, size: int, timeout: Any) -> dist.ProcessGroupGloo:
        """The backend of a group for the device; its transport is a group of gloo's."""
        backend = dist.ProcessGroupGloo(store, rank, size, timeout)
        transport = dist.ProcessGroup(store, rank, size)
        transport._register_backend(
            torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend
        )
        transport._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self._groups[id(backend)] = _Group(backend, transport)
        return backend

    def launch(self, func: Any, args: Any, plain: Any, device: torch.device) -> Any:
        """Enqueues a collective, and returns what torch's operator does. `plain`: the arguments
        with the tensors inside ours."""
        stream = self.current
        stream.catch_up()
        at = next(i for i, one in enumerate(args) if isinstance(one, torch.ScriptObject))
        group = dist.ProcessGroup.unbox(args[at])
        launch = self.note(func, plain, group)
        self.launches.append(launch)
        fault = self.fault
        if fault is not None and fault.kind == "fails" and self._is_struck(fault, 0):
            raise dist.DistBackendError("NCCL error: unhandled system error, NCCL version 2.27.7")
        copies = _mapped_tensors(torch.Tensor.clone, list(plain))
        outputs = [] if launch.op in ("send", "barrier") else [*_tensors(plain[0])]
        results = [*_tensors(copies[0])]

        def arrive() -> None:
            for output, result in zip(outputs, results, strict=True):
                output.copy_(result)

        pending = Pending(arrive if outputs else lambda: None)
        for output in outputs:
            output.fill_(torch.nan if output.is_floating_point() else 1)
        ours = self._groups[id(group._get_backend(device))]
        never = fault is not None and fault.kind == "never" and len(self.launches) >= fault.launch
        if stream.pending or never:  # the device stands still before it
            pending.stands_still = True
        else:
            copies[at] = ours.transport.boxed()
            ours.work.put((pending, lambda: func(*copies)))

        def wait(timeout: Any) -> bool:
            self.current.pending.append(pending)
            return True

        work = PythonCallbackWork(wait).boxed()
        return (args[0], work) if len(func._schema.returns) == 2 else work

    def strike_operator(self, stream: SimulatedStream) -> None:
        fault = self.fault
        if fault is None or fault.kind not in ("breaks", "hangs") or not self._is_struck(fault, 1):
            return
        self._is_broken = fault.kind == "breaks"
        if not stream.pending:
            stream.pending.append(standing_still())

    def _is_struck(self, fault: Fault, to_come: int) -> bool:
        """Whether the fault's collective is launched, or is the next one."""
        if len(self.launches) + to_come != fault.launch:
            return False
        return dist.get_rank() == fault.rank

    def note(self, func: Any, args: Any, group: dist.ProcessGroup) -> Launch:
        """The log's line for a collective. Also counts the groups for the host."""
        host = [one for one in dist.distributed_c10d._world.pg_map if _is_for_host(one)]
        self.num_host_groups = max(self.num_host_groups, len(host))
        sizes = [sum(t.numel() * t.element_size() for t in _tensors(one)) for one in args[:2]]
        known = dist.distributed_c10d._world.pg_group_ranks.get(group)  # not those of one test
        ranks = tuple(known or range(group.size()))
        return Launch(func._schema.name.removeprefix("c10d::").strip("_"), ranks, max(sizes))


class _Group:
    """A group's collectives, one after the other in its thread."""

    def __init__(self, backend: dist.ProcessGroupGloo, transport: dist.ProcessGroup) -> None:
        self.backend, self.transport = backend, transport
        self.work: queue.SimpleQueue[tuple[Pending, Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="simulated-collectives", daemon=True).start()

    def _run(self) -> None:
        while True:
            pending, run = self.work.get()
            try:
                found = run()
                Work.unbox(found[-1] if isinstance(found, tuple) else found).wait()
            except RuntimeError:  # a peer is gone: NCCL does not notice
                pending.stands_still = True
                return
            pending.has_ended.set()


def _is_for_host(group: dist.ProcessGroup) -> bool:
    return torch.device("cpu") in group._device_types


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _mapped_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    return [_mapped_tensors(change, one) for one in value] if isinstance(value, list) else value


DEVICE = Streams()
