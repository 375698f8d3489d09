"""What a run is doing, from its files alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from headway.clock import seconds_of
from headway.errors import without_hint
from headway.state.checkpoints import steps_saved
from headway.state.goodput import Goodput, goodput
from headway.state.lines import Record, RememberedLog, settled
from headway.state.rundir import RunDirectory

State = Literal["starting", "running", "finished", "stopped", "failed", "lost"]
SIGN_OF_LIFE_SECONDS = 180.0
"""Logs reach an object store every minute."""
SHOWN_CHANGES = 8
STEP_KEYS = (
    *("step", "generation", "writer", "rewind", "time"),
    *("seconds", "data_seconds", "skipped", "loss", "tokens_per_second"),
)
"""What is needed of a step's line: of a long run there are millions."""
ENDS: dict[str, State] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}


@dataclass(frozen=True)
class Change:
    """Of the members of a run that goes on."""

    time: str
    generation: int
    workers: int
    reason: str
    seconds: float
    """From the step before to being about to take the next."""
    discarded: bool
    """Whether a step was begun and had to be taken again."""


@dataclass(frozen=True)
class Status:
    name: str
    folder: str
    state: State
    """`lost`: it ended without saying so, as when the machine went down."""
    step: int
    total_steps: int | None
    loss: float | None
    tokens_per_second: float | None
    seconds_left: float | None
    workers: int | None
    """In the newest generation."""
    generation: int | None
    changes: list[Change]
    """The newest ones, oldest first."""
    evaluations: dict[str, float | None]
    """Newest loss of each validation set."""
    checkpoint_step: int | None
    checkpoint_age_seconds: float | None
    save_failure: str | None
    """Why saves fail at present."""
    skipped_steps: int
    goodput: Goodput | None
    """None until a step was committed."""
    failure: str | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Status:
        """As another process has read it."""
        changes = [Change(**change) for change in known["changes"]]
        counted = Goodput(**known["goodput"]) if known["goodput"] is not None else None
        return cls(**{**known, "changes": changes, "goodput": counted})


def watched(directory: RunDirectory) -> RunDirectory:
    """The same run, for one that asks for its status again and again."""
    again = RunDirectory(directory.location)
    again.launcher = RememberedLog(again.launcher)
    again.events = RememberedLog(again.events)
    again.evaluations = RememberedLog(again.evaluations)
    again.metrics = RememberedLog(again.metrics, STEP_KEYS)
    return again


def read_status(directory: RunDirectory, now: float) -> Status:
    events = directory.history()
    steps = directory.steps()
    last = steps[-1] if steps else None
    state = _state(events, _goes_on(directory, events, last, now))
    started = _newest(events, "started")
    total = started["total_steps"] if started else None
    newest = _newest(events, "started", "changed")
    left = None
    if state == "running" and last and total is not None:
        left = (total - last["step"]) * last["seconds"]
    saved, saved_steps = _newest(events, "saved"), steps_saved(directory)
    failed = _newest(events, "failed") if state == "failed" else None
    return Status(
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
        evaluations={e["set"]: e["loss"] for e in settled(directory.evaluations.read()[0])},
        checkpoint_step=saved_steps[-1] if saved_steps else None,
        checkpoint_age_seconds=now - seconds_of(saved["time"]) if saved and saved_steps else None,
        save_failure=_save_failure(events),
        skipped_steps=sum(step.get("skipped") is not None for step in steps),
        goodput=goodput(events, directory.metrics.read()[0]),
        failure=_last_line(failed["words"]) if failed else None,
    )


def _last_line(words: str) -> str:
    return (without_hint(words)[0] or "no reason given").splitlines()[-1]


def _goes_on(
    directory: RunDirectory, events: list[Record], last: Record | None, now: float
) -> bool:
    """A lock tells on this machine; from elsewhere, signs of life do."""
    if directory.is_running() or directory.store.is_local:
        return directory.is_running()
    times = [record["time"] for record in (*events[-1:], *([last] if last else []))]
    return any(now - seconds_of(time) < SIGN_OF_LIFE_SECONDS for time in times)


def _state(events: list[Record], goes_on: bool) -> State:
    if not events and not goes_on:
        return "stopped"  # a fork that has not been started yet
    for event in reversed(events):
        name = event["event"]
        if name == "stopped" and _has_failed(events):
            return "failed"  # those who were left have saved and stopped
        if name in ENDS:
            return ENDS[name]
        if name == "started":
            return "running" if goes_on else "lost"
        if name == "launched":
            break
    return "starting" if goes_on else "lost"


def _has_failed(events: list[Record]) -> bool:
    """In the newest start."""
    newest = _newest(events, "failed", "launched")
    return newest is not None and newest["event"] == "failed"


def _save_failure(events: list[Record]) -> str | None:
    """Why the newest save failed, if no later one succeeded."""
    for event in reversed(events):
        if event["event"] == "saved":
            return None
        if event["event"] == "save_failed":
            return str(event["reason"])
    return None


def _changes(events: list[Record]) -> list[Change]:
    keys = [field.name for field in fields(Change)]
    changed = [event for event in events if event["event"] == "changed"]
    return [Change(**{key: event[key] for key in keys}) for event in changed[-SHOWN_CHANGES:]]


def _newest(events: list[Record], *names: str) -> Record | None:
    return next((event for event in reversed(events) if event["event"] in names), None)
