"""Time left: within a fifth of the truth after a tenth of a run, of whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headway.clock import stamp
from headway.state.time_left import TimeLeft, seconds_left

START = 1.8e9
TOTAL = 1000
Pace = Callable[[int], float]
Records = list[dict[str, Any]]

KINDS: dict[str, Pace] = {
    "even": lambda step: 0.5,
    "a first step that compiles": lambda step: 60.0 if step == 1 else 0.5,
    "a save every 50 steps": lambda step: 5.0 if step % 50 == 0 else 0.5,
    "noisy": lambda step: (0.1, 0.2, 0.9, 0.8)[step % 4],
    "steps of a millisecond": lambda step: 0.001,
    "steps of five minutes": lambda step: 300.0,
}


def started(time: float = START, **more: Any) -> dict[str, Any]:
    return {"event": "started", "time": stamp(time), "total_steps": TOTAL, **more}


def taken(pace: Pace, first: int, last: int, since: float = START) -> Records:
    """Steps as the metrics have them."""
    records, time = [], since
    for step in range(first, last + 1):
        time += pace(step)
        records.append({"step": step, "time": stamp(time), "seconds": pace(step)})
    return records


def told(events: Records, steps: Records) -> float | None:
    """As a terminal is told: by the time of what happens."""
    left = TimeLeft()
    for record in sorted([*events, *steps], key=lambda record: str(record["time"])):
        if "event" in record:
            left.event(record)
        else:
            left.step(record)
    return left.seconds()


@pytest.mark.parametrize("name", KINDS)
def test_after_a_tenth(name: str) -> None:
    pace = KINDS[name]
    truth = sum(pace(step) for step in range(TOTAL // 10 + 1, TOTAL + 1))
    found = told([started()], taken(pace, 1, TOTAL // 10))
    assert found == pytest.approx(truth, rel=0.2, abs=0.2)


@pytest.mark.parametrize("name", KINDS)
def test_status_says_what_the_terminal_says(name: str) -> None:
    pace = KINDS[name]
    steps = taken(pace, 1, 400)
    lost = {"event": "changed", "time": stamp(START + sum(map(pace, range(1, 301))) + 1e-3)}
    for events in ([started()], [started(), lost]):
        for until in (1, 3, 5, 299, 300, 301, 400):
            known = [e for e in events if e["time"] <= steps[until - 1]["time"]]
            assert seconds_left(steps[:until], known) == told(known, steps[:until]), until


def test_evaluations_count_before_the_first_one() -> None:
    """Each takes as long as 60 steps' forward passes, so 20 steps; there are 10 of them."""
    steps = taken(lambda step: 0.5, 1, 100)
    events = [started(evaluate_every=100, evaluation_batches=60)]
    assert told(events, steps) == pytest.approx(900 * 0.5 + 10 * 10, rel=0.01)
    assert seconds_left(steps, events) == told(events, steps)


def test_evaluations_count_by_what_they_took() -> None:
    steps = taken(lambda step: 5.5 if step % 100 == 1 and step > 1 else 0.5, 1, 250)
    times = [steps[100 * number]["time"] for number in (1, 2)]
    evaluated = [
        {"event": "evaluated", "time": time, "step": 100 * (number + 1), "seconds": 5.0}
        for number, time in enumerate(times)
    ]
    events = [started(evaluate_every=100, evaluation_batches=600), *evaluated]
    assert told(events, steps) == pytest.approx(750 * 0.5 + 8 * 5, rel=0.01)
    assert seconds_left(steps, events) == told(events, steps)
    at_100, first = steps[:100], events[:1]
    assert told(first, at_100) > told(events[:2], at_100), "that of step 100 is over"


def test_the_last_evaluation() -> None:
    steps = taken(lambda step: 0.5, 1, TOTAL)
    done = {"event": "evaluated", "time": stamp(START + 503), "step": TOTAL, "seconds": 3.0}
    events = [started(evaluate_every=300, evaluation_batches=6)]
    assert told(events, steps) == pytest.approx(1.0), "under way"
    assert told([*events, done], steps) == 0


def test_before_and_after() -> None:
    assert TimeLeft().seconds() is None
    assert seconds_left([], [started()]) is None
    assert told([started()], taken(lambda step: 2.0, 1, 1)) == 2.0 * (TOTAL - 1)
    assert told([started()], taken(KINDS["even"], 1, TOTAL)) == 0
    assert told([started()], taken(KINDS["even"], 1, TOTAL + 10)) == 0, "as after --set train_for"


@pytest.mark.parametrize("event", ["started", "changed"])
def test_a_new_start_or_other_members_have_another_speed(event: str) -> None:
    """A night lies between them, and the first steps after it are slow again."""
    steps = taken(KINDS["even"], 1, 100)
    morning = START + 30_000
    steps += taken(lambda step: 30.0 if step == 101 else 2.0, 101, 120, morning)
    events = [started(), {**started(morning), "event": event}]
    assert told(events, steps) == pytest.approx(880 * 2.0)
    assert seconds_left(steps, events) == told(events, steps)
    assert told(events, steps[:100]) == pytest.approx(900 * 0.5), "until it has taken a step"


def test_a_run_that_went_back() -> None:
    steps = taken(KINDS["even"], 1, 100)
    again = taken(KINDS["even"], 81, 200, START + 60)
    assert seconds_left([*steps[:80], *again], [started()]) == told([started()], [*steps, *again])
