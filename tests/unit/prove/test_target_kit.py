"""The kit on a target, with another program in the place of headway and a target that is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.errors import RunFailed
from headway.prove.judge import ProofFailed, pause_at_change
from headway.prove.program import Program
from headway.prove.target_checks import TargetChecks, TargetNodes
from headway.spec.quantities import Accelerators
from headway.state.run_directory import RunDirectory
from support.in_process import Headway

FAILS = (sys.executable, "-c", "import sys; sys.exit('error: there is no such image')")
WORKS = (sys.executable, "-c", "")
TWO = TargetNodes(2, None)


class WhileAsked(SystemClock):
    """Time passes while a run is waited for, and none while commands run, however slowly."""

    passed = 0.0

    def monotonic(self) -> float:
        return self.passed


class NoTarget:
    """Runs are accepted, and never get anywhere unless they are said to have finished."""

    name = "lab"

    def __init__(self, folder: Path, finished: bool = False, why_failed: str | None = None) -> None:
        self.folder = folder
        self.clock = WhileAsked()
        self.finished = finished
        self.why_failed = why_failed
        self.removed: list[str] = []

    def directory(self, run: str) -> RunDirectory:
        return RunDirectory.create(self.folder / run, SystemClock())

    def status(self, run: str) -> dict[str, Any] | None:
        return {"step": 3, "checkpoint_step": None}

    def has_finished(self, run: str) -> bool:
        self.clock.passed += 10.0
        if self.why_failed is not None:
            raise RunFailed(self.why_failed)
        return self.finished

    def num_machines(self, run: str) -> int:
        return 2

    def delete_last_pod(self, run: str) -> None:
        raise AssertionError("nothing is saved yet")

    def remove(self, run: str) -> None:
        self.removed.append(run.split("-", 2)[-1])


def test_where_every_command_fails_every_check_does_and_every_run_is_deleted(
    tmp_path: Path,
) -> None:
    target = NoTarget(tmp_path)
    checks = list(TargetChecks(Program(tmp_path, SystemClock(), 60, FAILS), target, TWO).results())
    assert [check.outcome for check in checks] == ["failed"] * 7 + ["not run"]
    assert "there is no such image" in checks[0].figure
    assert checks[5].figure == "there is no run of one node to compare with"
    assert target.removed == ["equal-none", "equal-all", "deleted", "moved", "alone"]


def test_a_run_that_does_not_end_is_named_and_deleted(tmp_path: Path) -> None:
    target = NoTarget(tmp_path)
    program = Program(tmp_path, target.clock, 60, WORKS)
    checks = list(TargetChecks(program, target, TWO).results())
    assert "s for run prove-" in checks[0].figure
    assert "-alone to finish" in checks[0].figure
    assert checks[1].figure == "not reached in time"
    assert target.removed[-1] == "alone"


def test_a_run_that_fails_on_the_target_is_a_result(tmp_path: Path) -> None:
    target = NoTarget(tmp_path, why_failed="run alone has failed: out of memory")
    program = Program(tmp_path, SystemClock(), 60, WORKS)
    checks = list(TargetChecks(program, target, TWO).results())
    assert checks[0].figure.startswith("run alone has failed: out of memory")
    assert {check.outcome for check in checks[:-1]} == {"failed"}


def test_a_run_that_ends_before_its_pod_is_deleted_proves_nothing(tmp_path: Path) -> None:
    target = NoTarget(tmp_path, finished=True)
    program = Program(tmp_path, SystemClock(), 60, WORKS)
    checks = list(TargetChecks(program, target, TWO).results())
    assert checks[3].outcome == "failed"
    assert checks[3].figure == "the run ended before one of its pods could be deleted"


def test_every_worker_has_a_micro_batch() -> None:
    assert TWO.global_batch == 16
    eight = TargetNodes(4, Accelerators("H100", 8))
    assert (eight.num_workers, eight.global_batch, eight.is_cpu) == (32, 128, False)


def line(step: int, generation: int, second: int) -> dict[str, Any]:
    time = f"2026-11-17T02:00:{second:02d}.000Z"
    return {"step": step, "loss": 5.0, "generation": generation, "time": time}


def test_the_pause_is_between_the_last_step_before_and_the_first_after() -> None:
    lines = [line(1, 1, 0), line(2, 1, 1), {"rewind": 1, "generation": 3}, line(2, 3, 11)]
    assert pause_at_change([*lines, line(3, 3, 13), line(4, 4, 17)]) == 10.0
    with pytest.raises(ProofFailed, match="no step was recorded after it"):
        pause_at_change(lines[:2])


def test_options_of_the_other_kind_of_proof_are_refused(headway: Headway, folder: Path) -> None:
    said = headway("prove", "--nodes", "3")
    assert (said.exit_code, "--nodes needs --on" in said.err) == (2, True)
    said = headway("prove", "--on", "lab", "--devices", "3")
    assert (said.exit_code, "--devices is for this machine" in said.err) == (2, True)
    said = headway("prove", "--on", "lab")
    assert said.exit_code == 3
    assert not (folder / "prove").exists(), "nothing is left of it"
