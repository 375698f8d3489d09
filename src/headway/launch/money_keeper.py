"""Counts what a run costs, from its pods, and keeps it in the run directory. The store is read and
written in a thread: the keeper never waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import inf

from headway.clock import Clock, stamp
from headway.errors import HeadwayError
from headway.kube.client import KubeClient
from headway.kube.node_prices import NodePrices
from headway.launch.job_decisions import MoneyProblem
from headway.launch.keeper_notes import KeeperNotes
from headway.launch.machine_capacities import MachineCapacities
from headway.launch.pod_decisions import PodFacts
from headway.spec.price_config import PriceConfig
from headway.state.spent_money import (
    FILE,
    Account,
    Capacity,
    LaterRecord,
    NodeRate,
    OpenedAccount,
    PodTime,
    Spending,
    continued_account,
    save_account,
)

SAVE_SECONDS = 30.0
"""Interval at which the sum is saved, and attempts to read it are repeated."""
UNREADABLE_SECONDS = 600.0
"""For which a run with a budget goes on while its record cannot be read, or does not answer."""
SETTLE_SECONDS = 30.0
"""Longest wait for the store when the keeper ends: a read of it may hang for ever."""


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
        self._store = notes.directory.store
        self._clock = clock
        has_spot_price = any(price.spot is not None for price in rates.kinds.values())
        self._machines = (
            MachineCapacities(kube, rates.spot_label, clock, notes.say)
            if rates.spot_label is not None and has_spot_price
            else None
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="money")
        self._opening: Future[OpenedAccount] | None = None
        self._saving: Future[bool] | None = None
        self._account: Account | None = None
        self._tried = -inf
        self._failure: Exception | None = None
        """Of the newest attempt to read the record."""
        self._opened_at: float | None = None
        """Time of the first attempt to read the record."""
        self._is_superseded = False
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
        self._look_at_machines(by_name.values())
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
        """Waits for the store, within bounds."""
        for pending in (self._opening, self._saving):
            if pending is not None:
                with suppress(TimeoutError):
                    pending.exception(SETTLE_SECONDS)
        self._collect()

    def save(self) -> None:
        """Now, since the keeper is about to end. If the store is away, the next keeper counts on
        from what was saved before."""
        self.settle()
        if self._account is None or self._is_superseded or self._saving is not None:
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
            self._opened_at = now if self._opened_at is None else self._opened_at
            now = self._clock.now()
            self._opening = self._thread.submit(
                continued_account, self._store, self._budget_usd, now
            )
            return
        text = self._account.text(self._budget_usd)
        keeper = self._account.keeper
        self._saving = self._thread.submit(save_account, self._store, keeper, text)

    def _collect(self) -> None:
        """What the thread has done."""
        try:
            if self._opening is not None and self._opening.done():
                opening, self._opening = self._opening, None
                opened = opening.result()
                self._account, self._failure = opened.account, None
                self._tried = -inf  # to be saved at once, with the number of this keeper
                if opened.mended is not None:
                    self._notes.note("spent_mended", reason=opened.mended)
                    self._notes.say(opened.mended)
            if self._saving is not None and self._saving.done():
                saving, self._saving = self._saving, None
                self._is_superseded = not saving.result()
        except (HeadwayError, OSError, ValueError) as error:
            self._failure = error
            self._notes.say(f"what the run costs is not recorded: {error}")

    @property
    def problem(self) -> MoneyProblem | None:
        """Why the budget cannot be kept, if it cannot."""
        if self._budget_usd is None:
            return None
        if self._account is None:
            failure = self._failure
            if not self._is_unread_for_long and not isinstance(failure, LaterRecord):
                return None
            words = "the storage does not answer" if failure is None else str(failure)
            where = self._store.location(FILE)
            if isinstance(failure, HeadwayError):
                return MoneyProblem(failure.message, failure.hint or f"make {where} readable")
            return MoneyProblem(f"{where} cannot be read: {words}", f"make {where} readable")
        unknown = self._account.unknown
        if unknown is None or unknown.budget_usd != self._budget_usd:
            return None
        return MoneyProblem(
            f"what the run had cost before {stamp(unknown.since)} is not known: "
            f"{self._store.location(FILE)} was damaged or gone, and so was its copy",
            "see what your cloud billed, set budget.usd to what the run may cost from now on, to "
            f"another number than {self._budget_usd:g}",
        )

    @property
    def _is_unread_for_long(self) -> bool:
        waited = self._clock.monotonic() - (self._opened_at or 0.0)
        return self._opened_at is not None and waited >= UNREADABLE_SECONDS

    def _look_at_machines(self, pods: Iterable[PodFacts]) -> None:
        if self._machines is None:
            return
        asked = [(pod.machine, pod.has_ended) for pod in pods if self._may_be_spot(pod)]
        self._machines.look(
            [machine for machine, has_ended in asked if machine is not None and not has_ended],
            [machine for machine, has_ended in asked if machine is not None and has_ended],
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
