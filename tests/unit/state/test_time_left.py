"""Time left: within a fifth of the truth after a tenth of a run, of whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.clock import stamp
from headway.state.time_left import TimeLeft, seconds_left

START = 1.8e9
TOTAL = 1000

KINDS: dict[str, Callable[[int], float]] = {
    "even": lambda step: 0.5,
    "a first step that compiles": lambda step: 60.0 if step == 1 else 0.5,
    "an evaluation every 50 steps": lambda step: 5.0 if step % 50 == 0 else 0.5,
    "noisy": lambda step: (0.1, 0.2, 0.9, 0.8)[step % 4],
    "steps of a millisecond": lambda step: 0.001,
    "steps of five minutes": lambda step: 300.0,
}


def told(kind: Callable[[int], float], until: int, every: int = 1) -> tuple[TimeLeft, float]:
    """Of every so many steps, as a terminal sees them; and the time since the start."""
    left, time = TimeLeft(), 0.0
    for step in range(1, until + 1):
        time += kind(step)
        if step % every == 0 or step == until:
            left.add({"step": step, "time": stamp(START + time), "seconds": kind(step)})
    return left, time


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("name", KINDS)
def test_after_a_tenth(name: str, every: int) -> None:
    kind = KINDS[name]
    left, so_far = told(kind, TOTAL // 10, every)
    truth = sum(kind(step) for step in range(1, TOTAL + 1)) - so_far
    assert left.seconds(TOTAL) == pytest.approx(truth, rel=0.2, abs=0.2)


@pytest.mark.parametrize("name", KINDS)
def test_status_says_the_same_as_the_terminal(name: str) -> None:
    kind, time, records = KINDS[name], 0.0, []
    terminal = TimeLeft()
    for step in range(1, 401):
        time += kind(step)
        records.append({"step": step, "time": stamp(START + time), "seconds": kind(step)})
        terminal.add(records[-1])
    shown = terminal.seconds(TOTAL)
    assert seconds_left(records, stamp(START), TOTAL) == pytest.approx(shown, rel=0.1, abs=0.1)
    later = stamp(START + time - kind(400) - 1e-4)
    assert seconds_left(records, later, TOTAL) == pytest.approx(600 * kind(400), abs=0.1)


def test_before_and_after() -> None:
    left = TimeLeft()
    assert left.seconds(TOTAL) is None
    left.add({"step": 1, "time": stamp(START), "seconds": 2.0})
    assert left.seconds(11) == 20.0
    done, _ = told(KINDS["even"], 100)
    assert done.seconds(100) == 0
    assert done.seconds(90) == 0, "as after --set train_for"


def test_a_run_that_was_stopped_for_a_night_is_not_slower() -> None:
    left, time = told(KINDS["even"], 100)
    left.start()
    for step in range(101, 121):
        time += 0.5
        left.add({"step": step, "time": stamp(START + 30_000 + time), "seconds": 0.5})
    assert left.seconds(TOTAL) == pytest.approx(440, rel=0.05)


def test_a_run_that_went_back_and_became_faster() -> None:
    left, time = told(lambda step: 10.0, 100)
    for step in range(81, 200):
        time += 1.0
        left.add({"step": step, "time": stamp(START + time), "seconds": 1.0})
    assert left.seconds(TOTAL) == pytest.approx(801, rel=0.05)
