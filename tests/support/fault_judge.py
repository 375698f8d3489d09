"""One rule for all systems: what counts, how much of the time went into it, and which samples were
trained on. All of it is computed from what was noted at the end of each step, whoever trained."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

LEAST_STEPS = 5
Sample = tuple[int, int]
"""Epoch, and number of the sample in the data."""


class Trained(NamedTuple):
    """A step that was committed, by one part of the global batch."""

    time: float
    """Seconds since 1970."""
    step: int
    generation: int
    """Differs from that of the step before if the workers have changed in between."""
    part: int
    """Which part of the batch: a rank, a replica group, or 0 for all of it."""
    samples: tuple[Sample, ...]


def counted(lines: Iterable[Trained]) -> list[Trained]:
    """Each part of a step once: as it was last committed. The weights of earlier ones are gone."""
    newest: dict[tuple[int, int], Trained] = {}
    for line in sorted(lines):
        newest[line.step, line.part] = line
    return sorted(newest.values())


def usual_seconds(lines: Iterable[Trained]) -> float:
    """Median time from one step to the next."""
    times: dict[int, float] = {}
    for line in sorted(lines):
        times.setdefault(line.step, line.time)
    return statistics.median(after - before for before, after in pairwise(sorted(times.values())))


class Interval(NamedTuple):
    """From one fault to the next."""

    begin: float
    end: float
    usual: float
    """What a step takes undisturbed, by this machine at that time."""


def intervals(
    lines: Iterable[Trained],
    strikes: Sequence[float],
    begin: float,
    end: float,
    calm: tuple[float, float],
) -> list[Interval]:
    """The machine is not equally fast all the time: what a step takes undisturbed is the median of
    the last third of an interval, when its fault is over. If it is not (the workers change, or
    there are fewer than `LEAST_STEPS`), it is the mean of `calm`: of the times without faults
    before the first interval and after the last. These two have what is next to them."""
    some, found = list(lines), []
    mean = statistics.mean(calm)
    for first, last in pairwise([begin, *strikes, end]):
        late = [line for line in some if last - (last - first) / 3 < line.time <= last]
        is_over = len({line.generation for line in late}) == 1
        has_enough = len({line.step for line in late}) > LEAST_STEPS
        usual = usual_seconds(late) if is_over and has_enough else mean
        found.append(Interval(first, last, usual))
    found[0], found[-1] = found[0]._replace(usual=calm[0]), found[-1]._replace(usual=calm[1])
    return found


def goodput(lines: Iterable[Trained], times: Sequence[Interval], batch: int) -> float:
    """Samples that count, times what one takes undisturbed, over all of the time."""
    taken = counted(lines)
    useful = sum(
        one.usual / batch * sum(len(line.samples) for line in taken if _is_in(one, line))
        for one in times
    )
    return useful / (times[-1].end - times[0].begin)


def _is_in(interval: Interval, line: Trained) -> bool:
    return interval.begin < line.time <= interval.end


@dataclass(frozen=True)
class Samples:
    trained: int
    """Samples of all steps that count."""
    repeated: int
    """Of these, such that were trained on before in the same epoch."""
    lost: int
    """Samples of epochs that all parts have finished that were not trained on."""
    finished_epochs: int

    @property
    def are_exact(self) -> bool:
        return not self.repeated and not self.lost


def judge_samples(lines: Iterable[Trained], num_samples: int) -> Samples:
    """`num_samples`: of an epoch."""
    taken = counted(lines)
    seen = Counter(sample for line in taken for sample in line.samples)
    newest: dict[int, int] = {}
    for line in taken:
        epochs = [epoch for epoch, _ in line.samples]
        newest[line.part] = max([newest.get(line.part, 0), *epochs])
    finished = min(newest.values(), default=0)
    of_finished = sum(epoch < finished for epoch, _ in seen)
    return Samples(
        seen.total(), seen.total() - len(seen), finished * num_samples - of_finished, finished
    )


def next_steps(lines: Iterable[Trained], strikes: Sequence[float]) -> list[float | None]:
    """Seconds from each fault to the first step that was committed after a change of workers."""
    all_, found = sorted(lines), []
    for strike in strikes:
        before = [line.generation for line in all_ if line.time <= strike]
        after = (
            line.time - strike
            for line in all_
            if line.time > strike and line.generation != before[-1]
        )
        found.append(next(after, None))
    return found


def lost_seconds(lines: Iterable[Trained], times: Sequence[Interval]) -> dict[str, float]:
    """Time beyond what steps take undisturbed: where workers changed between two steps, and
    elsewhere (noise, saves, cores that newcomers take)."""
    firsts: dict[int, tuple[Trained, float]] = {}
    for line in counted(lines):
        for one in times:
            if _is_in(one, line):
                firsts.setdefault(line.step, (line, one.usual))
    found = {"changes": 0.0, "elsewhere": 0.0}
    for (before, _), (after, usual) in pairwise(sorted(firsts.values())):
        where = "changes" if after.generation != before.generation else "elsewhere"
        found[where] += after.time - before.time - usual
    return found


def redone_steps(lines: Iterable[Trained]) -> int:
    """Steps that were committed, and had to be committed again."""
    some = list(lines)
    part = min((line.part for line in some), default=0)
    steps = [line.step for line in some if line.part == part]
    return len(steps) - len(set(steps))
