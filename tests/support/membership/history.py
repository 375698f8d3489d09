"""Random histories: what goes wrong and when, run, judged, shrunk and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from random import Random

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import Generation
from headway.member.protocol.identity import WorkerIdentity, parse
from headway.member.worker.follower import Follower
from support.membership.checks import CHOOSE, Broken, Checks, Choose
from support.membership.coordinator import Coordinator, MakeMembership
from support.membership.network import Network
from support.membership.record import Record
from support.membership.training import Group, Held
from support.membership.worker import Worker
from support.membership.world import World

TROUBLED_SECONDS = 20.0
"""Faults begin within it, and each ends by itself."""
QUIET_SECONDS = 240.0
"""After the last fault: being barred, missing a generation, several tries, and waiting for the last
who has the state fit in. Nobody here says that it is no more."""
STEPS_AFTER = 3
ENTER_SECONDS, LONG_STEP_SECONDS = 5.0, 8.0
"""In histories of long steps: as 30 s, and steps that are longer."""
FIRST_STEP_SECONDS = 35.0
"""More than for any other step; and several that hang in their first one are no standstill yet."""
REPLACED_SECONDS = 4.0
ENDED_SECONDS = 0.2
"""In which a launcher sees that one process of a node has died, and ends the others."""
WATCHDOG_SECONDS = 130.0
"""Then a process that hangs ends itself. Only if all hang does nobody notice it before."""
LONG_CUT_SECONDS = 110.0
STANDSTILL_SECONDS, STANDSTILL_STEPS = 100.0, 15
"""As long as members are well that hold the state, no fault may hold the run up for longer."""
QUIET_STEPS = 30
PEACEFUL_SECONDS = 4.0
"""Grace in which a leave costs nothing: several steps."""


@dataclass(frozen=True)
class Fault:
    time: float
    kind: str
    target: int = 0
    """Number of a worker; those that are not there are taken modulo those that are."""
    other: int = 0
    seconds: float = 0.0

    @property
    def length(self) -> float:
        return LONG_CUT_SECONDS if self.kind.endswith("for long") else self.seconds

    @property
    def is_peaceful(self) -> bool:
        long_enough = self.seconds >= PEACEFUL_SECONDS
        return self.kind == "worker comes" or (self.kind == "worker leaves" and long_enough)


@dataclass(frozen=True)
class History:
    seed: int
    num_workers: int
    domain_workers: int
    node_workers: int
    step_seconds: float
    min_domains: int
    noise: float
    faults: tuple[Fault, ...]

    @property
    def rules(self) -> Rules:
        return Rules(
            min_domains=self.min_domains,
            max_domains=self.num_workers // self.domain_workers,
            domain_workers=self.domain_workers,
            node_workers=self.node_workers,
            gather_seconds=3.0,
            enter_seconds=ENTER_SECONDS if self.has_long_steps else Rules.enter_seconds,
            first_step_seconds=FIRST_STEP_SECONDS,
        )

    @property
    def has_long_steps(self) -> bool:
        return self.step_seconds > ENTER_SECONDS


KINDS = (
    "worker dies",
    "worker dies",
    "worker vanishes",
    "worker stops",
    "worker is stuck",
    "worker hangs",
    "worker leaves",
    "worker comes",
    "worker is cut off",
    "worker is not heard",
    "worker hears nothing",
    "two workers are cut",
    "two workers are cut for long",
    "coordinator dies",
    "coordinator vanishes",
    "coordinator stops",
    "second coordinator",
    "clock jumps",
    "record is away",
    "record is stale",
)


def random_history(seed: int) -> History:
    random = Random(seed)
    domain_workers = random.choice((1, 1, 1, 2))
    num_domains = random.randint(2, 4)
    faults = [
        Fault(
            time=3 + random.random() * (TROUBLED_SECONDS - 3),
            kind=random.choice(KINDS),
            target=random.randrange(8),
            other=random.randrange(8),
            seconds=random.choice((0.3, 1.0, 3.0, 8.0)) * (0.5 + random.random()),
        )
        for _ in range(random.randint(1, 8))
    ]
    if random.random() < 0.4:  # faults that come together are the hard ones
        near = random.choice(faults).time
        faults = [
            replace(fault, time=near + random.random() * 0.5) if random.random() < 0.6 else fault
            for fault in faults
        ]
    noise = random.choice((0.0, 0.0, 1.0, 5.0))
    step_seconds = random.choice((0.4, 0.4, 0.4, LONG_STEP_SECONDS))
    if step_seconds == LONG_STEP_SECONDS:
        # In most of a long step somebody waits, and then one lost heartbeat is one too many: with
        # ten workers none would ever end. TCP loses none without losing the session.
        noise = 0.0
    return History(
        seed=seed,
        num_workers=domain_workers * num_domains,
        domain_workers=domain_workers,
        min_domains=random.randint(1, 2),
        noise=noise,
        faults=tuple(sorted(faults, key=lambda fault: fault.time)),
        node_workers=random.choice((1, domain_workers)),
        step_seconds=step_seconds,
    )


class Run:
    def __init__(
        self,
        history: History,
        membership: MakeMembership = Membership,
        follower: Callable[[str], Follower] = Follower,
        choose: Choose = CHOOSE,
        telling: bool = False,
    ) -> None:
        self.history, self._membership, self._follower = history, membership, follower
        self.world = World(history.seed, telling)
        self.network = Network(self.world, history.noise)
        self.record = Record()
        self.checks = Checks(self.world, history.rules, Held(), choose)
        self.workers: list[Worker] = []
        self._num_nodes = 0
        self._starts: Counter[str] = Counter()
        self._groups: dict[int, Group] = {}
        self._quiet_since = 0.0
        self._steps_before: int | None = None
        self._check_at = self._well_since = 0.0

    def play(self) -> None:
        """Raises Broken where something does not hold."""
        planned = all(fault.is_peaceful for fault in self.history.faults)
        # A step that is longer than the grace costs one.
        is_short = not self.history.has_long_steps
        self.checks.is_peaceful = planned and is_short and not self.history.noise
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

    def _start_coordinator(self) -> Coordinator:
        rules = self.history.rules
        return Coordinator(
            self.world, self.network, self.record, rules, self.checks, self._membership
        )

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

    def _group(self, generation: Generation) -> Group:
        if generation.number not in self._groups:
            self._groups[generation.number] = Group(
                self.world, self.network, self.checks, generation
            )
        return self._groups[generation.number]

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
            case "worker is cut off":
                self._cut(fault.seconds, (worker.name, ""), ("", worker.name))
            case "worker is not heard":
                self._cut(fault.seconds, (worker.name, ""))
            case "worker hears nothing":
                self._cut(fault.seconds, ("", worker.name))
            case "two workers are cut" | "two workers are cut for long":
                if other is not worker:
                    self._cut(fault.length, (worker.name, other.name))
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


def failure(
    history: History,
    membership: MakeMembership = Membership,
    follower: Callable[[str], Follower] = Follower,
    choose: Choose = CHOOSE,
) -> str | None:
    """What did not hold in this history, if anything."""
    try:
        Run(history, membership, follower, choose).play()
    except Exception as error:  # noqa: BLE001 - a crash of the membership is a failure like any other
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(history: History, fails: Callable[[History], bool]) -> History:
    """A smaller history that still fails: without faults, noise and workers that are not needed."""
    while smaller := next((one for one in _smaller(history) if fails(one)), None):
        history = smaller
    return history


def _smaller(history: History) -> Iterator[History]:
    faults = history.faults
    for index in range(len(faults)):
        yield replace(history, faults=faults[:index] + faults[index + 1 :])
    if history.noise:
        yield replace(history, noise=0.0)
    if history.num_workers > 2 * history.domain_workers:
        yield replace(history, num_workers=history.num_workers - history.domain_workers)
    if history.has_long_steps:
        yield replace(history, step_seconds=0.4)
    if history.node_workers > 1:
        yield replace(history, node_workers=1)
    if history.domain_workers > 1:
        num_domains = history.num_workers // history.domain_workers
        yield replace(history, domain_workers=1, node_workers=1, num_workers=num_domains)
    if history.min_domains > 1:
        yield replace(history, min_domains=1)
    for index, fault in enumerate(faults):
        if fault.seconds > 0.6:
            shorter = replace(fault, seconds=fault.seconds / 2)
            yield replace(history, faults=(*faults[:index], shorter, *faults[index + 1 :]))


def story(
    history: History,
    membership: MakeMembership = Membership,
    follower: Callable[[str], Follower] = Follower,
    choose: Choose = CHOOSE,
) -> str:
    """The history as it went, for people."""
    run = Run(history, membership, follower, choose, telling=True)
    try:
        run.play()
        end = "All held."
    except Exception as error:  # noqa: BLE001
        end = f"{run.world.now:8.3f} s  BROKEN: {error}"
    lines = run.world.story or []
    return "\n".join([repr(history), "", *lines, end])
