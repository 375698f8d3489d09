"""What the coordinator knows of the workers, of the current generation, and of failed ones before
it.

Facts, and what follows from them at once. What is decided of them is in `lost_workers` and
`next_generation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import inf

from headway.member.coordinator.rules import Rules
from headway.member.coordinator.silence import RecentLateness, silence_limit
from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.identity import parse
from headway.member.protocol.status import WorkerStatus

NO_STATUS = WorkerStatus()


@dataclass(slots=True)
class WorkerRecord:
    name: str
    session: int | None
    heard: float
    status: WorkerStatus = NO_STATUS
    closed: float = inf
    """When its connection closed; inf as well if it has had none since the coordinator started."""
    ready: float = inf
    """Since when it could train."""
    called_to: int = 0
    enter_by: float = inf
    """When it must have entered the generation that it is called to, or a later one."""
    gone: str = ""
    """Why it is lost, once that is certain."""

    @property
    def is_absent(self) -> bool:
        """It was a member when the coordinator started, and has not come back yet."""
        return self.session is None and self.closed == inf


@dataclass(slots=True)
class GenerationProgress:
    """How far its members have come in the current generation. Each generation begins a new one."""

    generation: Generation
    members: frozenset[str]
    unfinished: dict[int, frozenset[str] | None]
    """Generations in which members may still be at work, since they have lost nobody, with their
    members, and the current one; None: from before a restart of the coordinator, not known."""
    newcomers: AbstractSet[str] = frozenset()
    called_at: float = -inf
    """When all were called to it at once, since no earlier one can be finished."""
    entered: set[str] = field(default_factory=set)
    went: bool = False
    """All members have entered it."""
    healed: set[str] = field(default_factory=set)
    """Members that have the run's state in it, and whose group works."""
    complaints: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Who complains, and of which peers."""
    first_complaint: float = inf
    waiting: set[str] = field(default_factory=set)
    """Members whose collective takes long, in an unfinished generation."""
    places: dict[tuple[str, int], str] = field(init=False)
    """Members by node and local rank, of those whose names say which start they are of."""
    domain_of: dict[str, Domain] = field(init=False)
    """Domain of each member."""
    with_state: set[str] = field(init=False)
    """Members known to have the run's state, from this generation or an earlier one."""

    def __post_init__(self) -> None:
        domains = self.generation.domains
        self.domain_of = {name: domain for domain in domains for name in domain.workers}
        self.with_state = {name for domain in domains if domain.holds for name in domain.workers}
        identities = ((name, parse(name)) for name in self.members)
        self.places = {(one.node, one.local_rank): name for name, one in identities if one.start}

    @classmethod
    def restored(cls, generation: Generation) -> GenerationProgress:
        """From the record, at the coordinator's start."""
        members = frozenset(generation.workers())
        return cls(
            generation, members, {**dict.fromkeys(generation.sound), generation.number: members}
        )

    def following(
        self, generation: Generation, workers: dict[str, WorkerRecord], now: float
    ) -> GenerationProgress:
        """The beginning of the generation that comes after this one."""
        members = frozenset(generation.workers())
        unfinished = {
            number: those for number, those in self.unfinished.items() if number in generation.sound
        }
        unfinished[generation.number] = members
        # The others finish their step, if they can.
        are_all_called = len(unfinished) == 1
        progress = GenerationProgress(
            generation,
            members,
            unfinished,
            newcomers=members - self.members,
            called_at=now if are_all_called else -inf,
            waiting={
                name for name in self.waiting & members if workers[name].status.waits in unfinished
            },
        )
        for name in members:  # as far as it was heard while this generation was written
            progress.note_state(name, workers[name].status.healed)
        return progress

    @property
    def is_last_unfinished(self) -> bool:
        """Nobody can be at work in an earlier generation: all are called to this one."""
        return len(self.unfinished) == 1

    @property
    def established(self) -> bool:
        """All members have the run's state in it."""
        return len(self.healed) == len(self.members)

    def note_state(self, name: str, healed: int) -> None:
        """A member was last healed in this generation, by its own account."""
        if self.domain_of[name].has_state(healed):
            self.with_state.add(name)

    def holds(self, domain: Domain) -> bool:
        """Whether the domain has the run's state: as a whole, for a part of it is none."""
        return self.with_state.issuperset(domain.workers)

    def holders(self) -> list[tuple[str, ...]]:
        """Workers of each domain that has the run's state."""
        return [domain.workers for domain in self.generation.domains if self.holds(domain)]

    def end_without(self, name: str) -> None:
        """No generation that this worker was in can be finished."""
        self.unfinished = {
            number: members
            for number, members in self.unfinished.items()
            if members is None or name not in members
        }


@dataclass(slots=True)
class MembershipState:
    rules: Rules
    incarnation: int
    workers: dict[str, WorkerRecord]
    progress: GenerationProgress
    lateness: RecentLateness
    """Of heartbeats of members that were not lost."""
    absent_until: float
    """After the coordinator's start: how long members have to come back that nobody misses."""
    comeback_until: float = inf
    """The same for members that are missed, from the first that came back."""
    came_back: float = inf
    """When the last member came back."""
    num_retries: int = 0
    """Retries in a row, after generations that failed to form."""
    blame: Counter[str] = field(default_factory=Counter)
    """How often each worker was complained of in these retries."""
    barred: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How often each worker was barred, and until when."""
    has_changed: bool = True
    """Whether to decide again soon."""
    worked_at: float = -inf
    """When a worker was last at work in the generation before this one. Its successor comes after
    that. Only if workers end with their generation."""
    broken: str = ""
    """Why the generation before this one cannot be finished, although it was to be. Only if workers
    end with their generation."""

    @property
    def current(self) -> Generation:
        return self.progress.generation

    def members(self) -> list[WorkerRecord]:
        return [self.workers[name] for name in self.progress.members]

    def is_barred(self, name: str, now: float) -> bool:
        return name in self.barred and self.barred[name][1] > now

    def bar(self, name: str, now: float) -> None:
        """Twice as long each time, so that nobody holds the others up again and again."""
        times, _ = self.barred.get(name, (0, now))
        self.barred[name] = (times + 1, now + self.rules.barred_seconds * 2**times)

    def silence_limit(self, now: float) -> float:
        """Seconds without a heartbeat after which a member that is missed is lost."""
        return silence_limit(self.rules, len(self.progress.members), self.lateness.longest(now))

    def forget_retries(self) -> None:
        self.num_retries = 0
        self.blame.clear()

    def forgive(self, pause: float) -> None:
        """The coordinator itself was held up: nobody was silent or late meanwhile."""
        self.absent_until += pause
        self.comeback_until += pause
        self.came_back += pause
        for worker in self.workers.values():
            worker.heard += pause
            worker.closed += pause
            worker.enter_by += pause

    def call(self, names: AbstractSet[str], now: float) -> None:
        """To the current generation: each must enter it in its time."""
        for worker in (self.workers[name] for name in names - self.progress.entered):
            enter_by = now + self._patience_to_enter(worker)
            if enter_by < worker.enter_by and not worker.is_absent:
                worker.called_to, worker.enter_by = self.current.number, enter_by

    def _patience_to_enter(self, worker: WorkerRecord) -> float:
        rules, status = self.rules, worker.status
        if worker.name in self.progress.newcomers or (status.seen and not status.entered):
            # It has nothing else to do, once it knows: thousands at once are told one by one.
            knows = status.seen == self.current.number
            return rules.idle_enter_seconds if knows else rules.enter_seconds
        if not status.step_seconds:
            return rules.first_step_seconds
        return max(rules.enter_seconds, rules.enter_steps * status.step_seconds)
