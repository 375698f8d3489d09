"""Intervals of checkpoints that follow one another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.spec.located_yaml import read_yaml
from headway.spec.quantities import Interval
from headway.spec.run_file import CheckpointConfig, KeepConfig
from headway.spec.stepped_interval import SteppedInterval

DENSE_FIRST = ["10 steps until 100", "50 steps until 2k", "100 steps until 20k", "1k steps"]


@st.composite
def stepped(draw: st.DrawFn) -> SteppedInterval:
    stages, end = [], 0
    for every in draw(st.lists(st.integers(1, 12), max_size=3)):
        until = (end // every + draw(st.integers(1, 6))) * every
        stages.append((every, until))
        end = until
    return SteppedInterval(tuple(stages), Interval(draw(st.integers(1, 12)), "steps"))


def test_dense_at_first_as_it_is_written() -> None:
    interval = SteppedInterval.parse(DENSE_FIRST)
    due = [step for step in range(1, 3001) if interval.is_due(step)]
    assert due[:12] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 150, 200]
    assert due[-12:-8] == [1950, 2000, 2100, 2200]
    assert interval.num_due(400_000) == 10 + 38 + 180 + 380
    assert interval.written() == DENSE_FIRST
    assert str(SteppedInterval.parse("10k steps")) == "10k steps"


@given(interval=stepped())
def test_each_due_step_once_and_the_newest_of_them(interval: SteppedInterval) -> None:
    due = [step for step in range(1, 200) if interval.is_due(step)]
    for steps in range(200):
        assert interval.num_due(steps) == sum(step <= steps for step in due)
        assert interval.newest_due(steps) == max((s for s in due if s <= steps), default=0)


@given(interval=stepped())
def test_there_and_back(interval: SteppedInterval) -> None:
    """Also through YAML, as a run file, and JSON, as the run directory has it."""
    assert SteppedInterval.parse(interval.written()) == interval
    assert SteppedInterval.parse(read_yaml(f"it: {interval}", "f").value["it"]) == interval
    config = CheckpointConfig(every=interval, keep=KeepConfig(every=interval))
    assert CheckpointConfig.model_validate_json(config.model_dump_json()) == config


def test_the_last_may_be_a_time() -> None:
    interval = SteppedInterval.parse(["10 steps until 100", "10min"])
    assert interval.is_due(50, seconds=1.0)
    assert not interval.is_due(55, seconds=1e6), "steps alone count until then"
    assert not interval.is_due(110, seconds=599.0)
    assert interval.is_due(101, seconds=600.0)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ([], "an empty list is no interval"),
        (["10 steps until 100"], "is the last interval and must hold to the end"),
        (["10 steps", "1k steps"], "'10 steps' is not the last interval and needs an end"),
        (["10min until 100", "1k steps"], "write for example 10 steps until 100"),
        (["10 steps until 1h", "1k steps"], "write for example 10 steps until 100"),
        (["10 steps until 95", "1k steps"], "95 is not a multiple of 10"),
        (["10 steps until 100", "20 steps until 80", "1h"], "ends before the interval ahead"),
        (["1.5 steps until 3", "1h"], "whole numbers"),
        (["10m until 100", "1h"], "ambiguous"),
        ("ten steps", "write for example 10min or 500 steps"),
        (["10 steps until 100", "often"], "write for example 10min or 500 steps"),
    ],
)
def test_what_is_wrong_is_said(written: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SteppedInterval.parse(written)


def test_milestones_are_counted_in_steps() -> None:
    with pytest.raises(ValidationError, match="must be in steps here"):
        KeepConfig.model_validate({"every": ["10 steps until 100", "10min"]})


def test_auto_is_left_to_headway_and_kept_as_written() -> None:
    config = CheckpointConfig.model_validate({"every": "auto"})
    assert config.every == "auto"
    assert config.model_dump(mode="json")["every"] == "auto"
    with pytest.raises(ValidationError, match="'automatic' is not a number with a unit"):
        CheckpointConfig.model_validate({"every": "automatic"})
    with pytest.raises(ValidationError, match="'auto' is not a number with a unit"):
        KeepConfig.model_validate({"every": "auto"})
