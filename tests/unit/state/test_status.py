"""What a run is doing, from its files alone, and which run is meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.clock import seconds_of, stamp
from headway.errors import BadInput, NotFound, SpecError
from headway.state.chain import KeptCheckpoint
from headway.state.checkpoints import folder_of
from headway.state.find_run import find_run, list_runs, runs_folder, split_step
from headway.state.run_directory import Journal, RunDirectory, send_logs
from headway.state.status import SHOWN_CHANGES, SIGN_OF_LIFE_SECONDS, read_status, watched
from support.chains import begun, recorded, saved_at
from support.fake_s3 import fake_s3

NOW = 1_800_000_000.0
FAILURE = "your code failed in step 3: ValueError: no\n  mine.py:5 in loss\nworker 1 ended"
HINT = "headway check --code"
LAUNCHERS = ("launched", "failed", "gave_back", "tries_again", "coordinator_lost")


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
        "started": {
            "total_steps": 300,
            "workers": 2,
            "generation": 3,
            "seconds": {"import": 2.0, "build": 1.0, "load": 0.0},
        },
        "failed": {"words": "x", "message": FAILURE, "hint": HINT, "node": 0, "local_rank": 1},
        "save_failed": {"reason": "No space left on device"},
    }
    for event in events:
        seen_by = directory.launcher if event in LAUNCHERS else directory.events
        Journal(seen_by, clock).note(event, **facts.get(event, {}))
        clock.time += 0.001  # one after the other, whoever saw it


@pytest.mark.parametrize(
    ("events", "at_rest", "held"),
    [
        ([], "stopped", "starting"),  # a fork that has not been started yet
        (["launched"], "lost", "starting"),
        (["launched", "started"], "lost", "running"),
        (["launched", "started", "saved", "skipped"], "lost", "running"),
        # It has said what it came to; workers that are still ending change nothing about it.
        (["launched", "started", "saved", "finished"], "finished", "finished"),
        (["launched", "started", "saved", "stopped"], "stopped", "stopped"),
        (["launched", "started", "failed"], "failed", "failed"),
        (["launched", "failed"], "failed", "failed"),
        # What an earlier start came to says nothing about this one.
        (["launched", "started", "stopped", "launched"], "lost", "starting"),
        (["launched", "started", "failed", "launched", "started"], "lost", "running"),
        (["launched", "failed", "launched", "started", "finished"], "finished", "finished"),
        # In an object store what the launcher saw arrives last.
        (["launched", "started", "stopped", "started", "saved"], "lost", "running"),
        # It could not get its nodes, and somebody stopped it while it waited.
        (["launched", "gave_back"], "stopped", "waiting"),
        (["launched", "started", "gave_back", "saved", "stopped"], "stopped", "waiting"),
        (["launched", "gave_back", "coordinator_lost"], "stopped", "waiting"),
        (["launched", "started", "gave_back", "stopped", "tries_again"], "lost", "starting"),
        # A save may end, or its failure be noted, after the run has said how it ended.
        (["launched", "started", "stopped", "saved"], "stopped", "stopped"),
    ],
)
def test_the_state(
    directory: RunDirectory, clock: Stopped, events: list[str], at_rest: str, held: str
) -> None:
    happened(directory, clock, *events)
    assert read_status(directory, NOW).state == at_rest
    with directory.held():
        assert read_status(RunDirectory(directory.location), NOW).state == held


def test_a_killed_launcher_leaves_a_lost_run(directory: RunDirectory, clock: Stopped) -> None:
    code = (
        "import sys\nfrom headway.state.run_directory import RunDirectory\n"
        "with RunDirectory(sys.argv[1]).held():\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    happened(directory, clock, "launched", "started")
    command = [sys.executable, "-c", code, directory.location]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "held\n"
        assert read_status(directory, NOW).state == "running"
        launcher.kill()
    assert read_status(directory, NOW).state == "lost"


def step(number: int, **more: Any) -> dict[str, Any]:
    return {
        "step": number,
        "time": stamp(NOW),
        "loss": 2.5,
        "tokens_per_second": 1000.0,
        "seconds": 0.5,
        "data_seconds": 0.0,
        **more,
    }


def test_the_figures_of_a_run_that_goes_on(directory: RunDirectory, clock: Stopped) -> None:
    happened(directory, clock, "launched", "started")
    # Steps 99 and 100 were done twice; the first time 99 was skipped, the second time 100 was.
    for line in (
        step(98),
        step(99, skipped="the loss is nan"),
        step(100),
        {"rewind": 98},
        step(99),
        step(100, skipped="the loss is nan"),
    ):
        directory.metrics.append(line)
    for line in (
        {"step": 50, "set": "held-out", "loss": 3.0},
        {"step": 99, "set": "added later", "loss": 9.0},
        {"rewind": 98},
        {"step": 100, "set": "held-out", "loss": 2.75},
    ):
        directory.evaluations.append(line)
    saved_at(directory, 80)
    clock.time = NOW + 5
    happened(directory, clock, "saved")
    with directory.held():
        status = read_status(RunDirectory(directory.location), NOW + 65)
    assert (status.name, status.step, status.total_steps, status.loss) == ("it", 100, 300, 2.5)
    assert (status.tokens_per_second, status.seconds_left, status.workers) == (1000, 100, 2)
    assert status.evaluations == {"held-out": 2.75}
    assert (status.checkpoint_step, status.checkpoint_age_seconds) == (80, pytest.approx(60))
    assert (status.skipped_steps, status.failure) == (1, None)
    assert (status.generation, status.save_failure) == (3, None)
    assert status.goodput is not None
    assert status.goodput.lost_seconds["redone"] == 1.0
    assert status.as_json()["state"] == "running"


def test_the_figures_of_a_run_that_has_done_nothing(directory: RunDirectory) -> None:
    status = read_status(directory, NOW)
    assert (status.step, status.total_steps, status.loss, status.evaluations) == (0, None, None, {})
    assert (status.checkpoint_step, status.seconds_left, status.workers) == (None, None, None)
    assert (status.goodput, status.generation, status.save_failure) == (None, None, None)


def test_a_checkpoint_that_does_not_count_is_not_shown(
    directory: RunDirectory, clock: Stopped
) -> None:
    chain = begun(directory, 1, 0)
    for number in (40, 80):
        recorded(chain, KeptCheckpoint(step=number, generation=1, digest="d"))
    begun(directory, 2, 40)
    directory.store.write(f"{folder_of(90, 2)}/manifest.json", b"")
    assert read_status(directory, NOW).checkpoint_step == 40


def test_saves_that_fail_are_said_until_one_succeeds(
    directory: RunDirectory, clock: Stopped
) -> None:
    happened(directory, clock, "launched", "started", "saved", "save_failed")
    assert read_status(directory, NOW).save_failure == "No space left on device"
    happened(directory, clock, "evaluated", "save_failed")
    assert read_status(directory, NOW).save_failure == "No space left on device"
    happened(directory, clock, "saved")
    assert read_status(directory, NOW).save_failure is None


def test_a_run_elsewhere_goes_on_as_long_as_it_gives_signs_of_life(
    tmp_path: Path, clock: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an object store there is no lock to look at: what it last sent tells."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    with fake_s3():
        writer = RunDirectory.create("s3://bucket/runs/it", clock)
        happened(writer, clock, "launched", "started")
        writer.launcher.flush()
        send_logs(writer)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
        here = RunDirectory.open("s3://bucket/runs/it")
        assert read_status(here, NOW + 1).state == "running"
        assert read_status(here, NOW + 2 * SIGN_OF_LIFE_SECONDS).state == "lost"
        writer.metrics.append(step(1, time=stamp(NOW + 2 * SIGN_OF_LIFE_SECONDS)))
        send_logs(writer)
        assert read_status(here, NOW + 2 * SIGN_OF_LIFE_SECONDS).state == "running"
        happened(writer, clock, "finished")
        send_logs(writer)
        assert read_status(here, NOW + 9 * SIGN_OF_LIFE_SECONDS).state == "finished"
        assert [run.name for run in list_runs("s3://bucket/runs")] == ["it"]
        assert find_run("s3://bucket/runs/it", Path("/")).location == "s3://bucket/runs/it"


def changed(directory: RunDirectory, clock: Stopped, generation: int, workers: int) -> None:
    Journal(directory.events, clock).note(
        "changed",
        generation=generation,
        step=100,
        workers=workers,
        reason=f"reason {generation}",
        discarded=generation % 2 == 0,
        seconds=0.5,
    )
    clock.time += 1


def test_the_members_are_those_of_the_newest_generation(
    directory: RunDirectory, clock: Stopped
) -> None:
    happened(directory, clock, "launched", "started")
    changed(directory, clock, generation=4, workers=1)
    changed(directory, clock, generation=5, workers=7)
    status = read_status(directory, NOW)
    assert (status.workers, status.generation) == (7, 5)
    first, second = status.changes
    assert (first.time, first.reason, first.discarded) == (stamp(NOW + 0.002), "reason 4", True)
    assert (second.workers, second.generation, second.seconds) == (7, 5, 0.5)
    happened(directory, clock, "stopped", "launched", "started")
    status = read_status(directory, NOW)
    assert (status.workers, status.generation) == (2, 3), "of this start"


def test_the_newest_changes_are_shown_and_all_of_them_count(
    directory: RunDirectory, clock: Stopped
) -> None:
    happened(directory, clock, "launched", "started")
    for generation in range(4, 4 + 3 * SHOWN_CHANGES):
        changed(directory, clock, generation, workers=2)
    status = read_status(directory, NOW)
    assert len(status.changes) == SHOWN_CHANGES
    assert status.changes[-1].generation == status.generation == 3 + 3 * SHOWN_CHANGES
    assert status.as_json()["changes"][-1]["reason"] == f"reason {status.generation}"


def test_what_launchers_note_of_their_workers_changes_no_state(
    directory: RunDirectory, clock: Stopped
) -> None:
    happened(directory, clock, "launched", "started")
    changed(directory, clock, generation=4, workers=1)
    for event in ("worker", "lost", "left", "scaled", "coordinator_lost"):
        Journal(directory.launcher, clock).note(event)
        clock.time += 0.001
    with directory.held():
        assert read_status(RunDirectory(directory.location), NOW).state == "running"
    assert read_status(directory, NOW).state == "lost"


def test_survivors_that_save_and_stop_do_not_make_a_failure_undone(
    directory: RunDirectory, clock: Stopped
) -> None:
    happened(directory, clock, "launched", "started", "failed", "saved", "stopped")
    status = read_status(directory, NOW)
    assert (status.state, status.failure) == ("failed", FAILURE)
    happened(directory, clock, "launched", "started", "stopped")
    assert read_status(directory, NOW).state == "stopped"


def test_a_failure_is_told_as_the_terminal_told_it(directory: RunDirectory, clock: Stopped) -> None:
    happened(directory, clock, "launched", "started", "failed")
    directory.metrics.append(step(7))
    status = read_status(directory, NOW)
    assert (status.failure, status.failure_hint) == (FAILURE, HINT)
    assert status.seconds_left is None
    happened(directory, clock, "launched", "started", "finished")
    assert read_status(directory, NOW).failure is None, "of this start, not of an earlier one"


def test_a_stamp_is_read_back() -> None:
    assert seconds_of(stamp(NOW + 0.25)) == NOW + 0.25


# --- which run is meant


@pytest.fixture
def project(tmp_path: Path, directory: RunDirectory) -> Path:
    directory.log(0, 0).parent.mkdir()
    (tmp_path / "run.yaml").write_text("version: 1\nname: it\n")
    return tmp_path


@pytest.mark.parametrize(
    "reference", [None, "it", "runs/it", "./runs/it/", "run.yaml", ".", "runs/it/logs/.."]
)
def test_a_run_by_anything_people_call_it(project: Path, reference: str | None) -> None:
    found = find_run(reference, project)
    assert (found.location, found.name) == (str(project / "runs" / "it"), "it")


def test_a_run_by_its_full_path_or_from_another_folder(project: Path) -> None:
    assert find_run(str(project / "runs" / "it"), Path("/")).name == "it"
    assert find_run(str(project), Path("/")).name == "it"
    assert find_run("..", project / "runs" / "it" / "logs").name == "it"


def test_names_are_looked_up_where_the_run_file_stores(project: Path, clock: Stopped) -> None:
    (project / "run.yaml").write_text("version: 1\nname: it\nstorage: elsewhere\n")
    RunDirectory.create(project / "elsewhere" / "other", clock)
    assert runs_folder(project) == str(project / "elsewhere")
    assert find_run("other", project).location == str(project / "elsewhere" / "other")
    assert [run.name for run in list_runs(runs_folder(project))] == ["other"]


def test_without_a_run_file_names_are_in_runs(tmp_path: Path, directory: RunDirectory) -> None:
    assert find_run("it", tmp_path).location == directory.location
    with pytest.raises(NotFound, match=r"no run file at"):
        find_run(None, tmp_path)


def test_no_such_run(project: Path) -> None:
    with pytest.raises(NotFound, match="no run 'other'"):
        find_run("other", project)
    (project / "run.yaml").write_text("version: 1\nname: not-yet\n")
    with pytest.raises(NotFound, match="no run at"):
        find_run(None, project)
    with pytest.raises(BadInput, match="is not supported"):
        find_run("ftp://bucket/it", project)
    with fake_s3(), pytest.raises(NotFound, match="no run at s3://bucket/it"):
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


def test_one_that_asks_again_and_again_reads_each_line_once(
    directory: RunDirectory, clock: Stopped
) -> None:
    again = watched(directory)

    def step(number: int, generation: int) -> dict[str, Any]:
        figures = {"loss": 2.0 / number, "perplexity": 3.0, "seconds": 0.5, "data_seconds": 0.1}
        time = stamp(clock.now())
        line = {"step": number, "generation": generation, "time": time, "tokens_per_second": 9.0}
        return {**line, **figures}

    happened(directory, clock, "launched", "started")
    directory.metrics.append(step(1, 1), step(2, 1))
    directory.evaluations.append({"step": 2, "generation": 1, "set": "held-out", "loss": 1.5})
    first = read_status(again, NOW)
    assert first == read_status(directory, NOW)
    assert (first.step, first.evaluations) == (2, {"held-out": 1.5})
    directory.metrics.append({"rewind": 1, "generation": 2}, step(2, 2), step(3, 2))
    happened(directory, clock, "saved", "finished")
    expected = read_status(directory, NOW)
    for path in Path(directory.location).glob("*.jsonl"):
        content = path.read_bytes()
        begin = content.index(b"\n")
        path.write_bytes(b"#" * begin + content[begin:])  # nobody looks there again
    assert read_status(again, NOW) == expected
    assert (expected.step, expected.state) == (3, "finished")
