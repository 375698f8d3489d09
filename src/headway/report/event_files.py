"""Event files for TensorBoard, out of a run's own logs: neither the machine that trained nor the
files that it wrote for TensorBoard are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headway.clock import seconds_of
from headway.errors import BadInput
from headway.report.series import thinned
from headway.state.record_log import RememberedLog
from headway.state.rewinds import Record, apply_rewinds, step_after
from headway.state.run_directory import RunDirectory
from headway.state.tracked_numbers import Numbers, tracked_logs


def require_tensorboard() -> None:
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        raise BadInput("tensorboard is not installed", "pip install tensorboard") from None


class EventFiles:
    """The metrics of one run in a folder; `update` adds what the run has logged since."""

    def __init__(self, directory: RunDirectory, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = Event
        self._summary: Any = Summary
        self._start: Any = SessionLog(status=SessionLog.START)
        self._writer: Any = EventFileWriter(str(folder), max_queue_size=1000)
        self._logs = [(RememberedLog(log), to) for log, to in tracked_logs(directory)]
        self._read = [0 for _ in self._logs]
        self._last_step = 0

    def update(self) -> None:
        """What changed begins with the earliest step of a new line: from there on all is written
        again, after a mark that makes TensorBoard forget it."""
        first = self._first_new_step()
        if first is None:
            return
        if first <= self._last_step:
            self._writer.add_event(self._event(step=first, session_log=self._start))
        records = [apply_rewinds(log.read()[0]) for log, _ in self._logs]
        times = {line["step"]: seconds_of(line["time"]) for line in _since(records[0], first)}
        newest = max(times.values(), default=0.0)
        found: dict[int, Numbers] = {}
        for lines, (_, numbers_of) in zip(records, self._logs, strict=True):
            for step, numbers in _few(_since(lines, first), numbers_of):
                found.setdefault(step, {}).update(numbers)
        for step in sorted(found):
            summary = self._summary()
            for name, value in found[step].items():
                summary.value.add(tag=name, simple_value=value)
            event = self._event(wall_time=times.get(step, newest), step=step, summary=summary)
            self._writer.add_event(event)
        self._last_step = max((self._last_step, *found))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _first_new_step(self) -> int | None:
        steps = []
        for at, (log, _) in enumerate(self._logs):
            new, self._read[at] = log.read(self._read[at])
            steps += [step_after(line) + ("rewind" in line) for line in new]
        return min(steps, default=None)


def _since(records: Sequence[Record], step: int) -> list[Record]:
    return [record for record in records if record["step"] >= step]


def _few(lines: Iterable[Record], numbers_of: Any) -> Iterator[tuple[int, Numbers]]:
    """Numbers by step, each series thinned out: TensorBoard takes minutes for a million."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for line in lines:
        for name, value in numbers_of(line).items():
            steps, values = series.setdefault(name, ([], []))
            steps.append(line["step"])
            values.append(value)
    for name, (steps, values) in series.items():
        for step, value in zip(*thinned(steps, values), strict=True):
            if value is not None:
                yield int(step), {name: value}
