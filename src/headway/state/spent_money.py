"""Money that a run on a target has cost: a small file in the run directory, which every keeper of
the run continues.

A pod costs from the second in which it gets a machine to the second in which it ends, both by
Kubernetes' own times, so the sum does not depend on who adds it up, how often, and when. Pods are
remembered by name for as long as the API server may still show them: none is counted twice.

The file has a copy beside it. If it is damaged or gone, the copy continues; if both are, what the
run had cost is not known, and the sum begins anew and says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from headway.clock import seconds_of, stamp
from headway.errors import BadInput
from headway.spec.price_config import dollars
from headway.state.store import Store

FILE, COPY = "spent.json", "spent-copy.json"
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
class UnknownBefore:
    """The record was lost, and the sum begins anew."""

    since: float
    budget_usd: float | None
    """The budget of that moment. It may be used up: only with another one may the run go on."""


@dataclass(frozen=True)
class Spending:
    """What a run has cost so far."""

    usd: float
    budget_usd: float | None
    usd_per_hour: float
    """What its nodes cost at the moment; 0 if it has none."""
    counted_until: str
    rates: list[RateTotal]
    counted_since: str | None = None
    """The record was lost at that time: what the run had cost before is not in the sum."""

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
    unknown: UnknownBefore | None = None

    def look(
        self,
        there: Iterable[PodTime],
        rate_of: Callable[[str], NodeRate],
        launch: str | None,
        now: float,
    ) -> None:
        """`there`: all pods that Kubernetes knows and that have, or had, a machine. `rate_of` a
        pod is asked once, and again at each look as long as the capacity is not known. `launch`
        names this start of the workers."""
        listed = {one.pod: one for one in there}
        for name, one in listed.items():
            known, until = self.pods.get(name), one.until
            if until is None and one.has_ended:
                until = known.until if known is not None and known.until is not None else now
            if known is None:
                self.pods[name] = CountedPod(rate_of(name), one.since, until)
                continue
            known.until, known.gone = until, None
            if known.rate.capacity == "unknown":
                known.rate = rate_of(name)
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
            counted_since=None if self.unknown is None else stamp(self.unknown.since),
        )

    def text(self, budget_usd: float | None) -> str:
        """Of the file."""
        found: dict[str, Any] = {
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
        if self.unknown is not None:
            since, budget = stamp(self.unknown.since), self.unknown.budget_usd
            found["unknown_before"] = {"time": since, "budget_usd": budget}
        return json.dumps(found, indent=1) + "\n"

    @classmethod
    def parse(cls, text: bytes) -> tuple[Account, float | None]:
        """With the budget. Raises LaterRecord, or one of DAMAGES."""
        found = json.loads(text)
        if isinstance(found["version"], int) and found["version"] > VERSION:
            raise LaterRecord(
                f"{FILE} is of version {found['version']}, and this Headway reads {VERSION}",
                "run it with the version of Headway that it was run with before",
            )
        unknown = found.get("unknown_before")
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
            unknown=UnknownBefore(seconds_of(unknown["time"]), unknown["budget_usd"])
            if unknown is not None
            else None,
        )
        return account, found["budget_usd"]


class LaterRecord(BadInput):
    """A later version of Headway has written it."""


DAMAGES = (ValueError, KeyError, TypeError, AttributeError)
"""What reading a damaged record raises."""


@dataclass(frozen=True)
class OpenedAccount:
    account: Account
    mended: str | None = None
    """What was wrong with the record, and what became of it."""


def continued_account(store: Store, budget_usd: float | None, now: float) -> OpenedAccount:
    """Of the run, for a new keeper. A damaged record is kept under another name. Raises
    LaterRecord, or OSError if the store does not answer."""
    content = _content(store)
    account = _parsed(content)
    if account is not None:
        account.keeper += 1
        return OpenedAccount(account)
    copy = _content(store, COPY)
    if content is None and copy is None:
        return OpenedAccount(Account(keeper=1))
    account = _parsed(copy)
    damaged = [content] if account is not None else [content, copy]
    names = [_keep_damaged(store, one) for one in damaged if one is not None]
    what = f"{store.location(FILE)} is {'gone' if content is None else 'damaged'}"
    aside = f"; kept as {' and '.join(dict.fromkeys(names))}" if names else ""
    if account is not None:
        account.keeper += 1
        mended = f"{what}: its copy of {stamp(account.counted_until)} continues{aside}"
        return OpenedAccount(account, mended)
    # No keeper has had so high a number: one that still runs must not take this one for older.
    account = Account(keeper=int(now), unknown=UnknownBefore(now, budget_usd))
    mended = f"{what}, and there is no good copy: what the run had cost is not known{aside}"
    return OpenedAccount(account, mended)


def save_account(store: Store, keeper: int, text: str) -> bool:
    """Returns False, and changes nothing, if a newer keeper has taken over."""
    content = _content(store)
    with suppress(*DAMAGES):  # damaged since: this keeper knows the sum
        if content is not None and json.loads(content)["keeper"] > keeper:
            return False
    for name in (FILE, COPY):  # each is there whole, or as it was
        store.write(name, text.encode())
    return True


def read_spending(store: Store) -> Spending | None:
    """What the run has cost; None: nothing counts it, or it is not known."""
    return spending_or_problem(store)[0]


def spending_or_problem(store: Store) -> tuple[Spending | None, str | None]:
    """What the run has cost, or why that is not known; neither: nothing counts it."""
    content = _content(store)
    try:
        if content is not None and (found := _with_budget(content)) is not None:
            return found, None
        copy = _content(store, COPY)
        if copy is not None and (found := _with_budget(copy)) is not None:
            return found, None
    except LaterRecord as error:
        return None, error.message
    is_damaged = content is not None or copy is not None
    where = store.location(FILE)
    return None, f"{where} is damaged, and there is no good copy" if is_damaged else None


def _with_budget(content: bytes) -> Spending | None:
    """None: it is damaged."""
    with suppress(*DAMAGES):
        account, budget_usd = Account.parse(content)
        return account.spending(budget_usd)
    return None


def _parsed(content: bytes | None) -> Account | None:
    """None: there is none, or it is damaged."""
    with suppress(*DAMAGES):
        return Account.parse(content)[0] if content is not None else None
    return None


def _keep_damaged(store: Store, content: bytes) -> str:
    """Returns the name. Somebody may know better what to make of it."""
    name = f"spent-damaged-{hashlib.sha256(content).hexdigest()[:8]}.json"
    store.create(name, content)
    return name


def used_budget(event: Mapping[str, Any]) -> str:
    """Of an event `budget`: `$20.01 of $20.00`."""
    if "spent_usd" in event:
        return f"{dollars(event['spent_usd'])} of {dollars(event['usd'])}"
    return f"{event['spent_hours']:g} of {event['hours']:g} hours"


def _content(store: Store, name: str = FILE) -> bytes | None:
    try:
        return store.read(name)
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
