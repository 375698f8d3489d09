"""Copies of tensors on the device into the host's memory, through two pinned buffers that are kept.

Only copies into pinned memory run beside each other and at the bus's speed. But pinned memory for a
whole state would be lost to everything else on the machine, and torch rounds each piece of it up to
a power of two: by its shapes, the state of gpt2-small would take 1.66 times its size, that of a 7B
Llama 1.31 times. So a copy goes into one buffer while the other one's content moves on to ordinary
memory.
"""

from __future__ import annotations

from typing import Any

import torch

from headway.train.device import is_accelerator, recorded_event

BUFFER_BYTES = 2**26
"""A power of two, so that nothing is rounded up. At 25 GB/s it is filled in 3 ms: long against the
0.02 ms that starting a copy takes."""


class HostCopies:
    """Starts copies; they are complete after `finish`."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes
        self._buffers: list[_PinnedBuffer] = []

    def start(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """`target` is on the host, and contiguous."""
        if not is_accelerator(source.device):
            # A quarter faster than torch's copy, measured with two processes.
            _bytes_of(target).numpy()[:] = _bytes_of(source).numpy()
            return
        if not self._buffers:
            self._buffers = [_PinnedBuffer(self._buffer_bytes) for _ in range(2)]
        content, into = _bytes_of(source), _bytes_of(target)
        for part, place in zip(
            content.split(self._buffer_bytes), into.split(self._buffer_bytes), strict=True
        ):
            buffer = self._buffers.pop(0)
            buffer.empty()
            buffer.fill(part, place)
            self._buffers.append(buffer)

    def finish(self) -> None:
        """SYNC. All targets have their content."""
        for buffer in self._buffers:
            buffer.empty()


class _PinnedBuffer:
    def __init__(self, num_bytes: int) -> None:
        self._memory = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        self._filled: tuple[Any, torch.Tensor] | None = None
        """Event after the newest copy into it, and where its content is to go."""

    def fill(self, content: torch.Tensor, target: torch.Tensor) -> None:
        self._memory[: len(content)].copy_(content, non_blocking=True)
        self._filled = recorded_event(content.device), target

    def empty(self) -> None:
        """SYNC, if it is filled: moves its content on."""
        if self._filled is not None:
            event, target = self._filled
            event.synchronize()
            target.copy_(self._memory[: len(target)])
            self._filled = None


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
