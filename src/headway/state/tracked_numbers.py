"""The metrics of a run by name, as trackers such as TensorBoard get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headway.state.record_log import Log
from headway.state.rewinds import Record
from headway.state.run_directory import RunDirectory

Numbers = dict[str, float]

NO_MEASURES = frozenset({"step", "generation", "tokens", "targets", "block"})
"""Numbers of a line in the logs that are not metrics."""


def tracked_logs(directory: RunDirectory) -> Iterator[tuple[Log, Callable[[Record], Numbers]]]:
    """Each log, and how a line of it becomes numbers: `train/loss`, `SET/loss`, ..."""
    yield directory.metrics, lambda line: _numbers("train", line)
    yield directory.evaluations, lambda line: _numbers(line["set"], line)
    yield directory.activations, lambda line: _numbers(f"activations/{line['block']}", line)


def _numbers(group: str, line: Record) -> Numbers:
    return {
        f"{group}/{key}": value
        for key, value in line.items()
        if key not in NO_MEASURES and isinstance(value, int | float)
    }
