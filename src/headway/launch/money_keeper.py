"""Counts what a run costs, from its pods, and keeps it in the run directory. The store is read and
written in a thread: the keeper never waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf

from headway.clock import Clock
from headway.errors import HeadwayError
from headway.kube.client import ClusterUnreachable, Forbidden, KubeClient
from headway.kube.node_prices import NodePrices
from headway.launch.pod_decisions import PodFacts
from headway.spec.price_config import PriceConfig
from headway.state.spent_money import (
    Account,
    Capacity,
    NodeRate,
    PodTime,
    Spending,
    continued_account,
    save_account,
)
from headway.state.store import Store

SAVE_SECONDS = 30.0
"""Interval at which the sum is saved, and attempts to read it are repeated."""


class MoneyKeeper:
    def __init__(
        self,
        kube: KubeClient,
        rates: NodePrices,
        budget_usd: float | None,
        store: Store,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._rates = rates
        self._budget_usd = budget_usd
        self._store = store
        self._clock = clock
        self._say = say
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="money")
        self._opening: Future[Account] | None = None
        self._saving: Future[bool] | None = None
        self._account: Account | None = None
        self._tried = -inf
        self._is_superseded = False
        self._may_read_nodes = True
        self._capacities: dict[str, Capacity] = {}
        """By machine."""
        self._deleted: deque[PodFacts] = deque()
        """Since the last look."""

    def note_deleted(self, pod: PodFacts) -> None:
        """From any thread. A pod may end and be gone between two looks; how long it lived is in
        the last that the API server says of it."""
        if pod.ended_at is not None:
            self._deleted.append(pod)

    def look(
        self, pods: Sequence[PodFacts] | None, kind: str | None, launch: str | None
    ) -> Spending | None:
        """What the run has cost; None: not known yet. `kind` of node that it has, if it may have
        one of several."""
        self._read_and_save()
        if self._account is None or pods is None or self._is_superseded:
            return None
        by_name = {pod.name: pod for pod in pods}
        for _ in range(len(self._deleted)):
            pod = self._deleted.popleft()
            by_name[pod.name] = pod  # as it was at last
        self._account.look(
            [
                PodTime(pod.name, pod.placed_at, pod.ended_at, pod.has_ended)
                for pod in by_name.values()
                if pod.placed_at is not None
            ],
            lambda name: self._rate(by_name[name], kind),
            launch,
            self._clock.now(),
        )
        return self._account.spending(self._budget_usd)

    def settle(self) -> None:
        """Waits for the store."""
        for pending in (self._opening, self._saving):
            if pending is not None:
                pending.exception()
        self._collect()

    def save(self) -> None:
        """Now, since the keeper is about to end. If the store is away, the next keeper counts on
        from what was saved before."""
        self.settle()
        if self._account is None or self._is_superseded:
            return
        keeper, text = self._account.keeper, self._account.text(self._budget_usd)
        self._saving = self._thread.submit(save_account, self._store, keeper, text)
        self.settle()

    def _read_and_save(self) -> None:
        self._collect()
        now = self._clock.monotonic()
        is_busy = self._opening is not None or self._saving is not None
        if is_busy or self._is_superseded or now - self._tried < SAVE_SECONDS:
            return
        self._tried = now
        if self._account is None:
            self._opening = self._thread.submit(continued_account, self._store)
            return
        text = self._account.text(self._budget_usd)
        keeper = self._account.keeper
        self._saving = self._thread.submit(save_account, self._store, keeper, text)

    def _collect(self) -> None:
        """What the thread has done."""
        try:
            if self._opening is not None and self._opening.done():
                opening, self._opening = self._opening, None
                self._account = opening.result()
                self._tried = -inf  # to be saved at once, with the number of this keeper
            if self._saving is not None and self._saving.done():
                saving, self._saving = self._saving, None
                self._is_superseded = not saving.result()
        except (HeadwayError, OSError, ValueError) as error:
            self._say(f"what the run costs is not recorded: {error}")

    def _rate(self, pod: PodFacts, kind: str | None) -> NodeRate | None:
        """None: the API server does not answer."""
        kinds = self._rates.kinds
        # A queue may have chosen any of them.
        dearest = max(kinds, key=lambda one: kinds[one].on_demand)
        node = kind if kind is not None and kind in kinds else dearest
        price = kinds[node]
        try:
            capacity = self._capacity(pod, price)
        except ClusterUnreachable:
            return None
        is_spot = capacity == "spot" and price.spot is not None
        each = price.spot if is_spot and price.spot is not None else price.on_demand
        return NodeRate(node, capacity, each)

    def _capacity(self, pod: PodFacts, price: PriceConfig) -> Capacity:
        below = self._rates.on_demand_below
        if below is None or pod.index < below or price.spot is None:
            return "on_demand"
        if self._rates.spot_label is None or pod.machine is None:
            return "unknown"
        if pod.machine not in self._capacities:
            self._capacities[pod.machine] = self._capacity_of(pod.machine, self._rates.spot_label)
        return self._capacities[pod.machine]

    def _capacity_of(self, machine: str, spot_label: tuple[str, str]) -> Capacity:
        if not self._may_read_nodes:
            return "unknown"
        try:
            node = self._kube.call("GET", f"api/v1/nodes/{machine}")
        except ClusterUnreachable:
            raise
        except Forbidden:
            self._may_read_nodes = False
            self._say(
                "labels of machines cannot be read: those that may be spot machines count as on "
                "demand. To count them by what they are, the coordinator needs the right to get "
                "nodes"
            )
            return "unknown"
        except HeadwayError:  # such a node is gone
            return "unknown"
        key, value = spot_label
        is_spot = (node["metadata"].get("labels") or {}).get(key) == value
        return "spot" if is_spot else "on_demand"
