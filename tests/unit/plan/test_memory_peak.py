"""Memory of a device: against peaks that torch counted, and what a user is told of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headway.plan.accelerators import find_device
from headway.plan.fleet import Fleet
from headway.plan.memory_peak import memory_of
from headway.plan.model_size import model_size
from headway.plan.workload import CountedModel, Layout, Workload
from headway.spec.resolve import ALL_BLOCKS
from support.step_memory import MemoryCase, predicted

LLAMA2_7B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}


def workload(config: dict[str, Any] | None = None, **changes: Any) -> Workload:
    config = LLAMA2_7B | (config or {})
    size = model_size("llama", config)
    assert size is not None
    made = Workload(
        model=CountedModel("llama", config, size),
        teacher=None,
        sequence_length=4096,
        global_batch=1024,
        micro=1,
        precision="bf16",
        optimizer="adamw",
        compiles=False,
        loss_in_chunks=False,
        steps=1000,
    )
    return replace(made, **changes)


def fleet(name: str, devices: int = 8, nodes: int = 1) -> Fleet:
    device = find_device(name)
    assert device is not None
    return Fleet(device, devices, nodes)


# Of `make bench-memory`, 2026-11-18, sharded llama 2026-11-19, torch 2.15.0: bytes of all tensors,
# in a step and in the step after a save. With the plain loss, which runs of then keep.
@pytest.mark.parametrize(
    ("case", "step_mb", "save_mb"),
    [
        (MemoryCase("gpt2", "fp32", passes=2), 102.10, 130.83),
        (MemoryCase("gpt2", "bf16", micro=8), 116.23, 144.96),
        (MemoryCase("gpt2", "bf16", passes=2, recomputes=True), 63.17, 91.91),
        (MemoryCase("gpt2", "bf16", micro=1, length=32), 44.28, 73.01),
        (MemoryCase("gpt2", "fp32", nodes=2), 102.10, 130.83),
        (MemoryCase("gpt2", "bf16", teacher={"n_layer": 6}), 109.64, 138.37),
        (MemoryCase("gpt2", "bf16", ranks=2), 56.95, 71.32),
        (MemoryCase("gpt2", "bf16", ranks=4, micro=1, passes=2), 21.15, 28.33),
        (MemoryCase("llama", "bf16", passes=2), 87.24, 120.88),
        (MemoryCase("llama", "fp32", micro=1, length=32), 45.15, 78.79),
        (MemoryCase("llama", "bf16", ranks=2, passes=2, recomputes=True), 44.10, 60.92),
        (MemoryCase("llama", "fp32", ranks=4, micro=1), 24.51, 32.93),
        (MemoryCase("qwen3", "bf16"), 83.66, 119.07),
    ],
    ids=str,
)
def test_peaks_that_torch_counted(
    case: MemoryCase, step_mb: float, save_mb: float, tmp_path: Path
) -> None:
    estimate = predicted(replace(case, loss_in_chunks=False), tmp_path)
    assert estimate.step.value == pytest.approx(step_mb * 1e6, rel=0.05)
    assert estimate.step.high >= step_mb * 1e6
    assert estimate.saving.value == pytest.approx(save_mb * 1e6, rel=0.03)
    assert estimate.saving.high >= save_mb * 1e6


def test_parts_add_up_and_carry_their_reason() -> None:
    estimate = memory_of(workload(), fleet("H100"), Layout(8, recomputed_blocks=ALL_BLOCKS))
    for key in ("value", "low", "high"):
        total = sum(getattr(part, key) for part in estimate.parts.values())
        assert getattr(estimate.step, key) == pytest.approx(total)
    assert all(part.reason for part in estimate.parts.values())
    assert estimate.parts["weights"].value == pytest.approx(4 * 6738415616 / 8)
    assert estimate.parts["weights"].basis == "counted"
    assert estimate.parts["allocator"].basis == "fitted"
    assert estimate.step.basis == "assumed"  # what CUDA itself takes is
    assert estimate.moment


def test_verdicts() -> None:
    sharded, whole = (
        Layout(8, recomputed_blocks=ALL_BLOCKS),
        Layout(1, recomputed_blocks=ALL_BLOCKS),
    )
    assert memory_of(workload(), fleet("H100"), sharded).verdict == "fits"
    assert memory_of(workload(), fleet("H100"), whole).verdict == "does not fit"
    assert memory_of(workload(micro=8), fleet("A10G"), sharded).verdict == "does not fit"
    estimate = memory_of(workload(), fleet("A100-80GB"), sharded)
    device = fleet("A100-80GB").device
    assert device is not None
    near = replace(device, torch_gib=estimate.step.value / 2**30)
    assert memory_of(workload(), Fleet(near, 8, 1), sharded).verdict == "may not fit"


def test_without_a_known_room_there_is_no_verdict() -> None:
    assert memory_of(workload(), Fleet(None, 1, 1), Layout(1, 0)).verdict is None
    given = Fleet(None, 1, 1, host_bytes=2**42)
    assert memory_of(workload(), given, Layout(1, 0)).verdict == "fits"


def test_the_room_is_what_torch_sees() -> None:
    room = memory_of(workload(), fleet("A100-80GB"), Layout(8, ALL_BLOCKS)).room
    assert room is not None
    assert room.value == 79.14 * 2**30


@pytest.mark.parametrize(
    "less",
    [
        Layout(8, recomputed_blocks=ALL_BLOCKS),
        Layout(16, recomputed_blocks=0),
        Layout(8, recomputed_blocks=ALL_BLOCKS, offloads=True),
    ],
)
def test_what_saves_memory_saves_memory(less: Layout) -> None:
    devices = fleet("H100", nodes=2)
    more = memory_of(workload(), devices, Layout(8, recomputed_blocks=0))
    assert memory_of(workload(), devices, less).step.value < more.step.value


def test_each_block_that_is_recomputed_saves_memory() -> None:
    def peak(blocks: int) -> float:
        return memory_of(workload(), fleet("H100"), Layout(8, blocks)).step.value

    peaks = [peak(blocks) for blocks in range(33)]
    assert all(less < more for more, less in pairwise(peaks))
    assert peaks[32] == peak(ALL_BLOCKS)


def test_offloaded_activations_are_in_the_hosts_memory() -> None:
    plain = memory_of(workload(), fleet("H100"), Layout(8, recomputed_blocks=ALL_BLOCKS))
    offloaded = memory_of(workload(), fleet("H100"), Layout(8, ALL_BLOCKS, offloads=True))
    inputs = 2 * 4096 * 4096 * 32 * 8  # a power of two already
    assert offloaded.host.need.value - plain.host.need.value == inputs


def test_a_compiled_model_may_need_less_never_more() -> None:
    eager = memory_of(workload(), fleet("H100"), Layout(8, 0)).step
    compiled = memory_of(workload(compiles=True), fleet("H100"), Layout(8, 0)).step
    assert compiled.low < eager.low
    assert compiled.high == eager.high
