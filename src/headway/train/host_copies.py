"""Copies of tensors on the device into the host's memory, beside training: in a thread and on a
stream of their own, through two pinned buffers that are kept.

Only copies into pinned memory run beside each other and at the bus's speed. But pinned memory for a
whole state would be lost to everything else on the machine, and torch rounds each piece of it up to
a power of two: by its shapes, the state of gpt2-small would take 1.66 times its size, that of a 7B
Llama 1.31 times. So a copy goes into one buffer while the other one's content moves on to ordinary
memory. The next step computes meanwhile, and waits for them only before it changes the state.
"""

from __future__ import annotations

from threading import Event
from typing import Any

import torch

from headway.train.device import (
    is_accelerator,
    on_stream,
    recorded_event,
    stream_after_all,
)

BUFFER_BYTES = 2**26
"""A power of two, so that nothing is rounded up. At 25 GB/s it is filled in 3 ms: long against the
0.02 ms that starting a copy takes."""


class HostCopies:
    """Copies that `add` asks for and `run` makes. `wait` returns once all are made."""

    def __init__(self, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes
        self._buffers: list[_PinnedBuffer] = []
        self._asked: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._stream: Any = None
        self._are_made = Event()
        self._are_made.set()

    def add(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """`target` is on the host, and contiguous. What is on the host is copied at once."""
        if not is_accelerator(source.device):
            # A quarter faster than torch's copy, measured with two processes.
            _bytes_of(target).numpy()[:] = _bytes_of(source).numpy()
            return
        if not self._buffers:
            self._buffers = [_PinnedBuffer(self._buffer_bytes) for _ in range(2)]
        if not self._asked:
            self._stream = stream_after_all(source.device)
            self._are_made.clear()
        self._asked.append((source, target))

    def run(self) -> None:
        """SYNC, in the thread that calls it. Must be called after `add`, in whatever thread: until
        it returns, `wait` does not."""
        try:
            if self._asked:
                with on_stream(self._stream, self._asked[0][0].device):
                    for source, target in self._asked:
                        self._start(source, target)
                    for buffer in self._buffers:
                        buffer.empty()
        finally:
            self._asked.clear()
            self._are_made.set()

    def wait(self) -> None:
        """Until then nobody may change what is copied."""
        self._are_made.wait()

    def _start(self, source: torch.Tensor, target: torch.Tensor) -> None:
        content, into = _bytes_of(source), _bytes_of(target)
        for part, place in zip(
            content.split(self._buffer_bytes), into.split(self._buffer_bytes), strict=True
        ):
            buffer = self._buffers.pop(0)
            buffer.empty()
            buffer.fill(part, place)
            self._buffers.append(buffer)


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
