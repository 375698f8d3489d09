"""Status of a run, from its files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from headway.clock import seconds_of
from headway.state.checkpoints import newest_saved
from headway.state.goodput import Goodput
from headway.state.record_log import RememberedLog
from headway.state.rewinds import Record
from headway.state.run_directory import RunDirectory
from headway.state.run_history import STEP_KEYS, HistoryReader, RunHistory
from headway.state.spent_money import Spending, spending_of
from headway.state.time_left import seconds_left

State = Literal["starting", "running", "finished", "stopped", "failed", "lost", "waiting"]
SIGN_OF_LIFE_SECONDS = 180.0
"""A run in an object store counts as running for so long after its last record: logs are
uploaded every minute."""
SCRIPT_LIFE_SECONDS = 600.0 + SIGN_OF_LIFE_SECONDS
"""The same of a script, whose first worker notes every ten minutes that it is alive."""
SHOWN_CHANGES = 8
UNDER_WAY: tuple[State, ...] = ("starting", "running", "waiting")
ENDS: dict[str, State] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}


@dataclass(frozen=True)
class MembershipChange:
    """A membership change of a running run."""

    time: str
    generation: int
    workers: int
    reason: str
    seconds: float
    """Time from the end of the step before to the start of the next."""
    discarded: bool
    """Whether an unfinished step was discarded and repeated."""


@dataclass(frozen=True)
class RunStatus:
    name: str
    folder: str
    state: State
    """State of the run. `lost`: it ended without a record, as when the machine crashed. `waiting`:
    on a target, it could not get the nodes that it needs, gave back those that it had, and tries
    again."""
    step: int
    total_steps: int | None
    loss: float | None
    tokens_per_second: float | None
    seconds_left: float | None
    workers: int | None
    """Number of workers in the newest generation."""
    generation: int | None
    changes: list[MembershipChange]
    """Newest membership changes, oldest first."""
    evaluations: dict[str, float | None]
    """Newest loss of each validation set."""
    checkpoint_step: int | None
    checkpoint_age_seconds: float | None
    save_failure: str | None
    """Reason why checkpoints currently cannot be saved."""
    skipped_steps: int
    goodput: Goodput | None
    """Goodput; None until the first step is committed."""
    failure: str | None
    """What the terminal showed when the run failed."""
    failure_hint: str | None = None
    lr: float | None = None
    grad_norm: float | None = None
    compiled: Record | None = None
    """Newest event `compiled`, of a run with `memory.compile`."""
    is_script: bool = False
    """Whether it runs a command of the user's: steps are those of its heartbeat, if it writes
    one."""
    spending: Spending | None = None
    """What it has cost; None: it runs on no target, or that has no prices."""
    interruptions: int = 0
    """Losses that it has recovered from."""
    damaged_lines: int = 0
    """Lines of its logs that are damaged, and left out of all this."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> RunStatus:
        """From the JSON of another process."""
        changes = [MembershipChange(**change) for change in known["changes"]]
        counted = Goodput(**known["goodput"]) if known["goodput"] is not None else None
        spent = known.get("spending")
        spending = Spending.from_json(spent) if spent is not None else None
        return cls(**{**known, "changes": changes, "goodput": counted, "spending": spending})


def watched(directory: RunDirectory, more_keys: Sequence[str] = ()) -> RunDirectory:
    """The same run directory with its logs kept in memory, for reading its status repeatedly.
    `more_keys`: of a step's record, besides those that the status needs."""
    again = RunDirectory(directory.location)
    again.launcher = RememberedLog(again.launcher)
    again.events = RememberedLog(again.events)
    again.evaluations = RememberedLog(again.evaluations)
    again.metrics = RememberedLog(again.metrics, (*STEP_KEYS, *more_keys))
    return again


def read_status(directory: RunDirectory, now: float) -> RunStatus:
    return status_of(directory, HistoryReader(directory).read(), now)


def status_of(directory: RunDirectory, history: RunHistory, now: float) -> RunStatus:
    events, steps = history.events, history.steps
    last = steps[-1] if steps else None
    state = _state(events, _is_alive(directory, events, last, now))
    started = newest_event(events, "started")
    total = started["total_steps"] if started else None
    newest = newest_event(events, "started", "changed")
    left = None
    if state == "running" and last and total is not None:
        left = seconds_left(steps, events)
    saved, checkpoint = newest_event(events, "saved"), newest_saved(directory)
    failed = newest_event(events, "failed") if state == "failed" else None
    return RunStatus(
        name=directory.name,
        folder=directory.location,
        state=state,
        step=last["step"] if last else 0,
        total_steps=total,
        loss=last["loss"] if last else None,
        tokens_per_second=last["tokens_per_second"] if last else None,
        seconds_left=left,
        workers=newest["workers"] if newest else None,
        generation=newest["generation"] if newest else None,
        changes=_changes(events),
        evaluations=history.evaluations,
        checkpoint_step=checkpoint.step if checkpoint else None,
        checkpoint_age_seconds=_age(saved, now) if saved and checkpoint else None,
        save_failure=_save_failure(events),
        skipped_steps=history.sums.num_skipped,
        goodput=history.goodput,
        failure=str(failed.get("message") or "no reason given") if failed else None,
        failure_hint=failed.get("hint") if failed else None,
        lr=last.get("lr") if last else None,
        grad_norm=last.get("grad_norm") if last else None,
        compiled=newest_event(events, "compiled"),
        is_script=_is_script(events),
        spending=spending_of(events, now if state in UNDER_WAY else None),
        interruptions=history.interrupted.number,
        damaged_lines=history.damaged,
    )


def _age(event: Record, now: float) -> float:
    """The clock of the machine that noted it may be ahead."""
    return max(0.0, now - seconds_of(event["time"]))


def spent_seconds(history: RunHistory, now: float) -> float | None:
    """Time that a running run has used; None until it has taken a step. A script may never tell of
    any."""
    if _is_script(history.events):
        return history.spent_seconds(now)
    found = history.goodput
    return None if found is None else found.total_seconds


def _is_alive(
    directory: RunDirectory, events: list[Record], last: Record | None, now: float
) -> bool:
    """On this machine by the lock; from elsewhere by the age of the last record."""
    if directory.is_running() or directory.store.is_local:
        return directory.is_running()
    times = [record["time"] for record in (*events[-1:], *([last] if last else []))]
    most = SCRIPT_LIFE_SECONDS if _is_script(events) else SIGN_OF_LIFE_SECONDS
    return any(now - seconds_of(time) < most for time in times)


def _state(events: list[Record], is_alive: bool) -> State:
    if not events and not is_alive:
        return "stopped"  # a fork that was not started yet
    if _has_given_back(events):
        return "waiting" if is_alive else "stopped"
    for event in reversed(events):
        name = event["event"]
        if name == "stopped" and _has_failed(events):
            return "failed"  # the remaining workers have saved and stopped
        if name in ENDS:
            return ENDS[name]
        if name == "started":
            return "running" if is_alive else "lost"
        if name in ("launched", "restarted", "tries_again"):
            break
    return "starting" if is_alive else "lost"


def _is_script(events: Sequence[Record]) -> bool:
    launched = newest_event(events, "launched")
    return launched is not None and launched.get("mode") == "script"


def _has_given_back(events: list[Record]) -> bool:
    """Whether it has no pods, and waits to try again. Its workers save after it was noted."""
    newest = newest_event(events, "gave_back", "tries_again", "launched", "failed", "finished")
    return newest is not None and newest["event"] == "gave_back"


def _has_failed(events: list[Record]) -> bool:
    """Whether the newest start failed."""
    newest = newest_event(events, "failed", "launched")
    return newest is not None and newest["event"] == "failed"


def _save_failure(events: list[Record]) -> str | None:
    """Reason why the newest save failed, if no later one succeeded."""
    for event in reversed(events):
        if event["event"] == "saved":
            return None
        if event["event"] == "save_failed":
            return str(event["reason"])
    return None


def _changes(events: list[Record]) -> list[MembershipChange]:
    keys = [field.name for field in fields(MembershipChange)]
    changed = [event for event in events if event["event"] == "changed"]
    return [
        MembershipChange(**{key: event[key] for key in keys}) for event in changed[-SHOWN_CHANGES:]
    ]


def other_launcher(directory: RunDirectory) -> str | None:
    """The launcher that has started the run last, if it is not Headway's."""
    launched = newest_event(directory.history(), "launched")
    return None if launched is None else launched.get("launcher")


def newest_event(events: Sequence[Record], *names: str) -> Record | None:
    return next((event for event in reversed(events) if event["event"] in names), None)
