"""What pages, tables and screens show of one run, out of its run directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.clock import seconds_of
from headway.plan.outcome import OutcomeRow, outcome_rows
from headway.report.planned import kept_plan, measured_so_far
from headway.report.series import Series, thinned
from headway.state.interruptions import Pause, pauses
from headway.state.ledger import Verdict, verify_ledger
from headway.state.rewinds import Record, apply_rewinds
from headway.state.run_directory import RunDirectory
from headway.state.run_history import whole_history
from headway.state.status import RunStatus, status_of, watched

METRICS = {
    "loss": "Loss",
    "lr": "Learning rate",
    "grad_norm": "Gradient norm",
    "tokens_per_second": "Tokens per second",
    "mfu": "MFU",
}
"""Keys of a step's record, with their titles."""


MOST_SAMPLED = 12
"""Evaluations whose samples are shown."""


@dataclass(frozen=True)
class RunData:
    name: str
    status: RunStatus
    series: dict[str, Series]
    """By metric, over steps."""
    evaluations: dict[str, Series]
    """Loss of each validation set, over steps."""
    samples: dict[str, list[tuple[int, str]]]
    """Step and continuation of each prompt, at most MOST_SAMPLED of them."""
    members: Series
    """Number of workers over seconds since the first record."""
    pauses: list[Pause]
    tokens_per_second: float | None
    """Tokens of all steps that count, over their time."""
    start: float
    """Time of the first record."""
    end: float
    versions: dict[str, str]
    settings: dict[str, Any]
    """The resolved run file."""
    planned: list[OutcomeRow]
    """What was planned at its newest start beside what was measured; empty without a plan."""

    @property
    def is_script(self) -> bool:
        return self.settings.get("command") is not None

    @property
    def interruptions(self) -> list[Pause]:
        return [one for one in self.pauses if one.is_interruption]


def open_once(directory: RunDirectory) -> RunDirectory:
    """The same run directory, whose logs are read once, however often its data is asked for."""
    return watched(directory, tuple(METRICS))


def run_data(directory: RunDirectory, now: float) -> RunData:
    """`directory`: as `open_once` gives it."""
    events, taken = directory.history(), directory.metrics.read()[0]
    steps = apply_rewinds(taken)
    times = [seconds_of(record["time"]) for record in (*events, *steps)]
    start, end = (min(times), max(times)) if times else (now, now)
    started = [event for event in events if event["event"] == "started"]
    resolved = directory.read_spec()
    return RunData(
        name=directory.name,
        status=status_of(directory, whole_history(directory), now),
        series={key: found for key in METRICS if (found := _series(steps, key))[0]},
        evaluations=_evaluations(apply_rewinds(directory.evaluations.read()[0])),
        samples=_samples(apply_rewinds(directory.samples.read()[0])),
        members=_members(events, start, end),
        pauses=pauses(events, taken),
        tokens_per_second=_speed(steps),
        start=start,
        end=end,
        versions=started[-1].get("versions", {}) if started else {},
        settings=resolved.run.model_dump(mode="json", by_alias=True, exclude_none=True),
        planned=_planned(directory),
    )


def _planned(directory: RunDirectory) -> list[OutcomeRow]:
    plan = kept_plan(directory)
    return [] if plan is None else outcome_rows(plan, measured_so_far(directory))


def ledger_verdict(directory: RunDirectory) -> Verdict | None:
    """None for a script, which has no ledger."""
    if directory.read_spec().is_script:
        return None
    forked = directory.record().get("forked_from")
    return verify_ledger(directory.ledger.read()[0], forked["step"] if forked else 0)


def lowest(series: Series) -> float | None:
    return min((value for value in series[1] if value is not None), default=None)


def _speed(steps: Sequence[Record]) -> float | None:
    counted = [step for step in steps if step["tokens_per_second"] is not None]
    seconds = sum(step["seconds"] for step in counted)
    tokens = sum(step["tokens_per_second"] * step["seconds"] for step in counted)
    return tokens / seconds if seconds else None


def _series(steps: Sequence[Record], key: str) -> Series:
    having = [step for step in steps if key in step]
    if all(step[key] is None for step in having):  # what a script does not tell
        return [], []
    return thinned([step["step"] for step in having], [step[key] for step in having])


def _evaluations(records: Sequence[Record]) -> dict[str, Series]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["set"], []).append(record)
    return {
        name: thinned([one["step"] for one in each], [one["loss"] for one in each])
        for name, each in found.items()
    }


def _samples(records: Sequence[Record]) -> dict[str, list[tuple[int, str]]]:
    steps = sorted({record["step"] for record in records})
    last = len(steps) - 1
    # Evenly spaced, the first and the last among them.
    shown = {steps[round(last * n / (MOST_SAMPLED - 1))] for n in range(MOST_SAMPLED) if steps}
    found: dict[str, list[tuple[int, str]]] = {}
    for record in records:
        if record["step"] in shown:
            found.setdefault(record["prompt"], []).append((record["step"], record["text"]))
    return found


def _members(events: Sequence[Record], start: float, end: float) -> Series:
    times, workers = [], []
    for event in events:
        if event["event"] in ("started", "changed"):
            times.append(seconds_of(event["time"]) - start)
            workers.append(float(event["workers"]))
        elif event["event"] in ("stopped", "finished", "failed"):
            times.append(seconds_of(event["time"]) - start)
            workers.append(0.0)
    if times and workers[-1]:
        times.append(end - start)
        workers.append(workers[-1])
    return thinned(times, workers)


def differing_settings(runs: Sequence[RunData]) -> dict[str, list[str]]:
    """Keys whose values are not the same in all runs, with the value in each."""
    flat = [_flat(run.settings) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    values = {key: [one.get(key, "") for one in flat] for key in keys if key != "name"}
    return {key: each for key, each in values.items() if len(set(each)) > 1}


def _flat(value: Any, above: str = "") -> dict[str, str]:
    if not isinstance(value, dict):
        return {above: str(value)}
    found: dict[str, str] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{above}.{key}" if above else str(key))
    return found
