"""Workers as a launcher sees them, what of them is lost together, and how one ended."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import Exit, without_hint
from headway.spec.resolve import Resolved
from headway.state.lines import stands_at
from headway.state.rundir import RunDirectory

MOST_LOSSES = 3
"""Of one unit, without a new step of the run in between."""
SEEN_SECONDS = 120.0
"""After which a new step is certainly to be seen from another machine: in an object store lines
come a minute at a time. Losses that are closer together than this are no reason to give up there.
"""
TRACEBACK = re.compile(r"^(\[rank\d+\]: )?Traceback \(most recent call last\)")
"""torch puts the rank before each line once workers have met."""

PROGRESS = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ")
"""What workers say of their steps begins with the time."""
TOLD_END = re.compile(r"worker \S+/(\d+) (.+)")
"""The last line of what a pod leaves, when one of its workers has ended the run."""


@dataclass
class Worker:
    name: str
    node: int
    local_rank: int
    log: Path
    log_start: int
    """Bytes of the log that earlier starts of this run have written."""
    started_at: float
    pid: int | None = None
    code: int | None = None
    """How it ended."""
    words: str = ""
    """Why, if it could say so."""
    out_of_memory: bool | None = None
    """Whether the kernel has ended it for want of memory; None if nobody knows."""

    def signal(self, number: int) -> None:
        if self.pid is not None and self.code is None:
            with suppress(ProcessLookupError):  # it has ended, and the news is on its way
                os.kill(self.pid, number)


@dataclass
class Losses:
    """In a row, without a new step of the run in between."""

    count: int = 0
    step: int = 0
    """The highest that the run had reached at the last of them."""
    since: float = 0.0
    """When the first of them was."""

    def add(self, step: int, now: float) -> int:
        """How many it makes."""
        self.count = 1 if step > self.step else self.count + 1
        self.step = max(step, self.step)
        self.since = now if self.count == 1 else self.since
        return self.count

    def are_too_many(self, now: float) -> bool:
        """Where steps are seen late."""
        return self.count >= MOST_LOSSES and now - self.since > SEEN_SECONDS


@dataclass(eq=False)
class Unit:
    """Workers that are started and lost together."""

    places: list[tuple[int, int]]
    """(node, local rank) of each."""
    workers: list[Worker] = field(default_factory=list)
    starts: int = 0
    losses: Losses = field(default_factory=Losses)
    lost_at: float | None = None
    left_at: float | None = None
    """When all of it had left, without having been asked to by us."""
    is_leaving: bool = False

    @property
    def has_ended(self) -> bool:
        return all(worker.code is not None for worker in self.workers)

    @property
    def lost(self) -> Worker | None:
        """One that was lost. Whoever was killed tells more than one that lost its peer."""
        lost = [worker for worker in self.workers if is_loss(worker.code)]
        return min(lost, key=lambda worker: worker.code or 0, default=None)

    def signal(self, number: int) -> None:
        for worker in self.workers:
            worker.signal(number)


def step_seen(directory: RunDirectory) -> int:
    """The run's newest, as far as can be seen from this machine."""
    try:
        return stands_at(directory.metrics.last() or {"rewind": 0})
    except OSError:
        return 0  # the store is away


def units_of(resolved: Resolved, nodes: range) -> list[Unit]:
    """Of these nodes, by what is lost together."""
    ranks = range(resolved.ranks_per_node)
    if not resolved.is_live:
        return [Unit([(node, rank) for node in nodes for rank in ranks])]
    if resolved.sharded:
        return [Unit([(node, rank) for rank in ranks]) for node in nodes]
    return [Unit([(node, rank)]) for node in nodes for rank in ranks]


def is_loss(code: int | None) -> bool:
    """By a signal, or because its peers were lost: it can be started again."""
    return code is not None and (code < 0 or code == Exit.PEER_LOST)


def is_failure(code: int | None) -> bool:
    """By an error of its own."""
    return code is not None and code > 0 and code not in (Exit.STOPPED, Exit.PEER_LOST)


def blame(code: int | None) -> int:
    """Higher is more to blame: one that lost a peer only follows another's end."""
    return 2 if is_failure(code) else 0 if code == Exit.PEER_LOST else 1


def describe_end(code: int, out_of_memory: bool | None = None) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    if out_of_memory:
        return "was killed by the kernel: out of memory"
    known = -code in {int(number) for number in signal.Signals}
    name = signal.Signals(-code).name if known else f"signal {-code}"
    is_open = name == "SIGKILL" and out_of_memory is None
    hint = " (out of memory, if nobody killed it by hand)" if is_open else ""
    return f"was killed by {name}{hint}"


def told_end(worker: Worker, how: str, words: str) -> str:
    """What a pod leaves, to be read by people and by `failed_facts`."""
    return (
        f"{words}\nworker {worker.name} {how}"
        if words
        else f"worker {worker.name} {how} in silence"
    )


def failed_facts(node: int, left: str | None, why: str, ranks_per_node: int) -> dict[str, Any]:
    """Of the event `failed`: from what a pod has left, and why Kubernetes says it failed."""
    lines = (without_hint((left or "").strip())[0] or why).splitlines()
    local_rank, how = 0, why
    if found := TOLD_END.fullmatch(lines[-1]):
        local_rank, how = int(found[1]), found[2]
        lines = lines[:-1] or [how]
    return {
        "rank": node * ranks_per_node + local_rank,
        "node": node,
        "local_rank": local_rank,
        "how": how,
        "words": "\n".join(lines),
    }


def words_of(worker: Worker) -> tuple[str, str | None]:
    """Why a worker ended, in its own last words, and its hint."""
    words, hint = without_hint(worker.words)
    return from_traceback(words) or words or last_words(worker.log, worker.log_start), hint


def last_words(log: Path, start: int = 0) -> str:
    """The last traceback in a worker's log from byte `start` on, else its last lines but those
    that say how far it was."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            text = file.read().decode("utf-8", errors="replace").rstrip()
    except FileNotFoundError:
        return ""
    others = [line for line in text.splitlines() if not PROGRESS.match(line)]
    return from_traceback(text) or "\n".join(others[-5:])


def from_traceback(text: str, most_lines: int = 40) -> str:
    """From the last traceback on; empty if there is none."""
    lines = text.splitlines()
    for index in range(len(lines) - 1, -1, -1):
        if found := TRACEBACK.match(lines[index]):
            shown = [line.removeprefix(found[1] or "") for line in lines[index:]]
            return "\n".join(shown[-most_lines:])
    return ""
