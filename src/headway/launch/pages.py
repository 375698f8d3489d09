"""What can be looked at in the coordinator's pod."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.clock import Clock
from headway.launch.coordinator import Coordinator
from headway.launch.serving import Answer, Pages
from headway.member.http import JSON
from headway.state.rundir import RunDirectory
from headway.state.status import read_status

OF_THE_COORDINATOR = ("/state", "/history", "/metrics", "/healthz")
SHOWN = ("launched", "started", "changed", "scaled", "stuck", "failed")
"""Events that `headway status` tells of..."""
MOST_EVENTS = 200
"""... and how many of them at most."""
MOST_HISTORY = 5000


def pages_of(coordinator: Coordinator, directory: RunDirectory, clock: Clock) -> Pages:
    def status() -> Answer:
        history = directory.history()
        events = [event for event in history if event["event"] in SHOWN]
        known = {
            "status": read_status(directory, clock.now()).as_json(),
            "events": events[-MOST_EVENTS:],
            "loss": newest_loss(history),
        }
        return _json(known)

    def events() -> Answer:
        return _json(directory.history()[-MOST_HISTORY:])

    def page(path: str) -> Callable[[], Answer]:
        return lambda: coordinator.page(path)

    theirs = {path: page(path) for path in OF_THE_COORDINATOR}
    return {"/status": status, "/events": events, **theirs}


def newest_loss(events: Sequence[Mapping[str, Any]]) -> str | None:
    """Since the run was started, or went on without whoever was lost."""
    ends = ("launched", "started", "changed")
    for event in reversed(events):
        if event["event"] in ends:
            return None
        if event["event"] == "lost":
            return f"node {event['node']} was lost: its pod {event['how']}"
    return None


def _json(found: object) -> Answer:
    return JSON, json.dumps(found).encode() + b"\n"
