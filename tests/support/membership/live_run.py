"""A live run under a history, and what must hold in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from headway.member.coordinator.decide import Membership
from headway.member.protocol.identity import WorkerIdentity, parse
from headway.member.worker.follower import Follower
from support.membership.checks import CHOOSE, Broken, Checks, Choose
from support.membership.coordinator import MakeMembership
from support.membership.history import Fault, History
from support.membership.simulation import Simulation
from support.membership.training import Held
from support.membership.worker import Worker
from support.membership.world import World

QUIET_SECONDS = 240.0
"""After the last fault: being barred, missing a generation, several tries, and waiting for the last
who has the state fit in. Nobody here says that it is no more."""
STEPS_AFTER = 3
REPLACED_SECONDS = 4.0
ENDED_SECONDS = 0.2
"""In which a launcher sees that one process of a node has died, and ends the others."""
WATCHDOG_SECONDS = 130.0
"""Then a process that hangs ends itself. Only if all hang does nobody notice it before."""
STANDSTILL_SECONDS, STANDSTILL_STEPS = 100.0, 15
"""As long as members are well that hold the state, no fault may hold the run up for longer."""
QUIET_STEPS = 30


class LiveRun(Simulation):
    def __init__(
        self,
        history: History,
        membership: MakeMembership = Membership,
        follower: Callable[[str], Follower] = Follower,
        choose: Choose = CHOOSE,
        telling: bool = False,
    ) -> None:
        world = World(history.seed, telling)
        self.checks = Checks(world, history.rules, Held(), choose)
        super().__init__(history, self.checks, world, membership)
        self._follower = follower
        self.workers: list[Worker] = []
        self._num_nodes = 0
        self._starts: Counter[str] = Counter()
        self._quiet_since = 0.0
        self._steps_before: int | None = None
        self._check_at = self._well_since = 0.0

    def play(self) -> None:
        """Raises Broken where something does not hold."""
        self.checks.is_peaceful = self.history.is_peaceful
        self._start_coordinator()
        for _ in range(self.history.num_workers // self.history.node_workers):
            self._start_node()
        for fault in self.history.faults:
            self.world.after(fault.time, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        ends = [fault.time + fault.length for fault in self.history.faults]
        self._quiet_since = max(ends, default=0.0) + REPLACED_SECONDS + 3
        end = self._quiet_since + QUIET_SECONDS + QUIET_STEPS * self.history.step_seconds
        self.world.run(end, self._is_over)
        if not self._is_over():
            raise Broken(f"no progress {QUIET_SECONDS:.0f} s after the last fault: {self._lacks()}")

    def _is_over(self) -> bool:
        self._check_standstill()
        if self.world.now < self._quiet_since:
            return False
        if self._steps_before is None:
            self._steps_before = max(self.checks.settled_states)
        return not self._lacks()

    def _check_standstill(self) -> None:
        if self.world.now < self._check_at:
            return
        self._check_at = self.world.now + 1
        living = self.network.living()
        members = (
            set(living[-1].membership.current.workers())
            if living and living[-1].membership
            else set()
        )
        well = {worker.name for worker in self.workers if worker.is_well and worker.name in members}
        num_well = self._num_domains(well)
        if num_well < self.history.min_domains or not self.checks.is_held_by(well):
            self._well_since = self.world.now
        since = max(self.checks.last_settled, self._well_since)
        patience = STANDSTILL_SECONDS + STANDSTILL_STEPS * self.history.step_seconds
        if self.world.now - since > patience:
            raise Broken(f"no step has been settled since {since:.3f} s")

    def _lacks(self) -> str:
        living = self.network.living()
        if not living:
            return "no coordinator"
        membership = living[-1].membership
        assert membership is not None
        assert self._steps_before is not None
        alive = {
            worker.name for worker in self.workers if not worker.is_dead and not worker.is_stuck
        }
        members = set(membership.current.workers())
        num_domains = min(self._num_domains(alive), self.history.rules.max_domains)
        if members - alive or len(membership.current.domains) < num_domains:
            return f"{sorted(members)} are members, {sorted(alive)} are alive"
        if max(self.checks.settled_states) < self._steps_before + STEPS_AFTER:
            return f"step {max(self.checks.settled_states)} is the last settled"
        return ""

    def _num_domains(self, workers: Collection[str]) -> int:
        """So many could be made of these, of whole nodes."""
        size = self.history.node_workers
        if size == 1:
            return len(workers) // self.history.domain_workers
        nodes = Counter(worker.split("/")[0] for worker in workers)
        num_whole = sum(count == size for count in nodes.values())
        return num_whole * size // self.history.domain_workers

    def _start_node(self, name: str | None = None) -> None:
        """All its processes, as a launcher starts them: on a new node, or again on this one."""
        if name is None:
            name, self._num_nodes = f"node-{self._num_nodes}", self._num_nodes + 1
        for worker in self.workers:
            if parse(worker.name).node == name:
                self.checks.was_replaced(worker.name)
        self._starts[name] += 1
        self.workers += [
            Worker(
                self.world,
                self.network,
                self.checks,
                self._group,
                self._follower,
                str(WorkerIdentity(name, self._starts[name], rank)),
                self.history.step_seconds,
            )
            for rank in range(self.history.node_workers)
        ]

    def _start_again(self, node: str) -> None:
        """Unless another start was quicker, or some of it are alive."""
        mates = [worker for worker in self.workers if parse(worker.name).node == node]
        if all(worker.is_dead for worker in mates):
            self._start_node(node)

    def _node(self, worker: Worker) -> list[Worker]:
        """It, and those that are lost with it."""
        name = worker.name.split("/")[0]
        return [one for one in self.workers if one.name.split("/")[0] == name]

    def _end_node(self, worker: Worker, silently: bool = False) -> None:
        worker.die(silently)
        for mate in self._node(worker):
            if silently:
                mate.die(silently)
            elif mate is not worker:
                self.world.soon(lambda mate=mate: mate.die(False), ENDED_SECONDS)  # type: ignore[misc]

    # Faults

    def _strike(self, fault: Fault) -> None:
        alive = [worker for worker in self.workers if not worker.is_dead]
        if not alive:
            return
        worker = alive[fault.target % len(alive)]
        other = alive[fault.other % len(alive)]
        coordinator = self.network.coordinators[-1]
        name = worker.name if fault.kind.startswith("worker") else coordinator.name
        self.world.tell(name, f"*** {fault.kind} ({fault.seconds:.2f} s)")
        match fault.kind:
            case "worker dies":
                self._end_node(worker)
                node, again = parse(worker.name).node, min(fault.seconds, REPLACED_SECONDS)
                self.world.after(max(again, ENDED_SECONDS), lambda: self._start_again(node))
            case "worker vanishes":
                self._end_node(worker, silently=True)
                self.world.after(REPLACED_SECONDS, self._start_node)
            case "worker stops":
                worker.stop()
                self.world.after(fault.seconds, worker.resume)
            case "worker is stuck":
                worker.is_stuck = True
                self.world.after(fault.seconds, lambda: worker.do(worker.unstick))
            case "worker hangs":
                worker.is_stuck = True
                self.world.after(WATCHDOG_SECONDS, lambda: self._end_node(worker))
                self._start_node()
            case "worker leaves":
                for mate in self._node(worker):
                    mate.do(mate.leave)
                self.world.after(fault.seconds, lambda: self._end_node(worker))
                self.world.after(REPLACED_SECONDS, self._start_node)
            case "worker comes":
                self._start_node()
            case _:
                self._strike_network(fault, worker.name, other.name)
