"""Pages of a run in the coordinator's pod: status, events, and those of the coordinator itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from headway.clock import Clock
from headway.http_server import JSON, Answer, Page, Pages
from headway.kube.wheels import own_digest
from headway.launch.coordinator_process import CoordinatorProcess
from headway.launch.run_metrics import RunMetrics
from headway.state.run_history import HistoryReader
from headway.state.status import status_of, watched

OF_THE_COORDINATOR = ("/state", "/history", "/healthz")
SHOWN = ("launched", "started", "changed", "scaled", "stuck", "failed", "gave_back", "tries_again")
"""Events that `headway status` shows..."""
MOST_EVENTS = 200
"""... and how many of them at most."""
MOST_HISTORY = 5000
KEPT_SECONDS = 0.5
"""How long a page is cached..."""
MADE_SHARE = 10
"""... or so many times as long as it took to make, which is a tenth of a core for each page..."""
MOST_KEPT_SECONDS = 30.0
"""... but never longer than this."""


def run_pages(coordinator: CoordinatorProcess, reader: HistoryReader, clock: Clock) -> Pages:
    remembered = watched(reader.directory)

    def status() -> Answer:
        history = reader.read()
        events = [event for event in history.events if event["event"] in SHOWN]
        known = {
            "status": status_of(reader.directory, history, clock.now()).as_json(),
            "events": events[-MOST_EVENTS:],
            "loss": newest_loss(history.events),
            "files": own_digest(),
        }
        return _json(known)

    def events() -> Answer:
        return _json(remembered.history()[-MOST_HISTORY:])

    def metrics() -> Answer:
        own = partial(generate_latest, RunMetrics(reader, clock, num_training(coordinator.state())))
        return CONTENT_TYPE_LATEST, _joined([lambda: coordinator.page("/metrics")[1], own])

    def page(path: str) -> Page:
        return lambda: coordinator.page(path)

    theirs = {path: page(path) for path in OF_THE_COORDINATOR}
    made = {"/status": status, "/events": events, "/metrics": metrics, **theirs}
    return {path: cached(make, clock) for path, make in made.items()}


def num_training(state: Mapping[str, Any] | None) -> int | None:
    """Workers that train, from the coordinator's `/state`; None if there is none."""
    if state is None:
        return None
    generation = state["generation"]
    if generation["paused"]:
        return 0
    return sum(len(domain["pods"]) for domain in generation["domains"])


def _joined(parts: Sequence[Callable[[], bytes]]) -> bytes:
    """Those that can be made now: a coordinator that restarts must not hide the loss, nor a store
    that is away the members."""
    made, failures = [], []
    for part in parts:
        try:
            made.append(part())
        except OSError as error:
            failures.append(error)
    if not made:
        raise failures[0]
    return b"".join(made)


def cached(make: Page, clock: Clock) -> Page:
    """A page that is made once for all requests within a while; so is its error. Anyone in the
    cluster may ask, as often as they like."""
    lock = Lock()
    until = -math.inf
    found: Answer | None = None
    failure: tuple[type[OSError], str] = (OSError, "")

    def page() -> Answer:
        nonlocal until, found, failure
        with lock:
            began = clock.monotonic()
            if began >= until:
                try:
                    found = make()
                except OSError as error:
                    found = None
                    is_refused = isinstance(error, PermissionError)
                    failure = PermissionError if is_refused else OSError, str(error)
                ended = clock.monotonic()
                until = ended + _keeping(ended - began if found is not None else 0.0)
            answer, (kind, words) = found, failure
        if answer is None:
            raise kind(words)  # a new one: each raise makes an exception's traceback longer
        return answer

    return page


def _keeping(made_seconds: float) -> float:
    return min(max(KEPT_SECONDS, MADE_SHARE * made_seconds), MOST_KEPT_SECONDS)


def newest_loss(events: Sequence[Mapping[str, Any]]) -> str | None:
    """The newest loss that the run has not recovered from."""
    ends = ("launched", "started", "changed")
    for event in reversed(events):
        if event["event"] in ends:
            return None
        if event["event"] == "lost":
            return f"node {event['node']} was lost: its pod {event['how']}"
    return None


def _json(found: object) -> Answer:
    return JSON, json.dumps(found).encode() + b"\n"
