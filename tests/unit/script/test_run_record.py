"""That a run has finished reaches its store, even one that does not answer for a while."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from headway.errors import Exit
from headway.script.place import Place
from headway.script.run_record import FINISHED_SEND_SECONDS, SEND_SECONDS, RunRecord
from headway.state.run_directory import RunDirectory
from support.fake_fork_server import ToldClock


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
    place = Place(rank=0, num_workers=1, local_rank=0, ranks_per_node=1)
    environment = {"HEADWAY_RANK": "0", "HEADWAY_STEPS": str(tmp_path / "steps")}
    return RunRecord(directory, clock, 1, place, environment)


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
