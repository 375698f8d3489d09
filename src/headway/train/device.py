"""The device that a worker computes on: the one place that turns its type into torch calls. What
torch offers for a type of device is in a module of that name (`torch.cuda`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from headway.plan.accelerators import require_device
from headway.spec.resolve import Resolved

HOST = "cpu"
POLL_SECONDS = 1e-4
"""Between two looks whether the device has come so far: long against a look, which takes some
microseconds, short against a step."""


def device_of(resolved: Resolved, number: int) -> torch.device:
    """The device with that number on this machine, made the current one. Raises BadInput if the
    machine does not have what the run asks for."""
    device = torch.device(resolved.device)
    if not is_accelerator(device):
        return device
    module = _module(device)
    present = [module.get_device_name(index) for index in range(module.device_count())]
    require_device(resolved.run.resources.accelerators, number, present)
    device = torch.device(resolved.device, number)
    module.set_device(device)
    return device


def device_with_room(num_bytes: int) -> torch.device:
    """The first GPU of this machine, if it has that much free memory; otherwise the CPU."""
    if torch.cuda.is_available() and num_bytes < torch.cuda.mem_get_info(0)[0]:
        return torch.device("cuda", 0)
    return torch.device(HOST)


def is_accelerator(device: torch.device) -> bool:
    """Whether it has memory of its own, and computes while the host continues."""
    return device.type != HOST


def name_of(device: torch.device) -> str:
    """As its driver reports it."""
    return str(_module(device).get_device_name(device)) if is_accelerator(device) else HOST


def has_bf16_units(device: torch.device) -> bool:
    """Of the current device: torch may only emulate bf16. CPUs count as having them."""
    if not is_accelerator(device):
        return True
    return bool(_module(device).is_bf16_supported(including_emulation=False))


def backends_of(device: torch.device) -> str:
    """The backend of process groups, for tensors on the device. Beside an accelerator's there is
    none for tensors on the host: agreements are made on the device."""
    if not is_accelerator(device):
        return "gloo"
    return f"{device.type}:{dist.get_default_backend_for_device(device)}"


def connected_device(device: torch.device) -> torch.device | None:
    """The device that a new process group connects at once: NCCL would otherwise wait for the first
    collective, and guess the device."""
    uses_nccl = is_accelerator(device) and dist.get_default_backend_for_device(device) == "nccl"
    return device if uses_nccl else None


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds the generators of the CPU and of this worker's device. torch.manual_seed also seeds
    those of all other types of devices, which takes 2 ms; the numbers drawn are the same."""
    torch.default_generator.manual_seed(seed)
    if is_accelerator(device):
        _module(device).manual_seed(seed)  # the current device is this worker's


def copied_to(device: torch.device, array: np.ndarray) -> torch.Tensor:
    """The array on the device. The host does not wait for the copy: it is made from pinned memory,
    which torch uses again only when it has arrived."""
    tensor = torch.from_numpy(array)
    if not is_accelerator(device):
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def recorded_event(device: torch.device) -> Any:
    """An event after all work given to the device so far; `synchronize` waits for it."""
    module = _module(device)
    event = module.Event()
    event.record(module.current_stream(device))  # in a new thread, another device is the current
    return event


class HostRead:
    """A small tensor of the device on its way to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._on_host.copy_(tensor, non_blocking=True)
        self._event = recorded_event(tensor.device)

    def values(self, meanwhile: Callable[[], None] = lambda: None) -> list[float]:
        """SYNC. Polled, calling `meanwhile` again and again: a device that stands still holds up
        nothing but this thread."""
        while not self._event.query():
            meanwhile()
            time.sleep(POLL_SECONDS)
        found: list[float] = self._on_host.tolist()
        return found


def stream_after_all(device: torch.device) -> Any:
    """A new stream, for work after all that was given to the device so far and beside what comes
    next."""
    module = _module(device)
    stream = module.Stream()
    stream.wait_stream(module.current_stream(device))
    return stream


def on_stream(stream: Any, device: torch.device) -> AbstractContextManager[Any]:
    """Work of this thread goes to that stream."""
    context: AbstractContextManager[Any] = _module(device).stream(stream)
    return context


def synchronize(device: torch.device) -> None:
    """SYNC. All work given to the device is done."""
    if is_accelerator(device):
        _module(device).synchronize(device)


def peak_memory(device: torch.device) -> dict[str, int]:
    """For events: the most memory of the device that was in use since this process began, by
    torch's allocator and beside it (CUDA, NCCL, others' processes). Empty on CPUs, and where torch
    does not count it. The host waits for nothing."""
    module = _module(device) if is_accelerator(device) else None
    if module is None or not hasattr(module, "max_memory_reserved"):
        return {}
    free, total = module.mem_get_info(device)
    beside = max(0, total - free - module.memory_reserved(device))
    return {"device_peak_bytes": int(module.max_memory_reserved(device) + beside)}


def _module(device: torch.device) -> ModuleType:
    module: ModuleType = torch.get_device_module(device)
    return module
