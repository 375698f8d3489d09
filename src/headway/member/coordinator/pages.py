"""What the coordinator shows of itself: state, history, metrics. Plain facts, no secrets."""

from __future__ import annotations

from asyncio import AbstractEventLoop, run_coroutine_threadsafe
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from headway.http_server import JSON, TEXT, Answer, Page
from headway.member.coordinator.history import GenerationFacts, Refusal, SessionEvent
from headway.member.protocol.generation import Generation
from headway.member.protocol.status import WorkerStatus

if TYPE_CHECKING:
    from headway.member.coordinator.server import CoordinatorServer

PAGE_SECONDS = 10.0
"""For the event loop to make a page."""
COUNTED = ("beats", "opened", "requests", "defects")


class WorkerView(Struct, frozen=True):
    is_member: bool
    session: int | None
    """Number of its session; None: it has none now."""
    silent_seconds: float | None
    """Time since it was last heard; None: not since this coordinator started."""
    status: WorkerStatus
    """What it said then."""


class StateView(Struct, frozen=True):
    run: str
    incarnation: int
    uptime_seconds: float
    generation: Generation
    went: bool
    """Whether all of its members have entered it..."""
    established: bool
    """... and have the run's state."""
    waiting: list[str]
    """Workers that are ready, and not in it."""
    workers: dict[str, WorkerView] = field(name="pods")
    unproven: int
    """Connections that have not proven the key yet."""
    counts: dict[str, int]
    """Since this coordinator started: heartbeats (`beats`), sessions `opened`, `requests` to the
    store for process groups, and `defects` that have closed a connection."""


class HistoryView(Struct, frozen=True):
    """The newest last; only since this coordinator started."""

    generations: list[GenerationFacts]
    sessions: list[SessionEvent]
    refusals: list[Refusal]


def pages(server: CoordinatorServer, loop: AbstractEventLoop) -> dict[str, Page]:
    """They are made on the thread of `loop`, so that each shows one state."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(server))
    made: dict[str, Page] = {
        "/state": lambda: (JSON, _json(state(server))),
        "/history": lambda: (JSON, _json(history(server))),
        "/metrics": lambda: (CONTENT_TYPE_LATEST, generate_latest(registry)),
        "/healthz": lambda: (TEXT, b"ok\n"),
    }
    return {path: _made_on(loop, page) for path, page in made.items()}


def _made_on(loop: AbstractEventLoop, page: Page) -> Page:
    async def make() -> Answer:
        return page()

    def answer() -> Answer:
        making = make()
        try:
            waiting = run_coroutine_threadsafe(making, loop)
        except RuntimeError:  # the loop has ended
            making.close()
            raise OSError("the coordinator is stopping") from None
        try:
            return waiting.result(PAGE_SECONDS)
        except TimeoutError:
            waiting.cancel()
            raise OSError("the coordinator is busy") from None
        except CancelledError:
            raise OSError("the coordinator is stopping") from None

    return answer


def state(server: CoordinatorServer) -> StateView:
    membership, now = server.membership, server.clock.monotonic()
    members = frozenset(membership.current.workers())
    workers = {}
    for name, worker in membership.workers.items():
        is_known = worker.session is not None or worker.heard > server.began
        workers[name] = WorkerView(
            is_member=name in members,
            session=worker.session,
            silent_seconds=round(now - worker.heard, 3) if is_known else None,
            status=worker.status,
        )
    acceptor = server.sessions.acceptor
    return StateView(
        run=server.run,
        incarnation=membership.incarnation,
        uptime_seconds=round(now - server.began, 3),
        generation=membership.current,
        went=membership.went,
        established=membership.established,
        waiting=[
            name for name, worker in workers.items() if worker.status.ready and not worker.is_member
        ],
        workers=workers,
        unproven=acceptor.num_unproven if acceptor is not None else 0,
        counts={name: server.counts[name] for name in COUNTED},
    )


def history(server: CoordinatorServer) -> HistoryView:
    kept = server.history
    return HistoryView(list(kept.generations), list(kept.events), list(kept.refusals))


def _json(view: Struct) -> bytes:
    return msgspec.json.encode(view) + b"\n"


class _Metrics(Collector):
    """What the dashboard and the guide's alerts ask for."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server, current = self._server, self._server.membership.current
        for name, meaning, value in (
            ("generation", "Newest published generation.", current.number),
            ("paused", "1 while there are fewer domains than the minimum.", current.paused),
            ("sessions", "Open sessions.", len(server.sessions)),
            ("lag_seconds", "Longest recent delay of the event loop.", server.lag_seconds),
        ):
            made = GaugeMetricFamily(f"headway_coordinator_{name}", meaning, labels=["run"])
            made.add_metric([server.run], float(value))
            yield made
