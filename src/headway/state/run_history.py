"""What a status needs of a run's logs, at a cost that does not grow with the age of the run.

`summary.json` stands for the beginning of the logs: it has sums, and the newest events of each
kind. Readers go on from the positions it names. It is rewritten at each save, then for what was in
the logs at the save before: so a run that goes back to its newest checkpoint goes back to nothing
that is in it. If a run does go back further, or the file is missing or of another version, all of
the logs are read. The logs themselves stay as they are, and are what is verified.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import inf
from threading import Lock
from typing import Any

from headway.clock import seconds_of, stamp
from headway.state.event_order import in_order
from headway.state.goodput import Goodput, StepSums, TimeSpent, goodput_of
from headway.state.interruptions import InterruptionCount
from headway.state.record_log import Log
from headway.state.rewinds import Record, apply_rewinds, writer_generation
from headway.state.run_directory import RunDirectory
from headway.state.store import in_parallel
from headway.state.time_left import WARMUP_STEPS, WINDOW_SECONDS

NAME = "summary.json"
VERSION = 2
LOGS = ("launcher", "events", "metrics", "evaluations")
KEPT_OF_A_KIND = 16
"""Events: a status shows 8 changes at most."""
EACH_SECONDS = 10.0
"""Between two of the older steps that are kept for the time that is left."""
ROUND_STEPS = 20_000
"""Steps that are summarized at a time. Runs rarely go back further."""
STEP_KEYS = (
    *("step", "generation", "writer", "rewind", "time"),
    *("seconds", "data_seconds", "unprepared_seconds", "skipped"),
    *("loss", "tokens_per_second", "lr", "grad_norm"),
)
"""Keys of a step's record that a status needs: a long run has millions of records."""

Positions = dict[str, int]
Records = dict[str, list[Record]]
"""By the names of logs."""


class WentBack(Exception):
    """The run went back to a step before the end of a summary."""


@dataclass
class Summary:
    """Of the logs up to some positions."""

    damaged: int = 0
    """Lines that were left out."""

    positions: Positions = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    next_positions: Positions = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    """The ends of the logs when it was written: up to there the next one goes."""
    events: list[Record] = field(default_factory=list)
    """Those that matter, in order."""
    counts: dict[str, int] = field(default_factory=dict)
    """Events of each kind, one for each node."""
    steps: list[Record] = field(default_factory=list)
    """Some of the last minutes, the newest last."""
    writer: int = 0
    """The newest generation that has written metrics..."""
    evaluations: list[Record] = field(default_factory=list)
    """The newest of each set."""
    evaluations_writer: int = 0
    """... and evaluations."""
    sums: StepSums = field(default_factory=StepSums)
    spent: TimeSpent = field(default_factory=TimeSpent)
    interrupted: InterruptionCount = field(default_factory=InterruptionCount)

    def encoded(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}).encode() + b"\n"

    @classmethod
    def decoded(cls, content: bytes) -> Summary:
        """Raises ValueError, KeyError or TypeError for what is none of this version."""
        known = json.loads(content)
        if known.pop("version") != VERSION:
            raise ValueError("another version")
        sums, spent = StepSums(**known.pop("sums")), TimeSpent(**known.pop("spent"))
        interrupted = InterruptionCount(**known.pop("interrupted"))
        found = cls(**known, sums=sums, spent=spent, interrupted=interrupted)
        if {*found.positions} != {*LOGS} or {*found.next_positions} != {*LOGS}:
            raise ValueError("other logs")
        return found


class RunHistory:
    """A summary, and what the logs have behind it."""

    def __init__(self, summary: Summary, behind: Records, damaged: int = 0) -> None:
        """`damaged`: lines of these logs that were left out. Raises WentBack."""
        self._summary = summary
        self.damaged = summary.damaged + damaged
        """Lines that are not believed."""
        new = behind["launcher"], behind["events"]
        self._new_events = in_order(*new)
        self.events = in_order(summary.events, *new)
        """The newest last: all behind the summary, before it those that matter."""
        self._done = [step for step in behind["metrics"] if "rewind" not in step]
        self._counting = _counting(summary.steps[-1:], summary.writer, behind["metrics"])
        self._newest_writer = _newest_writer(summary.writer, behind["metrics"])
        evaluated = _counting(
            summary.evaluations, summary.evaluations_writer, behind["evaluations"], by_set=True
        )
        self._evaluations = {record["set"]: record for record in evaluated}
        self._evaluations_writer = _newest_writer(summary.evaluations_writer, behind["evaluations"])

    @property
    def evaluations(self) -> dict[str, float | None]:
        """The newest loss of each set."""
        return {name: record["loss"] for name, record in self._evaluations.items()}

    @cached_property
    def steps(self) -> list[Record]:
        """Those that count: all behind the summary, before it some of the last minutes."""
        return [*self._summary.steps, *self._counting[len(self._summary.steps[-1:]) :]]

    @cached_property
    def counts(self) -> Counter[str]:
        """Events of each kind; what all ranks of a node note, once."""
        new = Counter(e["event"] for e in self._new_events if e.get("local_rank", 0) == 0)
        return Counter(self._summary.counts) + new

    @cached_property
    def sums(self) -> StepSums:
        sums = replace(self._summary.sums)
        sums.add(self._done, self._counting[len(self._summary.steps[-1:]) :])
        return sums

    @cached_property
    def spent(self) -> TimeSpent:
        spent = replace(self._summary.spent, lost={**self._summary.spent.lost})
        spent.hear(self._new_events, self._done)
        return spent

    @cached_property
    def interrupted(self) -> InterruptionCount:
        count = replace(self._summary.interrupted)
        for event in self._new_events:
            count.add(event)
        return count

    @property
    def has_steps(self) -> bool:
        """Whether any was ever recorded."""
        return bool(self._summary.sums.done_seconds or self._summary.steps or self._done)

    @property
    def goodput(self) -> Goodput | None:
        return goodput_of(self.sums, self.spent) if self.has_steps else None

    def spent_seconds(self, now: float) -> float:
        return self.spent.seconds(stamp(now))

    def summarized(self, positions: Positions, next_positions: Positions) -> Summary:
        """All of this, as a summary up to the positions that it was read to."""
        return Summary(
            damaged=self.damaged,
            positions=positions,
            next_positions=next_positions,
            events=_that_matter(self.events),
            counts=dict(self.counts),
            steps=_of_the_last_minutes(self.steps, self.events),
            writer=self._newest_writer,
            evaluations=sorted(self._evaluations.values(), key=lambda record: record["step"]),
            evaluations_writer=self._evaluations_writer,
            sums=self.sums,
            spent=self.spent,
            interrupted=self.interrupted,
        )


class HistoryReader:
    """Reads a run's history, again and again: each time from where it left off."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._logs: dict[str, Log] = {name: getattr(directory, name) for name in LOGS}
        self._lock = Lock()
        self._content: bytes | None = None
        """Of the summary that was read."""
        self._ignored: bytes | None = None
        """A summary from before the run went back."""
        self._summary = Summary()
        self._behind: Records = {name: [] for name in LOGS}
        self._ends = self._summary.positions
        self._damaged_before = 0
        """Lines in the logs that the summary counts."""

    def read(self) -> RunHistory:
        with self._lock:
            self._read_summary()
            self._read_on()
            try:
                return self._history()
            except WentBack:
                self._ignored = self._content
                self._begin(Summary())
                self._read_on()
                return self._history()

    def _history(self) -> RunHistory:
        damaged = _num_damaged(self._logs) - self._damaged_before
        return RunHistory(self._summary, self._behind, damaged)

    def _read_summary(self) -> None:
        content = _read_if_any(self.directory)
        if content == self._content:
            return
        self._content = content
        if content is None or content == self._ignored:
            return  # whatever was read is as good
        summary = _decoded_if_right(content, self._logs)
        if summary is not None:
            self._begin(summary)

    def _begin(self, summary: Summary) -> None:
        self._summary = summary
        self._behind = {name: [] for name in LOGS}
        self._ends = {**summary.positions}
        is_whole = any(summary.positions.values())
        self._damaged_before = _num_damaged(self._logs) if is_whole else 0

    def _read_on(self) -> None:
        def more(name: str) -> tuple[list[Record], int]:
            return self._logs[name].read(self._ends[name])

        # An object store answers all of them in the time of one.
        is_local = self.directory.store.is_local
        found = map(more, LOGS) if is_local else in_parallel(more, LOGS, len(LOGS))
        for name, (records, end) in zip(LOGS, found, strict=True):
            self._behind[name] += map(_slim, records) if name == "metrics" else records
            self._ends[name] = end


def whole_history(directory: RunDirectory) -> RunHistory:
    """From the logs alone, all of them."""
    logs: dict[str, Log] = {name: getattr(directory, name) for name in LOGS}
    behind = {name: log.read()[0] for name, log in logs.items()}
    return RunHistory(Summary(), behind, _num_damaged(logs))


def summarize(directory: RunDirectory) -> None:
    """Rewrites the summary, after a save; by the leader. Raises OSError. It may be interrupted
    anywhere, and two may do so at once: each summary is right for the positions it names."""
    logs: dict[str, Log] = {name: getattr(directory, name) for name in LOGS}
    content = _read_if_any(directory)
    before = (_decoded_if_right(content, logs) if content is not None else None) or Summary()
    ends = {name: log.end() for name, log in logs.items()}
    try:
        new = _advanced(before, logs, ROUND_STEPS)
    except WentBack:
        again = Summary(next_positions=before.next_positions)
        new = _advanced(again, logs, None)
    directory.store.write(NAME, replace(new, next_positions=ends).encoded())


def _advanced(summary: Summary, logs: Mapping[str, Log], round_steps: int | None) -> Summary:
    """The same up to its `next_positions`, some steps at a time: a run that another version of
    Headway began may have a million. None: all at once."""
    upto, damaged_before = summary.next_positions, _num_damaged(logs)

    def between(name: str) -> Iterator[list[Record]]:
        if upto[name] > summary.positions[name]:
            for records, _ in logs[name].pieces(summary.positions[name], upto[name]):
                yield records

    events = in_order([*chain(*between("launcher"))], [*chain(*between("events"))])
    steps: list[Record] = []
    folded = summary
    for records in between("metrics"):
        steps += map(_slim, records)
        cut = 0 if round_steps is None else _cut(steps, round_steps)
        if cut:
            some, steps = steps[:cut], steps[cut:]
            until = bisect_right(events, _time_of(some[-1]), key=_time_of)
            folded = RunHistory(folded, _records(events[:until], some)).summarized(upto, upto)
            events = events[until:]
    evaluations = list(chain(*between("evaluations")))
    behind, damaged = _records(events, steps, evaluations), _num_damaged(logs) - damaged_before
    return RunHistory(folded, behind, damaged).summarized(upto, upto)


def _num_damaged(logs: Mapping[str, Log]) -> int:
    return sum(log.num_damaged for log in logs.values())


def _cut(steps: Sequence[Record], round_steps: int) -> int:
    """Where the first of these records end that no later one takes back; 0: too few for a round."""
    lowest = inf
    for index in range(len(steps) - 1, -1, -1):
        record = steps[index]
        if "rewind" in record:
            lowest = min(lowest, record["rewind"])
        elif record["step"] <= lowest and index < len(steps) - round_steps:
            return index + 1
    return 0


def _records(
    events: list[Record], steps: list[Record], evaluations: list[Record] | None = None
) -> Records:
    return {
        "launcher": [],
        "events": events,
        "metrics": steps,
        "evaluations": evaluations or [],
    }


def _read_if_any(directory: RunDirectory) -> bytes | None:
    try:
        return directory.store.read(NAME)
    except FileNotFoundError:
        return None


def _decoded_if_right(content: bytes, logs: Mapping[str, Log]) -> Summary | None:
    """None: it cannot be of these logs, or was made by another version."""
    try:
        summary = Summary.decoded(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    is_right = all(logs[name].is_position(at) for name, at in summary.positions.items())
    return summary if is_right else None


def _counting(
    before: Sequence[Record], writer: int, records: list[Record], *, by_set: bool = False
) -> list[Record]:
    """The records that count, `before` first: those of a summary, by the generation `writer`."""
    last = before[-1]["step"] if before else 0
    counting = apply_rewinds([*before, {"rewind": last, "generation": writer}, *records])
    if by_set:  # a generation may evaluate the step that it resumed from again
        is_there = {one["set"] for one in before} <= {one["set"] for one in counting}
    else:
        is_there = counting[: len(before)] == [*before]
    if not is_there:
        raise WentBack
    return counting


def _newest_writer(writer: int, records: Sequence[Record]) -> int:
    written = (writer_generation(record) for record in records)
    return max([writer, *(one for one in written if isinstance(one, int))])


def _that_matter(events: Sequence[Record]) -> list[Record]:
    """Of each kind the newest, all evaluations of the last minutes, and the newest start of each
    worker since the newest launch."""
    if not events:
        return []
    oldest = stamp(seconds_of(events[-1]["time"]) - WINDOW_SECONDS)
    seen: Counter[str] = Counter()
    workers: set[Any] = set()
    is_launched = False
    kept = []
    for event in reversed(events):
        name = event["event"]
        seen[name] += 1
        is_kept = seen[name] <= KEPT_OF_A_KIND
        if name == "evaluated":  # they are taken off the time of steps
            is_kept = is_kept or event["time"] >= oldest
        if name == "worker" and not is_launched:
            place = event.get("node"), event.get("local_rank")
            is_kept = is_kept or place not in workers
            workers.add(place)
        is_launched = is_launched or name == "launched"
        if is_kept:
            kept.append(event)
    return kept[::-1]


def _of_the_last_minutes(steps: Sequence[Record], events: Sequence[Record]) -> list[Record]:
    """What the time that is left is computed from: the first steps since the newest start, and
    then one every few seconds."""
    if not steps:
        return []
    newest = steps[-1]["time"]
    starts = [
        event["time"]
        for event in events
        if event["event"] in ("started", "changed") and event["time"] <= newest
    ]
    oldest = stamp(seconds_of(newest) - WINDOW_SECONDS)
    since = [step for step in steps if not starts or step["time"] >= starts[-1]]
    kept, last = since[: WARMUP_STEPS + 1], 0.0
    for step in since[WARMUP_STEPS + 1 : -1]:
        if step["time"] >= oldest and seconds_of(step["time"]) - last >= EACH_SECONDS:
            kept.append(step)
            last = seconds_of(step["time"])
    kept += [steps[-1]] if not kept or kept[-1] is not steps[-1] else []
    return [_slim(step) for step in kept]


def _slim(step: Record) -> Record:
    return {key: step[key] for key in STEP_KEYS if key in step}


def _time_of(record: Record) -> str:
    return str(record["time"])
