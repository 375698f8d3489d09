"""Runs beside each other: how each did, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from headway.report.run_data import RunData, differing_settings, lowest


@dataclass(frozen=True)
class LossPair:
    last: float | None
    best: float | None


@dataclass(frozen=True)
class ComparedRun:
    name: str
    state: str
    step: int
    total_steps: int | None
    loss: LossPair
    validation: dict[str, LossPair]
    """By validation set."""
    tokens_per_second: float | None
    goodput: float | None
    seconds: float | None
    """Time from each launch to its last record: without the time between two launches."""
    interruptions: int
    interrupted_seconds: float


@dataclass(frozen=True)
class Comparison:
    runs: list[ComparedRun]
    settings: dict[str, list[str]]
    """Keys whose values differ, with the value in each run."""

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def compare_runs(runs: Sequence[RunData]) -> Comparison:
    return Comparison([_compared(run) for run in runs], differing_settings(runs))


def _compared(run: RunData) -> ComparedRun:
    status, goodput = run.status, run.status.goodput
    interruptions = run.interruptions
    return ComparedRun(
        name=run.name,
        state=status.state,
        step=status.step,
        total_steps=status.total_steps,
        loss=LossPair(status.loss, lowest(run.series.get("loss", ([], [])))),
        validation={
            name: LossPair(status.evaluations.get(name), lowest(series))
            for name, series in run.evaluations.items()
        },
        tokens_per_second=run.tokens_per_second,
        goodput=goodput.ratio if goodput is not None else None,
        seconds=goodput.total_seconds if goodput is not None else None,
        interruptions=len(interruptions),
        interrupted_seconds=round(sum(one.seconds for one in interruptions), 3),
    )
