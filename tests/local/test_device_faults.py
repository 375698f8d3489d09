"""A device that fails or stands still: the worker that has it is named, with its rank and node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.cli.members import stuck_text
from headway.errors import Exit
from headway.state.run_directory import RunDirectory
from support.simulated_cases import SmallRun
from support.simulated_streams import BROKEN, Fault
from support.simulated_workers import WorkerPrograms

pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(300),
    pytest.mark.long("a step is late after 20 s; the gate shows what is found on one device"),
]

LAUNCH = 40
"""Some steps in: these are short, and then one is late after twenty seconds."""
WITHIN_SECONDS = 30


def train(
    programs: WorkerPrograms, folder: Path, sets: dict[str, Path], kind: Any
) -> tuple[SmallRun, list[dict[str, Any]]]:
    """The run with a fault of its second worker, and what is reported of late steps."""
    run = SmallRun(programs, folder, sets).write("gpt2")
    seldom = ["evaluation.every=1000 steps", "watch.activations.every=1000 steps"]
    directory = run.train("sim", 500, *seldom, nodes=2, fault=Fault(kind, 1, LAUNCH))
    return run, reports(directory)


def reports(directory: RunDirectory) -> list[dict[str, Any]]:
    found = [event for event in directory.history() if event["event"] == "stuck"]
    first = {(event["node"], event["local_rank"]): event for event in reversed(found)}
    assert all(event["seconds"] <= WITHIN_SECONDS for event in first.values())
    return [first[place] for place in sorted(first)]


def test_a_device_that_hangs(
    programs: WorkerPrograms, tmp_path: Path, stream: dict[str, Path]
) -> None:
    _, found = train(programs, tmp_path, stream, "hangs")
    assert [(event["node"], event["waits"]) for event in found] == [(0, True), (1, False)]
    assert "node 1 is not waiting for others" in stuck_text(found, "it", 1)


def test_a_collective_that_never_completes(
    programs: WorkerPrograms, tmp_path: Path, stream: dict[str, Path]
) -> None:
    """All wait in it, and each says so."""
    _, found = train(programs, tmp_path, stream, "never")
    assert [(event["node"], event["waits"]) for event in found] == [(0, True), (1, True)]


def test_a_device_that_breaks(
    programs: WorkerPrograms, tmp_path: Path, stream: dict[str, Path]
) -> None:
    run, found = train(programs, tmp_path, stream, "breaks")
    assert run.ends[1].code == Exit.DEVICE_LOST
    assert BROKEN in run.ends[1].log
    # It has ended, and its launcher knows; the other one waits until it is stopped.
    assert [(event["node"], event["waits"]) for event in found] == [(0, True)]


def test_a_collective_that_fails(
    programs: WorkerPrograms, tmp_path: Path, stream: dict[str, Path]
) -> None:
    run, found = train(programs, tmp_path, stream, "fails")
    assert run.ends[1].code == Exit.PEER_LOST
    assert [(event["node"], event["waits"]) for event in found] == [(0, True)]
