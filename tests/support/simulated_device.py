"""A simulated accelerator: tensors are on `sim:0`, compute on the CPU, and fail where they would on
CUDA. `install` adds it to this process; nothing in src knows it.

What it takes: PrivateUse1 renamed by torch's Python hook; a wrapper subclass with the inner
tensor's sizes and strides (without them `view` and `reshape` go wrong); a mode that turns factories
with `device="sim"` into wrappers; kernels for empty, empty_strided and _copy_from, which torch's
own C++ calls below the mode; parameters swapped, not replaced, by `Module.to`, else tied weights
come apart.

What fails as on CUDA:
- an operator that mixes devices. A tensor without dimensions may be on the CPU in elementwise
  operators only, so an optimizer's `step` on the wrong side fails.
- `numpy()` of a tensor on the device.
- a random generator that was not seeded: the device has its own.
- a copy to pinned memory that nobody waited for: until then the memory holds garbage for the host.
  The device itself sees it, in the order of its one stream.
- a name, number or function of a device that does not exist.

Host syncs are counted (`counted_syncs`): scalars read, copies to the host, events waited for, and
copies from the host that are not from pinned memory, or not `non_blocking`.

Streams and collectives are in `simulated_streams`: a collective is enqueued, and may fail or hang.

Where it is too weak:
- autocast does nothing on it, so only fp32 is simulated.
- operators compute at once; late are collectives and copies to pinned memory. A tensor that is
  overwritten before its collective has read it, or its copy to the device, goes unnoticed.
- NCCL's kernels take no room on the device: two groups whose collectives wait for each other do
  not deadlock.
- torch.compile, and more memory than a device has.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from support.simulated_streams import DEVICE as STREAMS
from support.simulated_streams import Fault, SimulatedEvent, SimulatedStream

CPU = torch.device("cpu")
MAY_CROSS = ("aten::copy_", "aten::_to_copy", "aten::_copy_from")
RECORD = "HEADWAY_TEST_RECORD"
FAULT = "HEADWAY_TEST_FAULT"
SCALAR = "aten::_local_scalar_dense"


class SimulatedDevice:
    """`torch.sim`, as far as Headway and torch call it."""

    _initialized = True
    """Else a block that is recomputed would draw other random numbers."""

    Stream, Event = SimulatedStream, SimulatedEvent

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0x51)
        self.late: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Copies to pinned memory that have not arrived: target, content."""
        self.pinned: set[int] = set()
        """Addresses of pinned memory."""
        self.syncs: list[str] | None = None
        STREAMS.note_sync = self.note_sync

    def current_stream(self, device: object = None) -> SimulatedStream:
        return STREAMS.current

    def stream(self, stream: SimulatedStream | None) -> AbstractContextManager[None]:
        return STREAMS.on(stream)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1  # torch's Python hook knows no more

    def current_device(self) -> int:
        return 0

    def device(self, index: int) -> AbstractContextManager[None]:
        return nullcontext()

    def set_device(self, device: torch.device) -> None:
        assert device == DEVICE, f"there is no {device}"

    def get_device_name(self, device: torch.device | int | None = None) -> str:
        return "simulated"

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def max_memory_reserved(self, device: object = None) -> int:
        return 5000

    def memory_reserved(self, device: object = None) -> int:
        return 3000

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        return 6000, 10_000

    def manual_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        self.generator.set_state(state)

    def synchronize(self, device: object = None) -> None:
        self.synced("synchronize")

    def synced(self, what: str) -> None:
        """The host waits for the device."""
        STREAMS.host_waits(STREAMS.current.pending, what)

    def note_sync(self, what: str) -> None:
        """The host has waited for the device."""
        if self.syncs is not None:
            ours = [f for f in traceback.extract_stack() if "/headway/train/" in f.filename]
            where = f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno}" if ours else "?"
            self.syncs.append(f"{what} at {where}")
        late, self.late = self.late, []
        for target, content in late:
            target.copy_(content)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.pinned.add(storage.data_ptr())
        weakref.finalize(storage, self.pinned.discard, storage.data_ptr())
        return tensor

    def in_stream_order(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the device reads from pinned memory: its own copies into it were begun before, and
        so are complete, although the host does not see them yet."""
        for target, content in reversed(self.late):
            if target.data_ptr() == tensor.data_ptr() and target.shape == tensor.shape:
                return content
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.pinned


SIM = SimulatedDevice()
_setup_privateuseone_for_python_backend("sim", backend_module=SIM)
DEVICE = torch.device("sim", 0)


class SimTensor(torch.Tensor):
    plain: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> SimTensor:
        made: SimTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.plain = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again with the local parts
        return _compute(func, args, kwargs or {})

    def untyped_storage(self) -> Any:  # FSDP2 frees gathered weights by resizing it
        return self.plain.untyped_storage()

    def tolist(self) -> Any:  # torch's own refuses subclasses
        return self.cpu().tolist()


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """As torch's tree_map, for what operators take and return, in a fifth of the time."""
    if isinstance(value, tuple | list):
        return type(value)([_mapped(change, one) for one in value])
    return change(value)


def _holds_ours(values: Iterable[Any]) -> bool:
    return any(
        isinstance(one, SimTensor) or (isinstance(one, tuple | list) and _holds_ours(one))
        for one in values
    )


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    name = func._schema.name
    if func.namespace == "c10d":
        plain = _mapped(lambda one: one.plain if isinstance(one, SimTensor) else one, args)
        return STREAMS.launch(func, args, plain, DEVICE)
    STREAMS.current.catch_up()
    if name in MAY_CROSS:
        return _copy(name, func, args, kwargs)
    if name == SCALAR:
        SIM.synced(name)
    wrappers: dict[int, SimTensor] = {}
    scalars_may_cross = torch.Tag.pointwise in func.tags

    def inner(value: Any) -> Any:
        if isinstance(value, SimTensor):
            wrappers[id(value.plain)] = value
            return value.plain
        if isinstance(value, torch.Tensor) and not (scalars_may_cross and value.dim() == 0):
            raise RuntimeError(
                f"{name}: expected all tensors on {DEVICE}, found one on {value.device}"
            )
        if isinstance(value, torch.device) and value.type == "sim":
            return CPU
        return value

    with _own_generator() if torch.Tag.nondeterministic_seeded in func.tags else nullcontext():
        result = func(
            *_mapped(inner, args), **{key: _mapped(inner, value) for key, value in kwargs.items()}
        )

    is_for_host = kwargs.get("device") is not None and torch.device(kwargs["device"]) == CPU

    def wrapped(one: Any) -> Any:  # in-place operators return what they were given
        if is_for_host or not isinstance(one, torch.Tensor):
            return one
        return wrappers[id(one)] if id(one) in wrappers else SimTensor(one)

    return _mapped(wrapped, result)


@contextmanager
def _own_generator() -> Iterator[None]:
    """Random operators draw from the device's generator."""
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(SIM.generator.get_state())
    try:
        yield
    finally:
        SIM.generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)


def _copy(name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """A copy, on the device or between host and device."""
    if name == "aten::_to_copy":
        source = args[0]
        to = torch.device(kwargs["device"]) if kwargs.get("device") is not None else source.device
        others = {**kwargs, "device": CPU, "pin_memory": None, "non_blocking": False}
        if to.type == "sim" and isinstance(source, SimTensor):
            return SimTensor(func(source.plain, **others))
        if isinstance(source, SimTensor):
            SIM.synced("copy to the host")
            return func(source.plain, **others)
        _sync_unless_pinned(source, kwargs.get("non_blocking", False))
        source = SIM.in_stream_order(source)
        made = func(source, **others)
        # To another type or layout it is a new tensor anyway; else it must not share memory.
        return SimTensor(made.clone() if made.data_ptr() == source.data_ptr() else made)
    if name == "aten::copy_":
        target, source = args[:2]
    else:
        source, target = args[:2]
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    return copied(source, target, non_blocking)


def copied(source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    plain_source = source.plain if isinstance(source, SimTensor) else source
    plain_target = target.plain if isinstance(target, SimTensor) else target
    if isinstance(source, SimTensor) and not isinstance(target, SimTensor):
        if non_blocking and SIM.is_pinned(target):
            SIM.late.append((target, plain_source.clone()))
            target.fill_(torch.nan if target.is_floating_point() else 1)
            return target
        SIM.synced("copy to the host")
    elif not isinstance(source, SimTensor) and isinstance(target, SimTensor):
        _sync_unless_pinned(source, non_blocking)
        plain_source = SIM.in_stream_order(source)
    plain_target.copy_(plain_source)
    return target


def _sync_unless_pinned(source: torch.Tensor, non_blocking: bool) -> None:
    if not (non_blocking and SIM.is_pinned(source)):
        SIM.synced("copy from pageable memory" if non_blocking else "copy to the device")


class OnSim(TorchDispatchMode):
    """Factories, pinned memory, and copies of plain tensors to the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return func(*args, **kwargs)
        name = func._schema.name
        if func.namespace == "c10d" and not _holds_ours(args):
            group = next(one for one in args if isinstance(one, torch.ScriptObject))
            STREAMS.host_collectives.append(
                STREAMS.note(func, args, dist.ProcessGroup.unbox(group))
            )
        if _holds_ours(args) or _holds_ours(kwargs.values()):
            return _compute(func, args, kwargs)
        if name == "aten::is_pinned":
            return SIM.is_pinned(args[0])
        if name == "aten::_pin_memory":
            return SIM.pin(args[0].clone())
        to = kwargs.get("device")
        if to is not None and torch.device(to).type == "sim":
            if name == "aten::_to_copy":
                return _copy(name, func, args, kwargs)
            seeded = torch.Tag.nondeterministic_seeded in func.tags
            with _own_generator() if seeded else nullcontext():
                return SimTensor(func(*args, **{**kwargs, "device": CPU}))
        if kwargs.get("pin_memory"):
            return SIM.pin(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> SimTensor:
    return SimTensor(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> SimTensor:
    return SimTensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    STREAMS.current.catch_up()
    return copied(source, target, non_blocking)


_kernels: list[torch.library.Library] = []


def install() -> OnSim:
    """Adds the device to this process, once; enter what it returns to use it."""
    if not _kernels:
        torch.__future__.set_swap_module_params_on_conversion(True)
        kernels = torch.library.Library("aten", "IMPL")
        kernels.impl("empty.memory_format", _empty, "PrivateUse1")
        kernels.impl("empty_strided", _empty_strided, "PrivateUse1")
        kernels.impl("_copy_from", _copy_from, "PrivateUse1")
        kernels.impl("_copy_from", _copy_from, "CPU")
        _kernels.append(kernels)
        dist.Backend.register_backend("simccl", STREAMS.make_group, devices=["sim"])
    return OnSim()


@contextmanager
def counted_syncs() -> Iterator[list[str]]:
    """What the host waited for, and where in headway.train."""
    found: list[str] = []
    SIM.syncs = found
    try:
        yield found
    finally:
        SIM.syncs = None


def main(arguments: list[str]) -> int:
    """The worker program with the device, and with the fault in HEADWAY_TEST_FAULT. Writes what it
    did to the file that HEADWAY_TEST_RECORD names."""
    if FAULT in os.environ:
        STREAMS.fault = Fault(**json.loads(os.environ[FAULT]))
        signal.alarm(STREAMS.fault.seconds)  # a launcher would stop those that are left
    with install(), counted_syncs() as syncs:
        from headway.train.__main__ import main as work

        code = work(arguments)
    if RECORD in os.environ:
        record = {
            "syncs": syncs,
            "launches": [asdict(one) for one in STREAMS.launches],
            "host_collectives": [asdict(one) for one in STREAMS.host_collectives],
            "num_host_groups": STREAMS.num_host_groups,
        }
        Path(os.environ[RECORD]).write_text(json.dumps(record))
    return code
