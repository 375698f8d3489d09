"""Counts what a run costs, from its pods, and notes it in the journal."""

from __future__ import annotations

from collections.abc import Sequence

from headway.clock import Clock
from headway.errors import HeadwayError
from headway.kube.client import KubeClient
from headway.kube.node_prices import NodePrices
from headway.launch.job_decisions import MoneyProblem
from headway.launch.keeper_notes import KeeperNotes
from headway.launch.machine_capacities import MachineCapacities
from headway.launch.pod_decisions import PodFacts
from headway.spec.price_config import PriceConfig
from headway.state.run_history import RunHistory
from headway.state.spent_money import BILLED, Bill, Capacity, NodeRate, Spending

UNREADABLE_SECONDS = 600.0
"""For which a run with a budget goes on while what it has cost cannot be read."""


class MoneyKeeper:
    def __init__(
        self,
        kube: KubeClient,
        rates: NodePrices,
        budget_usd: float | None,
        notes: KeeperNotes,
        clock: Clock,
    ) -> None:
        self._rates = rates
        self._budget_usd = budget_usd
        self._notes = notes
        self._clock = clock
        has_spot_price = any(price.spot is not None for price in rates.kinds.values())
        self._machines = (
            MachineCapacities(kube, rates.spot_label, clock, notes.say)
            if rates.spot_label is not None and has_spot_price
            else None
        )
        self._bill: Bill | None = None
        self._is_noted = False
        """Whether this keeper has noted a bill."""
        self._first_look: float | None = None
        self.failure: Exception | None = None
        """Error of the latest attempt to read the journal."""

    @property
    def is_open(self) -> bool:
        """Whether it is known what the run had cost before this keeper."""
        return self._bill is not None

    def open(self, history: RunHistory) -> None:
        self._bill = Bill.noted(history.events)

    def look(self, pods: Sequence[PodFacts] | None, kind: str | None) -> Spending | None:
        """What the run has cost; None: not known yet. `kind` of node that it has, if it may have
        one of several."""
        if self._first_look is None:
            self._first_look = self._clock.monotonic()
        if self._bill is None or pods is None:
            return None
        there = [
            (pod, pod.placed_at) for pod in pods if pod.placed_at is not None and not pod.has_ended
        ]
        if self._machines is not None:
            maybe_spot = [pod.machine for pod, _ in there if self._may_be_spot(pod)]
            self._machines.look(machine for machine in maybe_spot if machine is not None)
        nodes = [(self._rate(pod, kind), since) for pod, since in there]
        if self._bill.count(nodes, self._clock.now()) or not self._is_noted:
            self.note()
        return self._bill.spending(self._budget_usd)

    def note(self) -> None:
        """What is known, for whoever reads the journal."""
        if self._bill is not None:
            self._is_noted = True
            self._notes.note(BILLED, budget_usd=self._budget_usd, rates=self._bill.facts())

    @property
    def problem(self) -> MoneyProblem | None:
        """Why the budget cannot be kept, if it cannot."""
        if self._budget_usd is None or self.is_open or self._first_look is None:
            return None
        if self._clock.monotonic() - self._first_look < UNREADABLE_SECONDS:
            return None
        words = "the storage does not answer" if self.failure is None else str(self.failure)
        hint = self.failure.hint if isinstance(self.failure, HeadwayError) else None
        return MoneyProblem(
            f"what the run has cost cannot be read: {words}",
            hint or f"make {self._notes.directory.location} readable",
        )

    def _rate(self, pod: PodFacts, kind: str | None) -> NodeRate:
        kinds = self._rates.kinds
        # A queue may have chosen any of them.
        dearest = max(kinds, key=lambda one: kinds[one].on_demand)
        node = kind if kind is not None and kind in kinds else dearest
        price = kinds[node]
        capacity = self._capacity(pod, price)
        is_spot = capacity == "spot" and price.spot is not None
        each = price.spot if is_spot and price.spot is not None else price.on_demand
        return NodeRate(node, capacity, each)

    def _capacity(self, pod: PodFacts, price: PriceConfig) -> Capacity:
        if price.spot is None or not self._may_be_spot(pod):
            return "on_demand"
        if self._machines is None or pod.machine is None:
            return "unknown"
        return self._machines.of(pod.machine)

    def _may_be_spot(self, pod: PodFacts) -> bool:
        below = self._rates.on_demand_below
        return below is not None and pod.index >= below
