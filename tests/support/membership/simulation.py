"""A run that is simulated: its coordinators, its network, its process groups, and their faults."""

from __future__ import annotations

from headway.member.coordinator.decide import Membership
from headway.member.protocol.generation import Generation
from support.membership.checks import Checks
from support.membership.coordinator import Coordinator, MakeMembership
from support.membership.history import Fault, History
from support.membership.network import Network
from support.membership.record import Record
from support.membership.training import Group
from support.membership.world import World


class Simulation:
    def __init__(
        self,
        history: History,
        checks: Checks,
        world: World,
        membership: MakeMembership = Membership,
    ) -> None:
        self.history, self.world, self._checks, self._membership = (
            history,
            world,
            checks,
            membership,
        )
        self.network = Network(world, history.noise)
        self.record = Record()
        self._groups: dict[int, Group] = {}

    def _start_coordinator(self) -> Coordinator:
        rules = self.history.rules
        return Coordinator(
            self.world, self.network, self.record, rules, self._checks, self._membership
        )

    def _group(self, generation: Generation) -> Group:
        if generation.number not in self._groups:
            self._groups[generation.number] = Group(
                self.world, self.network, self._checks, generation
            )
        return self._groups[generation.number]

    def _strike_network(self, fault: Fault, worker: str, other: str) -> None:
        """Cuts of the network between these two workers and the coordinator; all other faults are
        the coordinator's."""
        match fault.kind:
            case "worker is cut off":
                self._cut(fault.seconds, (worker, ""), ("", worker))
            case "worker is not heard":
                self._cut(fault.seconds, (worker, ""))
            case "worker hears nothing":
                self._cut(fault.seconds, ("", worker))
            case "two workers are cut" | "two workers are cut for long":
                if other != worker:
                    self._cut(fault.length, (worker, other))
            case _:
                self._strike_coordinator(fault)

    def _strike_coordinator(self, fault: Fault) -> None:
        coordinator = self.network.coordinators[-1]
        match fault.kind:
            case "coordinator dies" | "coordinator vanishes":
                coordinator.die(silently=fault.kind == "coordinator vanishes")
                self.world.after(fault.seconds / 4, self._start_coordinator)
            case "coordinator stops":
                coordinator.stop()
                self.world.after(fault.seconds, coordinator.resume)
            case "second coordinator":
                self._start_coordinator()
            case "clock jumps":
                coordinator.jump(fault.seconds)
            case "record is away":
                self.record.is_away = True
                self.world.after(fault.seconds, self._record_is_back)
            case "record is stale":
                self.record.is_stale = True

    def _record_is_back(self) -> None:
        self.record.is_away = False

    def _cut(self, seconds: float, *ways: tuple[str, str]) -> None:
        self.network.cut.update(ways)

        def mend() -> None:
            for way in ways:
                self.network.mend(way)
            for group in self._groups.values():
                group.try_finish()

        self.world.after(seconds, mend)
