"""What a run is doing, from its files alone, and which run is meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.clock import stamp
from headway.errors import BadInput, NotFound, SpecError
from headway.state.checkpoints import CheckpointManifest, commit, partial_folder
from headway.state.find import find_run, list_runs, runs_folder, split_step
from headway.state.rundir import Journal, RunDirectory
from headway.state.status import read_status, seconds_of

NOW = 1_800_000_000.0


class Stopped:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock() -> Stopped:
    return Stopped()


@pytest.fixture
def directory(tmp_path: Path, clock: Stopped) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "it", clock)


def happened(directory: RunDirectory, clock: Stopped, *events: str) -> None:
    facts: dict[str, dict[str, Any]] = {
        "started": {"total_steps": 300, "workers": 2},
        "failed": {"words": "Traceback\nValueError: upside down", "node": 0, "local_rank": 1},
    }
    for event in events:
        Journal(directory, clock).note(event, **facts.get(event, {}))


@pytest.mark.parametrize(
    ("events", "at_rest", "held"),
    [
        ([], "lost", "starting"),
        (["launched"], "lost", "starting"),
        (["launched", "started"], "lost", "running"),
        (["launched", "started", "saved", "skipped"], "lost", "running"),
        (["launched", "started", "saved", "finished"], "finished", "running"),
        (["launched", "started", "saved", "stopped"], "stopped", "running"),
        (["launched", "started", "failed"], "failed", "running"),
        (["launched", "failed"], "failed", "starting"),
        # What an earlier start came to says nothing about this one.
        (["launched", "started", "stopped", "launched"], "lost", "starting"),
        (["launched", "started", "failed", "launched", "started"], "lost", "running"),
        (["launched", "failed", "launched", "started", "finished"], "finished", "running"),
    ],
)
def test_the_state(
    directory: RunDirectory, clock: Stopped, events: list[str], at_rest: str, held: str
) -> None:
    happened(directory, clock, *events)
    assert read_status(directory, NOW).state == at_rest
    with directory.held():
        assert read_status(RunDirectory(directory.path), NOW).state == held


def test_a_killed_launcher_leaves_a_lost_run(directory: RunDirectory, clock: Stopped) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from headway.state.rundir import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).held():\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    happened(directory, clock, "launched", "started")
    command = [sys.executable, "-c", code, str(directory.path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "held\n"
        assert read_status(directory, NOW).state == "running"
        launcher.kill()
    assert read_status(directory, NOW).state == "lost"


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"step": number, "loss": 2.5, "tokens_per_second": 1000.0, "seconds": 0.5, **more}


def test_the_figures_of_a_run_that_goes_on(directory: RunDirectory, clock: Stopped) -> None:
    happened(directory, clock, "launched", "started", "skipped")
    for number in (99, 100):
        directory.metrics.append(step(number))
    for number, loss in ((50, 3.0), (100, 2.75)):
        directory.evaluations.append({"step": number, "set": "held-out", "loss": loss})
    partial = partial_folder(directory, 80)
    manifest = CheckpointManifest(
        step=80, run="it", created="", headway="", data_digest="", scalars={}, files={}
    )
    commit(directory, partial, manifest)
    clock.time += 5
    happened(directory, clock, "saved")
    with directory.held():
        status = read_status(RunDirectory(directory.path), NOW + 65)
    assert (status.name, status.step, status.total_steps, status.loss) == ("it", 100, 300, 2.5)
    assert (status.tokens_per_second, status.seconds_left, status.workers) == (1000, 100, 2)
    assert status.evaluations == {"held-out": 2.75}
    assert (status.checkpoint_step, status.checkpoint_age_seconds) == (80, pytest.approx(60))
    assert (status.skipped_steps, status.failure) == (1, None)
    assert status.as_json()["state"] == "running"


def test_the_figures_of_a_run_that_has_done_nothing(directory: RunDirectory) -> None:
    status = read_status(directory, NOW)
    assert (status.step, status.total_steps, status.loss, status.evaluations) == (0, None, None, {})
    assert (status.checkpoint_step, status.seconds_left, status.workers) == (None, None, None)


def test_the_cause_of_a_failure_is_its_last_line(directory: RunDirectory, clock: Stopped) -> None:
    happened(directory, clock, "launched", "started", "failed")
    directory.metrics.append(step(7))
    status = read_status(directory, NOW)
    assert (status.failure, status.seconds_left) == ("ValueError: upside down", None)
    happened(directory, clock, "launched", "started", "finished")
    assert read_status(directory, NOW).failure is None, "of this start, not of an earlier one"


def test_a_stamp_is_read_back() -> None:
    assert seconds_of(stamp(NOW + 0.25)) == NOW + 0.25


# --- which run is meant


@pytest.fixture
def project(tmp_path: Path, directory: RunDirectory) -> Path:
    (tmp_path / "run.yaml").write_text("version: 1\nname: it\n")
    return tmp_path


@pytest.mark.parametrize(
    "reference", [None, "it", "runs/it", "./runs/it/", "run.yaml", ".", "runs/it/logs/.."]
)
def test_a_run_by_anything_people_call_it(project: Path, reference: str | None) -> None:
    found = find_run(reference, project)
    assert (found.path, found.name) == (project / "runs" / "it", "it")


def test_a_run_by_its_full_path_or_from_another_folder(project: Path) -> None:
    assert find_run(str(project / "runs" / "it"), Path("/")).name == "it"
    assert find_run(str(project), Path("/")).name == "it"
    assert find_run("..", project / "runs" / "it" / "logs").name == "it"


def test_names_are_looked_up_where_the_run_file_stores(project: Path, clock: Stopped) -> None:
    (project / "run.yaml").write_text("version: 1\nname: it\nstorage: elsewhere\n")
    RunDirectory.create(project / "elsewhere" / "other", clock)
    assert runs_folder(project) == project / "elsewhere"
    assert find_run("other", project).path == project / "elsewhere" / "other"
    assert [run.name for run in list_runs(runs_folder(project))] == ["other"]


def test_without_a_run_file_names_are_in_runs(tmp_path: Path, directory: RunDirectory) -> None:
    assert find_run("it", tmp_path).path == directory.path
    with pytest.raises(NotFound, match=r"no run file at"):
        find_run(None, tmp_path)


def test_no_such_run(project: Path) -> None:
    with pytest.raises(NotFound, match="no run 'other'"):
        find_run("other", project)
    (project / "run.yaml").write_text("version: 1\nname: not-yet\n")
    with pytest.raises(NotFound, match="no run at"):
        find_run(None, project)
    with pytest.raises(BadInput, match="by URL"):
        find_run("s3://bucket/it", project)
    (project / "run.yaml").write_text("version: 1\nnam: x\n")
    with pytest.raises(SpecError):
        find_run(None, project)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("it@300", ("it", 300)),
        ("runs/it@0", ("runs/it", 0)),
        ("it", ("it", None)),
        ("a@b@7", ("a@b", 7)),
        ("it@newest", ("it@newest", None)),
    ],
)
def test_a_step_of_a_run(reference: str, expected: tuple[str, int | None]) -> None:
    assert split_step(reference) == expected
