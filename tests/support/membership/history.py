"""Histories: what goes wrong and when, at random from a seed, and smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from headway.member.coordinator.rules import RESTART_ALONE_SECONDS, Rules

TROUBLED_SECONDS = 20.0
"""Faults begin within it, and each ends by itself."""
ENTER_SECONDS, LONG_STEP_SECONDS = 5.0, 8.0
"""In histories of long steps: as 30 s, and steps that are longer."""
FIRST_STEP_SECONDS = 35.0
"""More than for any other step; and several that hang in their first one are no standstill yet."""
LONG_CUT_SECONDS = 110.0
PEACEFUL_SECONDS = 4.0
"""Grace in which a leave costs nothing: several steps."""
RESTART_PEACEFUL_SECONDS = 12.0
"""The same where workers restart: a step, a save and the exit."""
MOST_DOMAINS = 64


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

    @property
    def costs_no_restart(self) -> bool:
        """Of its own, and no step, where workers restart."""
        long_enough = self.kind == "worker comes" or self.seconds >= RESTART_PEACEFUL_SECONDS
        return self.kind == "coordinator dies" or (self.kind in PLANNED and long_enough)


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
    restarts: bool = False
    """Whether workers end with their generation."""
    notices_peers: bool = True
    """Whether a collective fails when a peer is lost, as gloo's do; NCCL's wait. A live run needs
    it."""

    @property
    def rules(self) -> Rules:
        num_domains = self.num_workers // self.domain_workers
        if self.restarts:
            return Rules(
                min_domains=self.min_domains,
                max_domains=MOST_DOMAINS,
                first_domains=num_domains,
                domain_workers=self.domain_workers,
                node_workers=self.node_workers,
                restarts=True,
                alone_seconds=RESTART_ALONE_SECONDS,
                small_group=self.small_group,
            )
        return Rules(
            min_domains=self.min_domains,
            max_domains=num_domains,
            domain_workers=self.domain_workers,
            node_workers=self.node_workers,
            gather_seconds=3.0,
            enter_seconds=ENTER_SECONDS if self.has_long_steps else Rules.enter_seconds,
            first_step_seconds=FIRST_STEP_SECONDS,
            small_group=self.small_group,
        )

    @property
    def is_peaceful(self) -> bool:
        """Whether it has planned changes only; where workers restart, coordinators may die, too."""
        if self.restarts:
            return not self.noise and all(fault.costs_no_restart for fault in self.faults)
        # A step that is longer than the grace costs one.
        planned = all(fault.is_peaceful for fault in self.faults)
        return planned and not self.has_long_steps and not self.noise

    @property
    def small_group(self) -> int:
        """In every third, the groups are taken for larger ones than they are."""
        return 2 if self.seed % 3 == 2 else Rules.small_group

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
RESTART_KINDS = (
    *(kind for kind in KINDS if not kind.endswith("for long")),
    "worker leaves for good",
)
PLANNED = ("worker comes", "worker leaves", "worker leaves for good")


def random_history(seed: int) -> History:
    random = Random(seed)
    domain_workers = random.choice((1, 1, 1, 2))
    num_domains = random.randint(2, 4)
    faults = _faults(random, KINDS)
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


def _faults(random: Random, kinds: tuple[str, ...]) -> list[Fault]:
    faults = [
        Fault(
            time=3 + random.random() * (TROUBLED_SECONDS - 3),
            kind=random.choice(kinds),
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
    return faults


def random_restart_history(seed: int, is_planned: bool | None = None) -> History:
    """Every fourth has planned changes and deaths of coordinators only, unless it is told."""
    random = Random(f"restart {seed}")
    node_workers, copy_nodes = random.choice(((1, 1), (1, 1), (1, 2), (2, 1), (2, 2)))
    num_domains = random.randint(1, 4)
    is_planned = seed % 4 == 3 if is_planned is None else is_planned
    step_seconds = random.choice((0.4, 0.4, 0.4, 3.0))
    noise = random.choice((0.0, 0.0, 1.0))
    if is_planned or step_seconds > 1:  # as in a live run, one lost heartbeat is one too many there
        noise = 0.0
    faults = (
        _planned_changes(random, random.randint(1, 3))
        if is_planned
        else _faults(random, RESTART_KINDS)
    )
    return History(
        seed=seed,
        num_workers=node_workers * copy_nodes * num_domains,
        domain_workers=node_workers * copy_nodes,
        node_workers=node_workers,
        step_seconds=step_seconds,
        min_domains=random.randint(1, min(2, num_domains)),
        noise=noise,
        faults=tuple(sorted(faults, key=lambda fault: fault.time)),
        restarts=True,
        notices_peers=random.random() < 0.5,
    )


def _planned_changes(random: Random, number: int) -> list[Fault]:
    faults = []
    for _ in range(number):
        time, kind = 3 + random.random() * (TROUBLED_SECONDS - 3), random.choice(PLANNED)
        faults.append(Fault(time, kind, random.randrange(8), seconds=RESTART_PEACEFUL_SECONDS))
        if random.random() < 0.4:  # in the middle of it
            time += random.random() * 4
            faults.append(Fault(time, "coordinator dies", seconds=random.random() * 8))
    return faults


def mixed_history(seed: int) -> History:
    """Every fourth is of a run whose workers end with their generation."""
    return random_restart_history(seed) if seed % 4 == 3 else random_history(seed)


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
