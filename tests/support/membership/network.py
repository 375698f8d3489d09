"""Sessions between workers and coordinators: in order and whole as with TCP, unless the history
says otherwise; cut in one direction or both; and pairs of workers that cannot reach each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from support.membership.world import Action, World

if TYPE_CHECKING:
    from support.membership.connected_process import ConnectedProcess
    from support.membership.coordinator import Coordinator

BROKEN_SECONDS = 2.0
"""A connection on which nothing was acknowledged for so long is given up by the kernel."""


class Network:
    def __init__(self, world: World, noise: float) -> None:
        self.world = world
        self.noise = noise
        """How many of a hundred messages are lost, doubled or out of order."""
        self.coordinators: list[Coordinator] = []
        self.cut: set[tuple[str, str]] = set()
        """Directions in which nothing gets through; "" is the coordinator."""
        self._held: list[tuple[tuple[str, str], Action]] = []
        self.num_sessions = 0

    def is_cut(self, worker: ConnectedProcess) -> bool:
        """Whether nothing that it sends is acknowledged."""
        session = worker.session
        to_nobody = session is not None and session.coordinator.has_vanished
        return to_nobody or (worker.name, "") in self.cut or ("", worker.name) in self.cut

    def are_cut(self, one: str, other: str) -> bool:
        return (one, other) in self.cut or (other, one) in self.cut

    def carry(self, way: tuple[str, str], deliver: Action) -> None:
        if way in self.cut:
            self._held.append((way, deliver))
        else:
            deliver()

    def mend(self, way: tuple[str, str]) -> None:
        self.cut.discard(way)
        ready = [deliver for held, deliver in self._held if held == way]
        self._held = [item for item in self._held if item[0] != way]
        for deliver in ready:
            deliver()

    def living(self) -> list[Coordinator]:
        return [one for one in self.coordinators if one.is_serving]


class Session:
    """One connection. Each end learns of its end in its own time."""

    def __init__(
        self, network: Network, worker: ConnectedProcess, coordinator: Coordinator
    ) -> None:
        network.num_sessions += 1
        self.number = network.num_sessions
        self.network, self.worker, self.coordinator = network, worker, coordinator
        self.worker_open = self.coordinator_open = True
        self.welcomed = False
        self._next = {"up": 0.0, "down": 0.0}

    def up(self, deliver: Action) -> None:
        def arrive() -> None:
            if self.coordinator_open:
                self.network.carry((self.worker.name, ""), lambda: self.coordinator.do(deliver))

        self._send("up", arrive)

    def down(self, deliver: Action) -> None:
        def arrive() -> None:
            if self.worker_open:
                self.network.carry(("", self.worker.name), lambda: self.worker.do(deliver))

        self._send("down", arrive)

    def _send(self, way: str, arrive: Action) -> None:
        world = self.network.world
        times = 1
        in_order = True
        if world.random.random() * 100 < self.network.noise:
            kind = world.random.randrange(3)
            times, in_order = (0, True) if kind == 0 else (2, True) if kind == 1 else (1, False)
        for _ in range(times):
            at = world.now + world.random.random() * 0.01
            if in_order:
                at = self._next[way] = max(self._next[way], at)
            else:
                at += world.random.random() * 2
            world.after(at - world.now, arrive)

    def close_by_worker(self, silently: bool = False) -> None:
        if self.worker_open:
            self.worker_open = False
            if not silently:
                self._end("up", (self.worker.name, ""), self._coordinator_hears)

    def close_by_coordinator(self, silently: bool = False) -> None:
        if self.coordinator_open:
            self.coordinator_open = False
            if not silently:
                self._end("down", ("", self.worker.name), self._worker_hears)

    def _end(self, way: str, direction: tuple[str, str], hear: Callable[[], None]) -> None:
        world = self.network.world
        at = max(self._next[way], world.now + world.random.random() * 0.01)
        world.after(at - world.now, lambda: self.network.carry(direction, hear))

    def _coordinator_hears(self) -> None:
        if self.coordinator_open:
            self.coordinator.do(lambda: self.coordinator.lost(self))

    def _worker_hears(self) -> None:
        if self.worker_open:
            self.worker.do(lambda: self.worker.lost_session(self))
