"""Where a run's time went, from events made by hand: it adds up."""

from __future__ import annotations

from typing import Any

import pytest

from headway.clock import stamp
from headway.state.goodput import goodput

BEGIN = 1_800_000_000.0


def event(at: float, name: str, **facts: Any) -> dict[str, Any]:
    return {"time": stamp(BEGIN + at), "event": name, **facts}


def step(at: float, number: int, seconds: float, data: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "time": stamp(BEGIN + at),
        "step": number,
        "seconds": seconds,
        "data_seconds": data,
        **more,
    }


def started(at: float, importing: float, build: float, load: float) -> dict[str, Any]:
    return event(at, "started", seconds={"import": importing, "build": build, "load": load})


def test_nothing_was_done() -> None:
    assert goodput([], []) is None
    assert goodput([event(0, "launched"), started(10, 5, 1, 0)], []) is None
    assert goodput([event(0, "launched")], [{"rewind": 0}]) is None


# First start: launched at 0, ready at 10, steps of 2 s, one evaluation, one save, killed at 27.
# A night. Second start: launched at 1000, from step 2 on.
EVENTS = [
    event(0, "launched"),
    started(10, 6, 2, 0),
    event(18, "evaluated", seconds=3),
    event(19, "saving", held_seconds=1),
    event(20, "saved", seconds=4),
    event(1000, "launched"),
    started(1008, 5, 1, 1),
    event(1013, "changed", seconds=0.5),
    event(1014, "stopped"),
]
STEPS = [
    step(12, 1, 2, 0.5),
    step(14, 2, 2, 0.5),
    step(23, 3, 2),
    step(27, 4, 3),
    {"rewind": 2},
    step(1010, 3, 2, 0.25),
    step(1012, 4, 2, skipped="the loss is nan"),
]


def test_lost_time_by_cause() -> None:
    found = goodput(EVENTS, STEPS)
    assert found is not None
    assert found.lost_seconds == {
        "start": 2 + 1,  # before the first import could begin
        "import": 6 + 5,
        "build": 2 + 1,
        "load": 1,
        "redone": 2 + 3,  # the first attempts at steps 3 and 4
        "skipped": 2,
        "changes": 0.5,  # a member was lost
        "preparation": 0,
        "data": 0.5 + 0.5 + 0.25,
        "evaluation": 3,
        "saving": 1,  # the writing goes on beside training and is not lost
        "other": 27 + 14 - 30.75 - 4.75,
    }
    assert found.learning_seconds == 2 + 2 + 2 - 1.25
    assert found.total_seconds == 27 + 14
    assert found.ratio == pytest.approx(4.75 / 41, abs=1e-4)


def test_it_adds_up() -> None:
    found = goodput(EVENTS, STEPS)
    assert found is not None
    assert found.learning_seconds + sum(found.lost_seconds.values()) == found.total_seconds
    assert all(seconds >= 0 for seconds in found.lost_seconds.values())


def test_data_that_is_not_prepared_yet_is_a_cause_of_its_own() -> None:
    waits = {"import": 1, "build": 2, "load": 0, "preparation": 30}
    events = [event(0, "launched"), event(40, "started", seconds=waits)]
    steps = [step(52, 1, 12, 10, unprepared_seconds=9), step(54, 2, 2, 0.5)]
    found = goodput(events, steps)
    assert found is not None
    assert found.lost_seconds["preparation"] == 30 + 9
    assert found.lost_seconds["data"] == 1 + 0.5
    assert found.lost_seconds["build"] == 2
    assert found.lost_seconds["start"] == 40 - 33
    assert found.learning_seconds == 14 - 10.5
    assert found.learning_seconds + sum(found.lost_seconds.values()) == found.total_seconds


def test_workers_that_all_restart_because_another_joins_start_after_their_last_step() -> None:
    """Not once more since the launch: nothing was lost, and no launch is noted."""
    events = [event(0, "launched"), started(10, 6, 2, 0), started(33, 0, 1, 1)]
    steps = [step(20, 1, 10), step(30, 2, 10), step(43, 3, 10)]
    found = goodput(events, steps)
    assert found is not None
    assert found.lost_seconds["start"] == 2 + 1
    assert found.lost_seconds["other"] == 0
    assert found.learning_seconds + sum(found.lost_seconds.values()) == found.total_seconds


def test_a_night_in_between_is_not_the_runs_own_time() -> None:
    found = goodput(EVENTS, STEPS)
    assert found is not None
    assert found.down_seconds == 1000 - 27
    later = [event(10_000, "launched")]
    again = goodput([*EVENTS, *later], STEPS)
    assert again is not None
    assert again.down_seconds == 1000 - 27 + 10_000 - 1014
    assert again.total_seconds == found.total_seconds


def test_a_run_without_a_fault() -> None:
    events = [event(0, "launched"), started(1, 0.5, 0.25, 0)]
    found = goodput(events, [step(1 + n, n, 1.0) for n in range(1, 100)])
    assert found is not None
    assert (found.ratio, found.total_seconds, found.down_seconds) == (0.99, 100, 0)
    assert found.lost_seconds["start"] == 0.25
    assert found.lost_seconds["redone"] == found.lost_seconds["other"] == 0


def test_a_start_that_came_to_nothing_is_lost_all_the_same() -> None:
    failed = [event(100, "launched"), event(130, "failed")]
    events = [event(0, "launched"), started(1, 0, 0, 0), event(3, "stopped"), *failed]
    found = goodput(events, [step(3, 1, 2.0)])
    assert found is not None
    assert (found.total_seconds, found.lost_seconds["other"]) == (33, 30)
    assert found.down_seconds == 97


def test_as_json_for_status() -> None:
    found = goodput(EVENTS, STEPS)
    assert found is not None
    assert set(found.as_json()) == {
        "ratio",
        "total_seconds",
        "learning_seconds",
        "lost_seconds",
        "down_seconds",
    }


def test_the_pause_after_a_give_back_is_not_the_runs_own_time() -> None:
    """What the launcher notes in the pause is no sign that the run goes on; a last save is."""
    events = [
        event(0, "launched"),
        started(10, 6, 2, 0),
        event(1000, "gave_back"),
        event(1005, "saved", seconds=4),
        event(2000, "coordinator_lost"),
        event(3000, "scaled"),
        event(4600, "tries_again"),
    ]
    steps = [step(10 + 10 * n, n, 10) for n in range(1, 91)]
    found = goodput(events, steps)
    assert found is not None
    assert found.total_seconds == 1005
    assert found.ratio == pytest.approx(900 / 1005, abs=1e-4)
    again = [event(4610, "launched"), started(4620, 6, 2, 0), event(4630, "saved", seconds=4)]
    found = goodput([*events, *again], steps)
    assert found is not None
    assert found.total_seconds == 1005 + 20
    assert found.down_seconds == 4610 - 1005


def test_a_night_in_the_queue_is_not_the_runs_own_time_though_its_coordinator_is_lost() -> None:
    """Its queue has suspended it: there is no event of that, and its coordinator stays."""
    events = [event(0, "launched"), started(10, 6, 2, 0), event(915, "saved", seconds=4)]
    steps = [step(10 + 10 * n, n, 10) for n in range(1, 91)]
    events += [
        event(20_000, "coordinator_lost"),
        event(25_000, "scaled"),
        event(30_000, "launched"),
    ]
    found = goodput(events, steps)
    assert found is not None
    assert (found.total_seconds, found.down_seconds) == (915, 30_000 - 915)


def test_a_day_of_asking_for_kinds_of_which_none_is_free_is_not_the_runs_own_time() -> None:
    """It asks for one kind after the other, every 15 minutes, and holds nothing meanwhile."""
    events = [event(0, "launched"), started(10, 6, 2, 0), event(1000, "gave_back", held=1)]
    steps = [step(10 + 10 * n, n, 10) for n in range(1, 91)]
    before = goodput(events, steps)
    assert before is not None
    for begin in range(1000, 1000 + 24 * 3600, 900):
        events += [
            event(begin + 2, "tries_again"),
            event(begin + 4, "launched"),
            event(begin + 900, "gave_back", held=0),
        ]
    found = goodput(events, steps)
    assert found is not None
    assert found.total_seconds == before.total_seconds == 1000
    assert found.ratio == before.ratio
    events += [event(100_000, "launched"), event(100_900, "gave_back", held=1)]
    found = goodput(events, steps)
    assert found is not None
    assert found.total_seconds == 1000 + 900, "a machine that it held is its own time"
