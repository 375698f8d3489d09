"""Compiled once: what one node has compiled, the next one fetches, and compiles nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.compiling_node import CompilingNode

pytestmark = [pytest.mark.local, pytest.mark.timeout(900)]

RUN_FILE = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32}}
data: {train: unused, sequence_length: 16}
batch: {global: 4, micro: 2}
train_for: 10 steps
evaluation: {every: 5 steps, sequences: 4}
memory: {compile: true}
precision: fp32
seed: 3
threads: 1
track: []
"""


@pytest.mark.long("compiling takes most of a minute")
def test_the_second_node_compiles_nothing(tmp_path: Path, stream: dict[str, Path]) -> None:
    storage = tmp_path / "storage"
    first = CompilingNode(tmp_path / "first", storage, RUN_FILE, stream)
    counted = first.trains()
    assert counted["compiled"] > 0
    assert counted["from_cache"] == 0
    assert counted["libraries"] > 0
    assert any("kept compiled code" in line for line in first.lines), first.lines

    second = CompilingNode(tmp_path / "second", storage, RUN_FILE, stream)
    counted = second.trains()
    assert counted["compiled"] == 0
    assert counted["from_cache"] > 0
    assert counted["libraries"] == 0
    assert second.numbers() == first.numbers()
    # Nothing new, so nothing was written: also not of the evaluation.
    assert not any("kept" in line for line in second.lines), second.lines
