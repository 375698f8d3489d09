"""Money that a run on a target has cost: a small file in the run directory, which every keeper of
the run continues.

A pod costs from the second in which it gets a machine to the second in which it ends, both by
Kubernetes' own times, so the sum does not depend on who adds it up, how often, and when. Pods are
remembered by name for as long as the API server may still show them: none is counted twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from headway.clock import seconds_of, stamp
from headway.errors import BadInput
from headway.spec.price_config import dollars
from headway.state.store import Store

FILE = "spent.json"
VERSION = 1
HOUR = 3600.0
REMEMBERED_SECONDS = 600.0
"""Time for which a pod that is gone is remembered: a watch that lags may show it again."""
GRACE_SECONDS = 120.0
"""Most time for which pods outlive a keeper that was deleted together with them."""

Capacity = Literal["on_demand", "spot", "unknown"]
"""Of a pod's machine. `unknown`: it may be a spot machine, and its label could not be read; it
counts as on demand."""


@dataclass(frozen=True)
class NodeRate:
    """What a node costs."""

    node: str
    """Its devices, such as `H100:8`."""
    capacity: Capacity
    usd_per_hour: float


@dataclass(frozen=True)
class PodTime:
    """A pod that has, or had, a machine."""

    pod: str
    since: float
    """When it got its machine, in seconds since 1970."""
    until: float | None
    """When it ended; None: it has not, or nobody noted when."""
    has_ended: bool = False


@dataclass
class CountedPod:
    rate: NodeRate
    since: float
    until: float | None
    gone: float | None = None
    """When it was first missing from the pods of the run."""


@dataclass
class NodeTime:
    """Time of all nodes at one rate."""

    nodes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class RateTotal:
    """What nodes at one rate have cost."""

    node: str
    capacity: Capacity
    usd_per_hour: float
    nodes: int
    """Number of pods that there were."""
    hours: float
    """Of all of them together."""
    usd: float


@dataclass(frozen=True)
class Spending:
    """What a run has cost so far."""

    usd: float
    budget_usd: float | None
    usd_per_hour: float
    """What its nodes cost at the moment; 0 if it has none."""
    counted_until: str
    rates: list[RateTotal]

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Spending:
        rates = [RateTotal(**rate) for rate in known["rates"]]
        return cls(**{**known, "rates": rates})


@dataclass
class Account:
    keeper: int
    """Number of the keeper that continues it: of two, the newer one."""
    launch: str | None = None
    counted_until: float = 0.0
    pods: dict[str, CountedPod] = field(default_factory=dict)
    """Those that the API server has, or had a moment ago."""
    ended: dict[NodeRate, NodeTime] = field(default_factory=dict)
    """All others."""

    def look(
        self,
        there: Iterable[PodTime],
        rate_of: Callable[[str], NodeRate | None],
        launch: str | None,
        now: float,
    ) -> None:
        """`there`: all pods that Kubernetes knows and that have, or had, a machine. `rate_of` a
        pod that was not seen before; None: not known yet, asked again at the next look. `launch`
        names this start of the workers."""
        listed = {one.pod: one for one in there}
        for name, one in listed.items():
            known, until = self.pods.get(name), one.until
            if until is None and one.has_ended:
                until = known.until if known is not None and known.until is not None else now
            if known is not None:
                known.until, known.gone = until, None
            elif (rate := rate_of(name)) is not None:
                self.pods[name] = CountedPod(rate, one.since, until)
        for name in [name for name in self.pods if name not in listed]:
            self._miss(name, launch, now)
        self.launch = launch
        self.counted_until = max(self.counted_until, now)

    def _miss(self, name: str, launch: str | None, now: float) -> None:
        pod = self.pods[name]
        if pod.gone is None:
            pod.gone = now
            if pod.until is None:
                # Seen by nobody. In another launch, its Job was stopped or deleted before, and a
                # run may stay stopped for weeks.
                most = now if launch == self.launch else self.counted_until + GRACE_SECONDS
                pod.until = max(pod.since, min(now, most))
        elif now - pod.gone > REMEMBERED_SECONDS:
            del self.pods[name]
            self._add(self.ended, pod)

    def _add(self, sums: dict[NodeRate, NodeTime], pod: CountedPod) -> None:
        time = sums.setdefault(pod.rate, NodeTime())
        until = pod.until if pod.until is not None else self.counted_until
        time.nodes += 1
        time.seconds += max(0.0, until - pod.since)

    def spending(self, budget_usd: float | None) -> Spending:
        sums = {rate: NodeTime(time.nodes, time.seconds) for rate, time in self.ended.items()}
        for pod in self.pods.values():
            self._add(sums, pod)
        rates = [
            RateTotal(
                node=rate.node,
                capacity=rate.capacity,
                usd_per_hour=rate.usd_per_hour,
                nodes=time.nodes,
                hours=time.seconds / HOUR,
                usd=time.seconds * rate.usd_per_hour / HOUR,
            )
            for rate, time in sums.items()
        ]
        return Spending(
            usd=sum(rate.usd for rate in rates),
            budget_usd=budget_usd,
            usd_per_hour=sum(
                pod.rate.usd_per_hour for pod in self.pods.values() if pod.until is None
            ),
            counted_until=stamp(self.counted_until),
            rates=rates,
        )

    def text(self, budget_usd: float | None) -> str:
        """Of the file."""
        found = {
            "version": VERSION,
            "keeper": self.keeper,
            "launch": self.launch,
            "time": stamp(self.counted_until),
            "usd": round(self.spending(budget_usd).usd, 4),
            "budget_usd": budget_usd,
            "pods": {
                name: {
                    **_written(pod.rate),
                    "since": stamp(pod.since),
                    "until": _stamp(pod.until),
                    "gone": _stamp(pod.gone),
                }
                for name, pod in self.pods.items()
            },
            "ended": [
                {**_written(rate), "nodes": time.nodes, "seconds": round(time.seconds, 3)}
                for rate, time in self.ended.items()
            ],
        }
        return json.dumps(found, indent=1) + "\n"

    @classmethod
    def parse(cls, text: bytes) -> tuple[Account, float | None]:
        """With the budget. Raises ValueError, KeyError or TypeError if it is damaged."""
        found = json.loads(text)
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}, and this Headway reads {VERSION}")
        account = cls(
            keeper=found["keeper"],
            launch=found["launch"],
            counted_until=seconds_of(found["time"]),
            pods={
                name: CountedPod(
                    _rate(pod),
                    seconds_of(pod["since"]),
                    _seconds(pod["until"]),
                    _seconds(pod["gone"]),
                )
                for name, pod in found["pods"].items()
            },
            ended={_rate(one): NodeTime(one["nodes"], one["seconds"]) for one in found["ended"]},
        )
        return account, found["budget_usd"]


def continued_account(store: Store) -> Account:
    """Of the run, for a new keeper."""
    content = _content(store)
    if content is None:
        return Account(keeper=1)
    try:
        account, _ = Account.parse(content)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{store.location(FILE)} is damaged, and what the run has cost is not known: {error}",
            "delete the file to count from the pods that are there now",
        ) from None
    account.keeper += 1
    return account


def save_account(store: Store, keeper: int, text: str) -> bool:
    """Returns False, and changes nothing, if a newer keeper has taken over."""
    content = _content(store)
    with suppress(ValueError, KeyError, TypeError):  # damaged since: this keeper knows the sum
        if content is not None and json.loads(content)["keeper"] > keeper:
            return False
    store.write(FILE, text.encode())
    return True


def read_spending(store: Store) -> Spending | None:
    """What the run has cost; None: nothing counts it, or the file is damaged."""
    content = _content(store)
    if content is None:
        return None
    try:
        account, budget_usd = Account.parse(content)
    except (ValueError, KeyError, TypeError):
        return None
    return account.spending(budget_usd)


def used_budget(event: Mapping[str, Any]) -> str:
    """Of an event `budget`: `$20.01 of $20.00`."""
    if "spent_usd" in event:
        return f"{dollars(event['spent_usd'])} of {dollars(event['usd'])}"
    return f"{event['spent_hours']:g} of {event['hours']:g} hours"


def _content(store: Store) -> bytes | None:
    try:
        return store.read(FILE)
    except FileNotFoundError:
        return None


def _written(rate: NodeRate) -> dict[str, Any]:
    return {"node": rate.node, "capacity": rate.capacity, "usd_per_hour": rate.usd_per_hour}


def _rate(found: dict[str, Any]) -> NodeRate:
    return NodeRate(found["node"], found["capacity"], found["usd_per_hour"])


def _stamp(seconds: float | None) -> str | None:
    return None if seconds is None else stamp(seconds)


def _seconds(text: str | None) -> float | None:
    return None if text is None else seconds_of(text)
