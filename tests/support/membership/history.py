"""Random histories: what goes wrong and when, run, judged, shrunk and told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from random import Random

from headway.member.follow import Follower
from headway.member.generation import Generation
from headway.member.machine import Machine
from headway.member.rules import Rules
from support.membership.checks import CHOOSE, Broken, Checks, Choose
from support.membership.coordinator import Coordinator, MakeMachine
from support.membership.network import Network
from support.membership.pod import Pod
from support.membership.record import Record
from support.membership.training import Group, Held
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
    """Number of a pod; those that are not there are taken modulo those that are."""
    other: int = 0
    seconds: float = 0.0

    @property
    def length(self) -> float:
        return LONG_CUT_SECONDS if self.kind.endswith("for long") else self.seconds

    @property
    def is_peaceful(self) -> bool:
        long_enough = self.seconds >= PEACEFUL_SECONDS
        return self.kind == "pod comes" or (self.kind == "pod leaves" and long_enough)


@dataclass(frozen=True)
class History:
    seed: int
    num_pods: int
    domain_pods: int
    node_pods: int
    step_seconds: float
    min_domains: int
    noise: float
    faults: tuple[Fault, ...]

    @property
    def rules(self) -> Rules:
        return Rules(
            min_domains=self.min_domains,
            max_domains=self.num_pods // self.domain_pods,
            domain_pods=self.domain_pods,
            node_pods=self.node_pods,
            gather_seconds=3.0,
            enter_seconds=ENTER_SECONDS if self.has_long_steps else Rules.enter_seconds,
            first_step_seconds=FIRST_STEP_SECONDS,
        )

    @property
    def has_long_steps(self) -> bool:
        return self.step_seconds > ENTER_SECONDS


KINDS = (
    "pod dies",
    "pod dies",
    "pod vanishes",
    "pod stops",
    "pod is stuck",
    "pod hangs",
    "pod leaves",
    "pod comes",
    "pod is cut off",
    "pod is not heard",
    "pod hears nothing",
    "two pods are cut",
    "two pods are cut for long",
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
    domain_pods = random.choice((1, 1, 1, 2))
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
        num_pods=domain_pods * num_domains,
        domain_pods=domain_pods,
        min_domains=random.randint(1, 2),
        noise=noise,
        faults=tuple(sorted(faults, key=lambda fault: fault.time)),
        node_pods=random.choice((1, domain_pods)),
        step_seconds=step_seconds,
    )


class Run:
    def __init__(
        self,
        history: History,
        machine: MakeMachine = Machine,
        follower: Callable[[str], Follower] = Follower,
        choose: Choose = CHOOSE,
        telling: bool = False,
    ) -> None:
        self.history, self._machine, self._follower = history, machine, follower
        self.world = World(history.seed, telling)
        self.network = Network(self.world, history.noise)
        self.record = Record()
        self.checks = Checks(self.world, history.rules, Held(), choose)
        self.pods: list[Pod] = []
        self._num_nodes = 0
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
        for _ in range(self.history.num_pods // self.history.node_pods):
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
        members = set(living[-1].machine.current.pods()) if living and living[-1].machine else set()
        well = {pod.name for pod in self.pods if pod.is_well and pod.name in members}
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
        machine = living[-1].machine
        assert machine is not None
        assert self._steps_before is not None
        alive = {pod.name for pod in self.pods if not pod.is_dead and not pod.is_stuck}
        members = set(machine.current.pods())
        num_domains = min(self._num_domains(alive), self.history.rules.max_domains)
        if members - alive or len(machine.current.domains) < num_domains:
            return f"{sorted(members)} are members, {sorted(alive)} are alive"
        if max(self.checks.settled_states) < self._steps_before + STEPS_AFTER:
            return f"step {max(self.checks.settled_states)} is the last settled"
        return ""

    def _num_domains(self, pods: Collection[str]) -> int:
        """So many could be made of these, of whole nodes."""
        size = self.history.node_pods
        if size == 1:
            return len(pods) // self.history.domain_pods
        nodes = Counter(pod.split("/")[0] for pod in pods)
        num_whole = sum(count == size for count in nodes.values())
        return num_whole * size // self.history.domain_pods

    def _start_coordinator(self) -> Coordinator:
        rules = self.history.rules
        return Coordinator(self.world, self.network, self.record, rules, self.checks, self._machine)

    def _start_node(self) -> None:
        """As a launcher does: all of its processes, under a name that is new."""
        number, size = self._num_nodes, self.history.node_pods
        self._num_nodes += 1
        names = [f"node-{number}/{rank}" for rank in range(size)]
        self.pods += [
            Pod(
                self.world,
                self.network,
                self.checks,
                self._group,
                self._follower,
                name,
                self.history.step_seconds,
            )
            for name in (names if size > 1 else [f"pod-{number}"])
        ]

    def _node(self, pod: Pod) -> list[Pod]:
        """It, and those that are lost with it."""
        name = pod.name.split("/")[0]
        return [one for one in self.pods if one.name.split("/")[0] == name]

    def _end_node(self, pod: Pod, silently: bool = False) -> None:
        pod.die(silently)
        for mate in self._node(pod):
            if silently:
                mate.die(silently)
            elif mate is not pod:
                self.world.soon(lambda mate=mate: mate.die(False), ENDED_SECONDS)  # type: ignore[misc]

    def _group(self, generation: Generation) -> Group:
        if generation.number not in self._groups:
            self._groups[generation.number] = Group(
                self.world, self.network, self.checks, generation
            )
        return self._groups[generation.number]

    # Faults

    def _strike(self, fault: Fault) -> None:
        alive = [pod for pod in self.pods if not pod.is_dead]
        if not alive:
            return
        pod = alive[fault.target % len(alive)]
        other = alive[fault.other % len(alive)]
        coordinator = self.network.coordinators[-1]
        name = pod.name if fault.kind.startswith("pod") else coordinator.name
        self.world.tell(name, f"*** {fault.kind} ({fault.seconds:.2f} s)")
        match fault.kind:
            case "pod dies" | "pod vanishes":
                self._end_node(pod, silently=fault.kind == "pod vanishes")
                self.world.after(REPLACED_SECONDS, self._start_node)
            case "pod stops":
                pod.stop()
                self.world.after(fault.seconds, pod.go_on)
            case "pod is stuck":
                pod.is_stuck = True
                self.world.after(fault.seconds, lambda: pod.do(pod.unstick))
            case "pod hangs":
                pod.is_stuck = True
                self.world.after(WATCHDOG_SECONDS, lambda: self._end_node(pod))
                self._start_node()
            case "pod leaves":
                for mate in self._node(pod):
                    mate.do(mate.leave)
                self.world.after(fault.seconds, lambda: self._end_node(pod))
                self.world.after(REPLACED_SECONDS, self._start_node)
            case "pod comes":
                self._start_node()
            case "pod is cut off":
                self._cut(fault.seconds, (pod.name, ""), ("", pod.name))
            case "pod is not heard":
                self._cut(fault.seconds, (pod.name, ""))
            case "pod hears nothing":
                self._cut(fault.seconds, ("", pod.name))
            case "two pods are cut" | "two pods are cut for long":
                if other is not pod:
                    self._cut(fault.length, (pod.name, other.name))
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
                self.world.after(fault.seconds, coordinator.go_on)
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
    machine: MakeMachine = Machine,
    follower: Callable[[str], Follower] = Follower,
    choose: Choose = CHOOSE,
) -> str | None:
    """What did not hold in this history, if anything."""
    try:
        Run(history, machine, follower, choose).play()
    except Exception as error:  # noqa: BLE001 - a crash of the machine is a failure like any other
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(history: History, fails: Callable[[History], bool]) -> History:
    """A smaller history that still fails: without faults, noise and pods that are not needed."""
    while smaller := next((one for one in _smaller(history) if fails(one)), None):
        history = smaller
    return history


def _smaller(history: History) -> Iterator[History]:
    faults = history.faults
    for index in range(len(faults)):
        yield replace(history, faults=faults[:index] + faults[index + 1 :])
    if history.noise:
        yield replace(history, noise=0.0)
    if history.num_pods > 2 * history.domain_pods:
        yield replace(history, num_pods=history.num_pods - history.domain_pods)
    if history.has_long_steps:
        yield replace(history, step_seconds=0.4)
    if history.node_pods > 1:
        yield replace(history, node_pods=1)
    if history.domain_pods > 1:
        num_domains = history.num_pods // history.domain_pods
        yield replace(history, domain_pods=1, node_pods=1, num_pods=num_domains)
    if history.min_domains > 1:
        yield replace(history, min_domains=1)
    for index, fault in enumerate(faults):
        if fault.seconds > 0.6:
            shorter = replace(fault, seconds=fault.seconds / 2)
            yield replace(history, faults=(*faults[:index], shorter, *faults[index + 1 :]))


def story(
    history: History,
    machine: MakeMachine = Machine,
    follower: Callable[[str], Follower] = Follower,
    choose: Choose = CHOOSE,
) -> str:
    """The history as it went, for people."""
    run = Run(history, machine, follower, choose, telling=True)
    try:
        run.play()
        end = "All held."
    except Exception as error:  # noqa: BLE001
        end = f"{run.world.now:8.3f} s  BROKEN: {error}"
    lines = run.world.story or []
    return "\n".join([repr(history), "", *lines, end])
