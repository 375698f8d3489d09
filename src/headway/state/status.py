"""What a run is doing, from its files alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from headway.state.checkpoints import steps_saved
from headway.state.rundir import RunDirectory

State = Literal["starting", "running", "finished", "stopped", "failed", "lost"]
ENDS: dict[str, State] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}


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
    evaluations: dict[str, float | None]
    """Newest loss of each validation set."""
    checkpoint_step: int | None
    checkpoint_age_seconds: float | None
    skipped_steps: int
    failure: str | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_status(directory: RunDirectory, now: float) -> Status:
    events = directory.events.all()
    last = directory.metrics.last()
    state = _state(events, directory.is_running())
    started = _newest(events, "started")
    total = started["total_steps"] if started else None
    step = last["step"] if last else 0
    speed = last["tokens_per_second"] if last else None
    left = None
    if state == "running" and last and started and total is not None:
        left = (total - step) * last["seconds"]
    saved, steps = _newest(events, "saved"), steps_saved(directory)
    failed = _newest(events, "failed") if state == "failed" else None
    return Status(
        name=directory.name,
        folder=str(directory.path),
        state=state,
        step=step,
        total_steps=total,
        loss=last["loss"] if last else None,
        tokens_per_second=speed,
        seconds_left=left,
        workers=started["workers"] if started else None,
        evaluations={line["set"]: line["loss"] for line in directory.evaluations.all()},
        checkpoint_step=steps[-1] if steps else None,
        checkpoint_age_seconds=now - seconds_of(saved["time"]) if saved and steps else None,
        skipped_steps=sum(event["event"] == "skipped" for event in events),
        failure=failed["words"].splitlines()[-1] if failed else None,
    )


def _state(events: list[dict[str, Any]], is_running: bool) -> State:
    since_launch: list[str] = []
    for event in events:
        since_launch = [] if event["event"] == "launched" else [*since_launch, event["event"]]
    if is_running:
        return "running" if "started" in since_launch else "starting"
    for event_name in reversed(since_launch):
        if event_name in ENDS:
            return ENDS[event_name]
    return "lost"


def _newest(events: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((event for event in reversed(events) if event["event"] == name), None)


def seconds_of(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
