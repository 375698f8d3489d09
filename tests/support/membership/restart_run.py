"""A run whose workers end with their generation, under a history: the launchers that start them
again, and what must hold."""

from __future__ import annotations

from collections.abc import Callable

from headway.errors import Exit
from headway.member.coordinator.decide import Membership
from headway.member.protocol.identity import WorkerIdentity
from headway.member.worker.follower import Follower
from support.membership.checks import Broken
from support.membership.coordinator import MakeMembership
from support.membership.history import PLANNED, Fault, History
from support.membership.restart_checks import RestartChecks
from support.membership.restart_worker import KILLED, RestartWorker
from support.membership.simulation import Simulation
from support.membership.storage import Storage
from support.membership.world import World

POLL_SECONDS = 0.1
"""Between two looks of a launcher at its workers."""
FORK_SECONDS = 0.3
REPLACED_SECONDS = 4.0
HANG_SECONDS = 40.0
"""Then something ends a process that hangs before it trains; its watchdog does so before, if it
trains."""
QUIET_SECONDS, QUIET_STEPS = 120.0, 20
PAUSE_SECONDS, PAUSE_STEPS = 8.0, 3
PAUSE_WITHOUT_COORDINATOR_SECONDS = 7.0
STEPS_AFTER = 3
GRACE_SECONDS: dict[int, float] = {Exit.PEER_LOST: 1.0, Exit.GENERATION_OVER: 10.0}
"""For the other workers of a node, by the exit code of the first."""


class Node:
    """A launcher, and the workers that it starts again."""

    def __init__(
        self,
        name: str,
        start: Callable[[str], RestartWorker],
        world: World,
        checks: RestartChecks,
        size: int,
    ) -> None:
        self.name, self.size = name, size
        self.workers: list[RestartWorker] = []
        self.is_gone = self.is_leaving = False
        self.pause = 0.0
        """Before its next start, besides forking."""
        self._start_worker, self._world, self._checks = start, world, checks
        self._num_starts = 0
        self.start()

    def start(self) -> None:
        if self.is_gone or self.is_leaving:
            return
        for worker in self.workers:
            self._checks.was_replaced(worker.name)
        self._num_starts += 1
        self.pause = 0.0
        self.workers = [
            self._start_worker(str(WorkerIdentity(self.name, self._num_starts, rank)))
            for rank in range(self.size)
        ]

    @property
    def has_exited(self) -> bool:
        return all(worker.is_dead for worker in self.workers)

    def exited(self, worker: RestartWorker) -> None:
        """One of its workers has."""
        if self.is_gone:
            return
        code, workers = worker.exit_code, self.workers
        assert code is not None
        if self.has_exited:
            self._world.soon(self.start, POLL_SECONDS + FORK_SECONDS + self.pause)
        elif code == Exit.STOPPED:
            self._world.soon(self.leave, POLL_SECONDS)
        else:

            def kill_peers() -> None:
                for mate in workers:
                    mate.exit(KILLED)

            self._world.after(GRACE_SECONDS.get(code, 0.0) + POLL_SECONDS, kill_peers)

    def leave(self) -> None:
        self.is_leaving = True
        for worker in self.workers:
            worker.do(worker.leave)

    def kill(self) -> None:
        for worker in self.workers:
            worker.exit(KILLED)

    def vanish(self) -> None:
        self.is_gone = True
        for worker in self.workers:
            worker.die(silently=True)


class RestartRun(Simulation):
    def __init__(
        self,
        history: History,
        membership: MakeMembership = Membership,
        follower: Callable[[str], Follower] = Follower,
        telling: bool = False,
    ) -> None:
        world = World(history.seed, telling)
        self.checks = RestartChecks(world, history.rules)
        super().__init__(history, self.checks, world, membership)
        self._follower = follower
        self.storage = Storage()
        self.nodes: list[Node] = []
        self._quiet_since = 0.0
        self._steps_before: int | None = None

    def play(self) -> None:
        """Raises Broken where something does not hold."""
        history = self.history
        self.checks.is_peaceful = history.is_peaceful
        self._start_coordinator()
        for _ in range(history.num_workers // history.node_workers):
            self._start_node()
        for fault in history.faults:
            self.world.after(fault.time, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        ends = [fault.time + fault.length for fault in history.faults]
        hangs = any(fault.kind == "worker hangs" for fault in history.faults)
        self._quiet_since = max(ends, default=0.0) + REPLACED_SECONDS + HANG_SECONDS * hangs
        self.world.run(self._quiet_since + self._patience, self._is_over)
        if not self._is_over():
            raise Broken(
                f"no progress {self._patience:.0f} s after the last fault: {self._lacks()}"
            )
        self.checks.check_ledger(self.storage.ledger())
        self._check_num_starts()
        self._check_pause()

    @property
    def _patience(self) -> float:
        return QUIET_SECONDS + QUIET_STEPS * self.history.step_seconds

    def _check_num_starts(self) -> None:
        """A planned change is one restart, not one for each worker that comes back."""
        faults = self.history.faults
        if self.checks.is_peaceful:
            planned = [fault for fault in faults if fault.kind in PLANNED]
            most = 1 + sum(2 if fault.kind == "worker leaves" else 1 for fault in planned)
        else:
            most = 4 + 4 * len(faults)
        if self.checks.num_starts > most:
            raise Broken(f"{self.checks.num_starts} generations for {len(faults)} faults")

    def _check_pause(self) -> None:
        """One planned change takes a step, a save and a start; if the coordinator dies meanwhile,
        it waits besides for those that have not found the next one."""
        faults, checks = self.history.faults, self.checks
        num_planned = sum(fault.kind in PLANNED for fault in faults)
        most = PAUSE_SECONDS + PAUSE_STEPS * self.history.step_seconds
        most += PAUSE_WITHOUT_COORDINATOR_SECONDS * (len(faults) - num_planned)
        # One that was alone, and left unheard, is waited for: no launcher says here that it ended.
        is_known = (
            num_planned == len(faults) or self.history.num_workers > self.history.node_workers
        )
        is_one = checks.is_peaceful and num_planned == 1 and is_known
        if is_one and checks.longest_pause > most:
            raise Broken(f"{checks.longest_pause:.1f} s without a step in a planned change")

    def _is_over(self) -> bool:
        if self.world.now < self._quiet_since:
            return False
        if self._steps_before is None:
            self._steps_before = max(self.checks.line)
        return not self._lacks()

    def _lacks(self) -> str:
        living = self.network.living()
        if not living or living[-1].membership is None:
            return "no coordinator"
        current = living[-1].membership.current
        here = [node for node in self.nodes if not node.is_gone and not node.is_leaving]
        copy_nodes = self.history.domain_workers // self.history.node_workers
        most = min(len(here) // copy_nodes, self.history.rules.max_domains)
        alive = {worker.name for node in here for worker in node.workers if not worker.is_dead}
        members = set(current.workers())
        if members - alive or len(current.domains) < most:
            return f"{sorted(members)} are members, {sorted(alive)} are alive"
        assert self._steps_before is not None
        if max(self.checks.line) < self._steps_before + STEPS_AFTER:
            return f"step {max(self.checks.line)} is the last"
        return ""

    # Processes

    def _start_node(self) -> None:
        name, size = f"node-{len(self.nodes)}", self.history.node_workers
        self.nodes.append(Node(name, self._start_worker, self.world, self.checks, size))

    def _start_worker(self, name: str) -> RestartWorker:
        return RestartWorker(
            self.world,
            self.network,
            self.checks,
            self._group,
            self._follower,
            name,
            self.history.step_seconds,
            self.storage,
            self.history.notices_peers,
            self._exited,
        )

    def _exited(self, worker: RestartWorker) -> None:
        self._node_of(worker).exited(worker)

    def _node_of(self, worker: RestartWorker) -> Node:
        return next(node for node in self.nodes if worker in node.workers)

    # Faults

    def _strike(self, fault: Fault) -> None:
        alive = [worker for node in self.nodes for worker in node.workers if not worker.is_dead]
        if not alive:
            return
        worker, other = alive[fault.target % len(alive)], alive[fault.other % len(alive)]
        node = self._node_of(worker)
        name = worker.name if fault.kind.startswith("worker") else "coordinator"
        self.world.tell(name, f"*** {fault.kind} ({fault.seconds:.2f} s)")
        match fault.kind:
            case "worker dies":
                node.pause = min(fault.seconds, REPLACED_SECONDS)
                worker.exit(KILLED)
            case "worker vanishes":
                node.vanish()
                self.world.after(REPLACED_SECONDS, self._start_node)
            case "worker stops":
                worker.stop()
                self.world.after(fault.seconds, worker.resume)
            case "worker is stuck":
                worker.is_stuck = True
                self.world.after(fault.seconds, lambda: worker.do(worker.unstick))
            case "worker hangs":
                worker.is_stuck = True
                self.world.after(HANG_SECONDS, lambda: worker.exit(KILLED))
            case "worker leaves" | "worker leaves for good":
                self._leave(node, fault)
            case "worker comes":
                self._start_node()
            case _:
                self._strike_network(fault, worker.name, other.name)

    def _leave(self, node: Node, fault: Fault) -> None:
        here = [one for one in self.nodes if not one.is_gone and not one.is_leaving]
        least = self.history.min_domains * self.history.domain_workers
        is_replaced = (len(here) - 1) * self.history.node_workers < least
        node.leave()
        self.world.after(fault.seconds, node.kill)
        if is_replaced or fault.kind == "worker leaves":
            self.world.after(REPLACED_SECONDS, self._start_node)

    def _strike_coordinator(self, fault: Fault) -> None:
        super()._strike_coordinator(fault)
        if fault.kind == "record is away":
            self.storage.is_away = True

    def _record_is_back(self) -> None:
        super()._record_is_back()
        self.storage.is_away = False
