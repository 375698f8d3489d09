"""A run's metrics for Prometheus, made from its logs when they are asked for.

What can fall is a gauge, also where it counts: steps that are redone are rewound. Counters count
lines of the journal, which only grows, so they survive a new keeper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headway import __version__
from headway.clock import Clock, seconds_of
from headway.state.rewinds import Record
from headway.state.run_history import HistoryReader
from headway.state.status import RunStatus, State, newest_event, status_of

PREFIX = "headway_run_"
COUNTED = {
    "losses": ("lost", "Nodes that were lost."),
    "replacements": ("replaced", "Lost nodes whose replacement has joined the run."),
    "coordinator_losses": ("coordinator_lost", "Times the coordinator was lost."),
    "save_failures": ("save_failed", "Checkpoints that could not be saved."),
}
"""Counters, each with its event in the journal."""


class RunMetrics(Collector):
    def __init__(
        self, reader: HistoryReader, clock: Clock, num_training: int | None = None
    ) -> None:
        """`num_training`: workers that train, as the coordinator says, since logs do not tell that
        all are gone; None: it does not answer."""
        self._reader = reader
        self._clock = clock
        self._num_training = num_training

    def collect(self) -> Iterator[Metric]:
        directory, known = self._reader.directory, self._reader.read()
        run, history = directory.name, known.events
        status = status_of(directory, known, self._clock.now())
        yield _labelled(run, "info", "Version and device.", _info(history), 1.0)
        yield _by_label(run, "state", "1 for the state it is in.", "state", _states(status))
        for name, (meaning, value) in _numbers(status, history, self._num_training).items():
            if value is not None:
                yield _labelled(run, name, meaning, {}, float(value))
        losses = {name: loss for name, loss in status.evaluations.items() if loss is not None}
        if losses:
            meaning = "Newest loss of each validation set."
            yield _by_label(run, "evaluation_loss", meaning, "set", losses)
        if (spent := status.goodput) is not None:
            seconds = {"learning": spent.learning_seconds, **spent.lost_seconds}
            meaning = "Time spent, by cause; `learning` is what goodput counts."
            yield _by_label(run, "time_seconds", meaning, "cause", seconds)
        yield _counter(run, "interruptions", "Losses recovered from.", status.interruptions)
        for name, (event, meaning) in COUNTED.items():
            yield _counter(run, name, meaning, known.counts[event])


def _numbers(
    status: RunStatus, history: Sequence[Record], num_training: int | None
) -> dict[str, tuple[str, float | bool | None]]:
    """Help and value of each gauge without labels of its own; None: not known yet."""
    members = status.workers if num_training is None else num_training
    if status.state != "running":
        members = 0
    return {
        "step": ("Newest committed step.", status.step),
        "spent_usd": (
            "Dollars that its nodes have cost.",
            status.spending.usd if status.spending is not None else None,
        ),
        "steps_planned": ("Steps of the whole run.", status.total_steps),
        "loss": ("Training loss of the newest step.", status.loss),
        "learning_rate": ("Learning rate of the newest step.", status.lr),
        "gradient_norm": ("Gradient norm of the newest step.", status.grad_norm),
        "tokens_per_second": (
            "Speed of the newest step; 0 while the run does not train.",
            0.0 if members == 0 else status.tokens_per_second,
        ),
        "remaining_seconds": ("Estimated time to the end.", status.seconds_left),
        "skipped_steps": ("Steps that nothing was learned from.", status.skipped_steps),
        "goodput_ratio": (
            "Share of the time spent on steps that count.",
            None if status.goodput is None else status.goodput.ratio,
        ),
        "members": (
            "Workers that train; 0 while the run does not.",
            members,
        ),
        "members_wanted": ("Workers that the run should have.", _wanted_workers(history)),
        "nodes_wanted": ("Nodes that the run should have.", _wanted_nodes(history)),
        "checkpoint_step": ("Step of the newest checkpoint.", status.checkpoint_step),
        "checkpoint_timestamp_seconds": (
            "When the newest checkpoint was saved, in seconds since 1970.",
            _saved_at(history) if status.checkpoint_step is not None else None,
        ),
        "save_failing": (
            "1 while checkpoints cannot be saved.",
            status.save_failure is not None,
        ),
    }


def _info(history: Sequence[Record]) -> dict[str, str]:
    started = newest_event(history, "started")
    return {"version": __version__, "device": started["device"] if started else ""}


def _states(status: RunStatus) -> dict[str, float]:
    return {state: float(state == status.state) for state in get_args(State)}


def _wanted_nodes(history: Sequence[Record]) -> int | None:
    newest = newest_event(history, "launched", "scaled")
    return newest["nodes"] if newest else None


def _wanted_workers(history: Sequence[Record]) -> int | None:
    launched, nodes = newest_event(history, "launched"), _wanted_nodes(history)
    if launched is None or nodes is None or "workers" not in launched:
        return None
    return int(nodes * launched["workers"] // launched["nodes"])


def _saved_at(history: Sequence[Record]) -> float | None:
    saved = newest_event(history, "saved")
    return seconds_of(saved["time"]) if saved else None


def _labelled(
    run: str, name: str, meaning: str, labels: Mapping[str, str], value: float
) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(PREFIX + name, meaning, labels=["run", *labels])
    gauge.add_metric([run, *labels.values()], value)
    return gauge


def _counter(run: str, name: str, meaning: str, count: int) -> CounterMetricFamily:
    counter = CounterMetricFamily(PREFIX + name, meaning, labels=["run"])
    counter.add_metric([run], float(count))
    return counter


def _by_label(
    run: str, name: str, meaning: str, label: str, values: Mapping[str, float]
) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(PREFIX + name, meaning, labels=["run", label])
    for key, value in values.items():
        gauge.add_metric([run, key], value)
    return gauge
