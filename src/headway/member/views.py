"""What the coordinator shows of itself: state, history, metrics. Plain facts, no secrets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from headway.member.generation import Generation
from headway.member.history import GenerationFacts, Refusal, SessionEvent
from headway.member.http import JSON, TEXT, Page

if TYPE_CHECKING:
    from headway.member.server import Server


class PodView(Struct, frozen=True, omit_defaults=True):
    is_member: bool
    session: int | None
    """None: it has none now."""
    silent_seconds: float | None
    """Since it was last heard; None: not since this coordinator started."""
    seen: int
    entered: int
    went: int
    healed: int
    ready: bool
    leaving: bool = False
    trouble: int = 0
    peers: tuple[str, ...] = ()
    waits: int = 0


class StateView(Struct, frozen=True):
    run: str
    incarnation: int
    uptime_seconds: float
    generation: Generation
    went: bool
    """All of its members have entered it..."""
    established: bool
    """... and have the run's state."""
    waiting: list[str]
    """Pods that are not in it, and could be."""
    pods: dict[str, PodView]


class HistoryView(Struct, frozen=True):
    """The newest last, and only since this coordinator started."""

    generations: list[GenerationFacts]
    sessions: list[SessionEvent]
    refusals: list[Refusal]


def pages(server: Server) -> dict[str, Page]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(server))
    return {
        "/state": Page(JSON, lambda: _json(state(server))),
        "/history": Page(JSON, lambda: _json(history(server))),
        "/metrics": Page(CONTENT_TYPE_LATEST, lambda: generate_latest(registry)),
        "/healthz": Page(TEXT, lambda: b"ok\n"),
    }


def state(server: Server) -> StateView:
    machine, now = server.machine, server.clock.monotonic()
    members = frozenset(machine.current.pods())
    pods = {}
    for name, pod in machine.pods.items():
        status = pod.status
        is_known = pod.session is not None or pod.heard > server.began
        pods[name] = PodView(
            is_member=name in members,
            session=pod.session,
            silent_seconds=round(now - pod.heard, 3) if is_known else None,
            seen=status.seen,
            entered=status.entered,
            went=status.went,
            healed=status.healed,
            ready=status.ready,
            leaving=status.leaving,
            trouble=status.trouble,
            peers=status.peers,
            waits=status.waits,
        )
    return StateView(
        run=server.run,
        incarnation=machine.incarnation,
        uptime_seconds=round(now - server.began, 3),
        generation=machine.current,
        went=machine.went,
        established=machine.established,
        waiting=[name for name, pod in pods.items() if not pod.is_member and pod.ready],
        pods=pods,
    )


def history(server: Server) -> HistoryView:
    kept = server.history
    return HistoryView(list(kept.generations), list(kept.events), list(kept.refusals))


def _json(view: Struct) -> bytes:
    return msgspec.json.encode(view) + b"\n"


class _Metrics(Collector):
    """Made when they are asked for: what is counted thousands of times a second is a plain number
    until then."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server = self._server
        machine, counts = server.machine, server.counts
        info = GaugeMetricFamily(
            "headway_coordinator_info", "Which run this is of.", labels=["run"]
        )
        info.add_metric([server.run], 1)
        yield info
        num_members = sum(len(domain.pods) for domain in machine.current.domains)
        door = server.door
        for name, meaning, value in (
            ("incarnation", "Of this coordinator.", machine.incarnation),
            ("generation", "The newest that was announced.", machine.current.number),
            ("domains", "In the generation.", len(machine.current.domains)),
            ("members", "Pods in the generation.", num_members),
            ("paused", "1 while there are fewer domains than the minimum.", machine.current.paused),
            ("went", "1 when all members have entered the generation.", machine.went),
            ("established", "1 when all members have the run's state.", machine.established),
            ("sessions", "Open ones.", len(server.sessions)),
            ("unproven", "Connections without a proof.", door.num_unproven if door else 0),
            ("store_keys", "Keys and values kept for groups.", server.rendezvous.num_keys),
            ("store_bytes", "Size of these.", server.rendezvous.num_bytes),
            ("write_seconds", "From decision to record, newest one.", server.write_seconds),
            (
                "announce_seconds",
                "From record to the last session, newest one.",
                server.news.announce_seconds,
            ),
            ("lag_seconds", "The longest delay of the loop, fading.", server.lag_seconds),
            ("uptime_seconds", "Since the start.", server.clock.monotonic() - server.began),
        ):
            yield GaugeMetricFamily(f"headway_coordinator_{name}", meaning, float(value))
        for name, meaning, value in (
            ("beats", "Beats that were accepted.", counts["beats"]),
            ("goodbyes", "Goodbyes that were accepted.", counts["goodbyes"]),
            ("requests", "Requests to the store of keys and values.", counts["requests"]),
            ("opened", "Sessions opened.", counts["opened"]),
            ("closed", "Sessions closed.", counts["closed"]),
            ("refused", "Connections that said something wrong.", counts["refused"]),
            ("connections", "Connections accepted.", door.num_accepted if door else 0),
            (
                "dropped",
                "Connections that proved nothing in time, or were too many.",
                door.num_dropped if door else 0,
            ),
            ("generations", "Generations announced.", counts["generations"]),
            ("record_failures", "Times that the record was away.", counts["record failures"]),
            ("defects", "Errors of the coordinator itself.", counts["defects"]),
        ):
            yield CounterMetricFamily(f"headway_coordinator_{name}", meaning, float(value))
