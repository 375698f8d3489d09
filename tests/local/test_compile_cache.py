"""Compiled once: what one node has compiled, the next one fetches, and compiles nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.errors import Exit
from headway.launch.compile_cache import CompileCache
from headway.launch.compile_identity import compile_identity
from headway.launch.node_run import NodeRun, NodeSettings
from headway.state.generations import next_generation
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from support.workers import resolved_run

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


class AloneNode(NodeRun):
    """Without the coordinator that a pod has."""

    def _coordinator_address(self) -> None:
        return None


class Pod:
    """A node with a folder of its own, on a storage that others have, too."""

    def __init__(self, tmp_path: Path, name: str, sets: dict[str, Path]) -> None:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.yaml").write_text(RUN_FILE)
        resolved = resolved_run(folder, sets)
        self.directory = RunDirectory.create(resolved.run_directory, SystemClock())
        self.directory.write_spec(resolved)
        self.lines: list[str] = []
        cache = CompileCache(
            Store(tmp_path / "storage"),
            compile_identity(resolved),
            b"a key",
            folder / "cache",
            SystemClock(),
            self.lines.append,
        )
        settings = NodeSettings(name, 0, "none", folder / "key")
        self.node = AloneNode(
            resolved,
            self.directory,
            settings,
            SystemClock(),
            self.lines.append,
            compile_cache=cache,
        )
        self.node.generation = next_generation(self.directory)

    def trains(self) -> dict[str, Any]:
        """Its counters."""
        assert self.node.run() == Exit.DONE, self.lines
        events = self.directory.events.read()[0]
        (counted,) = [event for event in events if event["event"] == "compiled"]
        return counted

    def numbers(self) -> list[Any]:
        steps = [(line["loss"], line["grad_norm"]) for line in self.directory.steps()]
        return [*steps, *(line["loss"] for line in self.directory.evaluations.read()[0])]


@pytest.mark.long("compiling takes most of a minute")
def test_the_second_node_compiles_nothing(tmp_path: Path, stream: dict[str, Path]) -> None:
    first = Pod(tmp_path, "first", stream)
    counted = first.trains()
    assert counted["compiled"] > 0
    assert counted["from_cache"] == 0
    assert counted["libraries"] > 0
    assert any("kept compiled code" in line for line in first.lines), first.lines

    second = Pod(tmp_path, "second", stream)
    counted = second.trains()
    print(counted, second.lines)
    assert counted["compiled"] == 0
    assert counted["from_cache"] > 0
    assert counted["libraries"] == 0
    assert second.numbers() == first.numbers()
    # Nothing new, so nothing was written: also not of the evaluation.
    assert not any("kept" in line for line in second.lines), second.lines
