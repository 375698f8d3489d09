"""Out-of-memory errors, turned into messages that name what was needed and what there is."""

from __future__ import annotations

import re

import torch

from headway.errors import RunFailed
from headway.memory_limits import Memory
from headway.plan.memory_need import less_memory, needed_and_present
from headway.spec.resolve import Resolved
from headway.state.run_directory import is_in_pod

PLACE = re.compile(r"^\[enforce fail at .*?\] (err == 0\. )?")
"""The place in torch at which the CPU's allocator gives up: noise for a user."""
SIGNS = ("DefaultCPUAllocator", "you tried to allocate")


def out_of_memory(error: BaseException, resolved: Resolved, step: int | None) -> RunFailed | None:
    """The error to exit with, if `error` means that memory has run out. `step`: the one being
    computed; None while the model is being built."""
    is_cpu = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
    )
    if not is_cpu and not isinstance(error, torch.OutOfMemoryError):
        return None
    when = "while building the model" if step is None else f"in step {step}"
    words = PLACE.sub("", (str(error).splitlines() or ["MemoryError"])[0])
    nodes = resolved.nodes if is_cpu and not is_in_pod() else 1  # a pod is one node
    if is_cpu:
        words += f"; {needed_and_present(resolved, nodes, Memory().limit_bytes())}"
    return RunFailed(f"out of memory {when}: {words}", less_memory(resolved, nodes))
