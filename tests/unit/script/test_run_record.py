"""That a run has finished reaches its store, even one that does not answer for a while, and is read
by those who come later."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from headway.clock import stamp
from headway.errors import Exit
from headway.script.place import Place
from headway.script.run_record import (
    FINISHED_SEND_SECONDS,
    SEND_SECONDS,
    RunRecord,
    ScriptHistory,
)
from headway.state.chain import Chain
from headway.state.run_directory import RunDirectory
from support.chains import LAUNCH, launched
from support.chains import begun as begin_chain
from support.fake_fork_server import ToldClock
from support.fake_s3 import fake_s3


class Unreliable:
    """A log whose store is away for some time."""

    def __init__(self, clock: ToldClock) -> None:
        self.clock = clock
        self.pending: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.away_until = 0.0
        self.held = Event()
        self.held.set()
        self.is_held = Event()

    def append(self, *records: Any) -> None:
        self.pending += records

    def flush(self) -> None:
        taken = list(self.pending)
        self.is_held.set()
        assert self.held.wait(60)
        if self.clock.time < self.away_until:
            raise OSError("the store is away")
        self.sent += taken  # type: ignore[arg-type]
        del self.pending[: len(taken)]


@pytest.fixture
def clock() -> ToldClock:
    return ToldClock()


@pytest.fixture
def log(clock: ToldClock) -> Unreliable:
    return Unreliable(clock)


@pytest.fixture
def record(tmp_path: Path, clock: ToldClock, log: Unreliable) -> RunRecord:
    directory = RunDirectory.create(tmp_path / "it", clock)
    directory.events = log  # type: ignore[assignment]
    return leader(directory, clock, 1)


def variables(rank: int, steps: Path) -> dict[str, str]:
    return {
        "HEADWAY_LAUNCH": LAUNCH,
        "HEADWAY_RANK": str(rank),
        "HEADWAY_STEPS": str(steps),
    }


def leader(directory: RunDirectory, clock: ToldClock, generation: int) -> RunRecord:
    place = Place(rank=0, num_workers=1, local_rank=0, ranks_per_node=1)
    launched(directory)
    environment = variables(0, directory.local / "steps")
    return RunRecord(directory, clock, generation, place, environment)


def names(log: Unreliable) -> list[str]:
    return [one["event"] for one in log.sent]


def test_a_store_that_is_away_for_half_a_minute_hears_that_the_run_has_finished(
    record: RunRecord, log: Unreliable, clock: ToldClock
) -> None:
    log.away_until = clock.time + 30
    record.end(Exit.DONE)
    assert names(log) == ["finished"]


def test_a_store_that_stays_away_holds_up_the_end_for_a_minute(
    record: RunRecord, log: Unreliable, clock: ToldClock
) -> None:
    log.away_until, began = clock.time + 1e6, clock.time
    record.end(Exit.DONE)
    assert names(log) == []
    assert FINISHED_SEND_SECONDS - 2 < clock.time - began <= FINISHED_SEND_SECONDS + 1


def test_an_upload_that_was_under_way_does_not_stand_for_the_last_one(
    record: RunRecord, log: Unreliable, clock: ToldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.held.clear()
    clock.sleep(SEND_SECONDS + 1)
    record.look()
    assert log.is_held.wait(60)
    append = log.append

    def and_then(*records: Any) -> None:
        append(*records)
        log.held.set()  # the old one goes on, without this event

    monkeypatch.setattr(log, "append", and_then)
    record.end(Exit.DONE)
    assert names(log) == ["finished"]


def test_how_the_script_took_the_request_to_stop_is_recorded(
    record: RunRecord, log: Unreliable
) -> None:
    record.end(Exit.STOPPED, "did not end within 110 s after SIGTERM: killed")
    (event,) = log.sent
    assert (event["event"], event["ended"]) == (
        "stopped",
        "did not end within 110 s after SIGTERM: killed",
    )


# A node that comes when the script has finished


def begun(tmp_path: Path, generation: int, *events: tuple[str, float, int]) -> ScriptHistory:
    """What rank 0 of a generation reads: events, each with its time and generation."""
    clock = ToldClock()
    directory = RunDirectory.create(tmp_path / "it", clock)
    began = clock.now()
    for name, seconds, number in events:
        log = directory.launcher if name == "launched" else directory.events
        log.append({"time": stamp(began + seconds), "event": name, "generation": number})
        if name == "started":
            begin_chain(directory, number, 0)
    return leader(directory, clock, generation).begin()


def recorded(tmp_path: Path) -> list[int]:
    return [*Chain(RunDirectory.open(tmp_path / "it")).beginnings_since(1)][::-1]


def test_a_start_after_the_script_has_finished_has_nothing_to_do_and_is_not_recorded(
    tmp_path: Path,
) -> None:
    before = begun(tmp_path, 5, ("launched", 0, 1), ("started", 1, 3), ("finished", 9, 3))
    assert before.has_finished
    assert recorded(tmp_path) == [3]


def test_a_finished_script_that_is_launched_again_runs_again(tmp_path: Path) -> None:
    first = [("launched", 0, 1), ("started", 1, 1), ("finished", 9, 1)]
    before = begun(tmp_path, 2, *first, ("launched", 20, 2))
    assert not before.has_finished
    assert recorded(tmp_path) == [1, 2]


def test_a_machine_whose_clock_is_ahead_does_not_finish_the_next_launch(tmp_path: Path) -> None:
    first = [("launched", 0, 1), ("started", 1, 1), ("finished", 3600, 1)]
    assert not begun(tmp_path, 2, *first, ("launched", 20, 2)).has_finished


def test_a_launch_that_has_not_reached_the_bucket_yet_is_known_on_its_machine(
    clock: ToldClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3():
        directory = RunDirectory.create("s3://bucket/it", clock)
        directory.launcher.append({"time": stamp(0), "event": "launched", "generation": 1})
        directory.events.append({"time": stamp(1), "event": "finished", "generation": 1})
        directory.launcher.flush()
        directory.events.flush()
        directory.launcher.append({"time": stamp(2), "event": "launched", "generation": 2})
        assert not leader(directory, clock, 2).begin().has_finished


# Rank 0 is gone before all had heard that it has noted the end


def heirs(tmp_path: Path, *events: str) -> tuple[list[RunRecord], RunDirectory]:
    """All ranks but the first, two of each of three nodes."""
    clock = ToldClock()
    directory = RunDirectory.create(tmp_path / "it", clock)
    directory.launcher.append({"time": stamp(0), "event": "launched", "generation": 1})
    directory.metrics.append({"step": 70, "generation": 1})
    for event in events:
        directory.events.append({"time": stamp(1), "event": event, "generation": 1})
    records = []
    for rank in range(1, 6):
        place = Place(rank=rank, num_workers=6, local_rank=rank % 2, ranks_per_node=2)
        launched(directory)
        environment = variables(rank, tmp_path / str(rank))
        records.append(RunRecord(directory, clock, 1, place, environment))
    return records, directory


def test_one_of_the_others_notes_it_with_the_newest_step(tmp_path: Path) -> None:
    records, directory = heirs(tmp_path)
    for record in records:
        record.end_for_leader()
    (event,) = directory.events.read()[0]
    assert (event["event"], event["generation"], event["step"]) == ("finished", 1, 70)


def test_nobody_notes_what_rank_0_has_noted(tmp_path: Path) -> None:
    records, directory = heirs(tmp_path, "finished")
    for record in records:
        record.end_for_leader()
    assert len(directory.events.read()[0]) == 1
