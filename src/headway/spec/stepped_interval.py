"""Intervals of checkpoints: one, or several that follow one another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from headway.spec.quantities import Interval, counted, plain

EXAMPLE = "[10 steps until 100, 50 steps until 2k, 1k steps]"


@dataclass(frozen=True)
class SteppedInterval:
    """`500 steps`, `10min`, or a list: `[10 steps until 100, 50 steps until 2k, 1k steps]`."""

    stages: tuple[tuple[int, int], ...]
    """(steps between two, last step): each of the first intervals, in order. The last step is one
    that is due."""
    rest: Interval
    """The interval after them, or the only one."""

    @classmethod
    def parse(cls, value: Any) -> SteppedInterval:
        if isinstance(value, SteppedInterval):
            return value
        if not isinstance(value, list):
            return cls((), Interval.parse(value))
        if not value:
            raise ValueError(f"an empty list is no interval; write for example {EXAMPLE}")
        *first, last = value
        if " until " in f"{last}":
            raise ValueError(
                f"{str(last)!r} is the last interval and must hold to the end of the run: write it "
                f"without `until`, or add another, as in {EXAMPLE}"
            )
        stages: list[tuple[int, int]] = []
        for entry in first:
            every, until = _stage(entry)
            if stages and until <= stages[-1][1]:
                raise ValueError(f"{str(entry)!r} ends before the interval ahead of it does")
            stages.append((every, until))
        return cls(tuple(stages), Interval.parse(last))

    @property
    def is_by_steps(self) -> bool:
        """Whether no part of it is a time."""
        return self.rest.unit == "steps"

    def is_due(self, step: int, seconds: float = 0.0) -> bool:
        """After that step, `seconds` after the newest save."""
        for every, until in self.stages:
            if step <= until:
                return step % every == 0
        if self.rest.unit == "seconds":
            return seconds >= self.rest.amount
        return step % self.rest.amount == 0

    def newest_due(self, step: int) -> int:
        """The newest step up to this one that was due; 0 if none was. By steps only."""
        assert self.is_by_steps
        before = 0
        for every, until in self.stages:
            if step <= until:
                return max(before, step // every * every)
            before = until
        every = int(self.rest.amount)
        return max(before, step // every * every)

    def num_due(self, steps: int) -> int:
        """Number of steps that are due in a run of so many. By steps only."""
        assert self.is_by_steps
        number = before = 0
        for every, until in (*self.stages, (int(self.rest.amount), steps)):
            end = min(until, steps)
            if end > before:
                number += end // every - before // every
                before = end
        return number

    def written(self) -> str | list[str]:
        """As a run file has it."""
        if not self.stages:
            return str(self.rest)
        first = [f"{plain(every)} steps until {plain(until)}" for every, until in self.stages]
        return [*first, str(self.rest)]

    def __str__(self) -> str:
        written = self.written()
        return written if isinstance(written, str) else f"[{', '.join(written)}]"


def _stage(entry: Any) -> tuple[int, int]:
    """(steps between two, last step) of text such as `10 steps until 100`."""
    example = "10 steps until 100"
    match = re.fullmatch(r"(.+?) until (.+?)(?: steps?)?", str(entry).strip())
    if match is None:
        raise ValueError(
            f"{str(entry)!r} is not the last interval and needs an end; write for example {example}"
        )
    every, _ = counted(match[1], ("steps",), example)
    until, _ = counted(f"{match[2]} steps", ("steps",), example)
    if not isinstance(every, int) or not isinstance(until, int):
        raise ValueError(f"{str(entry)!r} is not in whole numbers of steps")
    if until % every:
        raise ValueError(
            f"{str(entry)!r}: {until} is not a multiple of {every}, so it would not be due itself"
        )
    return every, until


SteppedIntervalField = Annotated[
    SteppedInterval,
    PlainValidator(SteppedInterval.parse),
    PlainSerializer(SteppedInterval.written),
    WithJsonSchema(
        {
            "type": ["string", "array"],
            "items": {"type": "string"},
            "description": "steps or time; or a list of intervals, all but the last with an end",
            "examples": ["500 steps", "10min", ["10 steps until 100", "1k steps"]],
        }
    ),
]


def parse_or_auto(value: Any) -> SteppedInterval | Literal["auto"]:
    if value == "auto":
        return "auto"
    return SteppedInterval.parse(value)


def _written(interval: SteppedInterval | Literal["auto"]) -> str | list[str]:
    return "auto" if interval == "auto" else interval.written()


AutoIntervalField = Annotated[
    SteppedInterval | Literal["auto"],
    PlainValidator(parse_or_auto),
    PlainSerializer(_written),
    WithJsonSchema(
        {
            "type": ["string", "array"],
            "items": {"type": "string"},
            "description": "steps or time; or a list of intervals, all but the last with an end; "
            "or auto",
            "examples": ["500 steps", "10min", ["10 steps until 100", "1k steps"], "auto"],
        }
    ),
]
