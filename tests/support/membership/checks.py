"""What must hold in every history, by what really happened, whatever the coordinator believes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from math import inf
from typing import TYPE_CHECKING

from headway.member.coordinator.rules import Rules
from headway.member.coordinator.silence import silence_limit
from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.status import WorkerStatus
from headway.member.worker.state_choice import (
    NO_STATE,
    Name,
    state_of_domain,
    state_of_most,
)
from support.membership.generations import restores
from support.membership.world import World

if TYPE_CHECKING:
    from support.membership.coordinator import Coordinator
    from support.membership.training import Given, Held

Choose = tuple[
    Callable[[Domain, int], bool], Callable[[list[Name]], Name], Callable[[list[Name]], Name]
]
"""Whether a worker has the state; what a domain holds, by its workers; and which state is taken, by
domains."""
CHOOSE: Choose = (Domain.has_state, state_of_domain, state_of_most)
SAVE_EVERY = 4
CLOCK_SECONDS = 2.0
"""By which a coordinator's clock may be ahead unnoticed, after several small jumps."""


class Broken(AssertionError):
    """Something that must hold did not."""


class Checks:
    def __init__(self, world: World, rules: Rules, start: Held, choose: Choose) -> None:
        self.world, self.rules, self._choose = world, rules, choose
        self._heard: dict[tuple[str, str], float] = {}
        """(coordinator, worker): when it was heard last on a session that is open."""
        self._heard_in: dict[tuple[str, str], int] = {}
        """Which generation was the newest then that this coordinator told everyone of."""
        self._closed: dict[tuple[str, str], float] = {}
        self._started: dict[str, float] = {}
        self._first: dict[str, float] = {}
        self._arrived: dict[str, float] = {}
        """By coordinator: when a member came to it last."""
        self._leaving: set[str] = set()
        self._replaced: set[str] = set()
        self._enter_by: dict[str, float] = {}
        """When a worker must have entered the generation that it is called to."""
        self._step_seconds: dict[str, int] = {}
        """What a worker has said of its steps."""
        self._entered: dict[str, int] = {}
        self._said_entered: dict[str, int] = {}
        self._published = 0
        self._newcomers: set[str] = set()
        """Of the published one."""
        self._trouble = 0
        """The newest generation that anyone complained of."""
        self._established: dict[str, int] = {}
        """By coordinator: the newest generation in which it knew all to have the state."""
        self._said: dict[tuple[str, int], tuple[str, WorkerStatus]] = {}
        """(coordinator, session that is open): whose it is, and what it said last."""
        self._named: dict[str, set[int]] = {}
        """In which generations somebody could not reach it."""
        self._generations: dict[int, Generation] = {}
        self._newest = 0
        self._healed: dict[str, int] = {}
        """The newest generation in which each worker got the state, or had it already."""
        self._live = 0
        """The newest generation whose members have all met."""
        self._saved = start
        self._chosen: set[int] = set()
        """Generations whose members have chosen a state."""
        self._restored: dict[int, Held] = {}
        self.settled_states: dict[int, Held] = {start.step: start}
        self.last_settled = 0.0
        self.is_peaceful = False
        """Whether this history has planned changes only."""

    # One live generation

    def written(self, generation: Generation) -> None:
        if generation.number in self._generations:
            raise Broken(f"generation {generation.number} was written twice")
        if generation.number != self._newest + 1:
            raise Broken(f"generation {generation.number} was written after {self._newest}")
        before = self._generations.get(self._newest)
        if before is not None and self._trouble < before.number and _same(before, generation):
            raise Broken(f"generation {generation.number} is the one before, for no reason")
        self._newest = generation.number
        self._generations[generation.number] = generation
        self._check_holders(generation)
        for domain in generation.domains:
            self._check_nodes(domain)

    def _check_nodes(self, domain: Domain) -> None:
        rules, workers = self.rules, domain.workers
        if len(workers) != rules.domain_workers:
            raise Broken(f"{'+'.join(workers)} is a domain of {len(workers)}")
        size = rules.node_workers
        if size == 1:
            return
        for begin in range(0, len(workers), size):
            ranks = [worker.split("/")[1] for worker in workers[begin : begin + size]]
            nodes = {worker.split("/")[0] for worker in workers[begin : begin + size]}
            if len(nodes) > 1 or ranks != [str(rank) for rank in range(size)]:
                raise Broken(f"{'+'.join(workers)} is no domain of whole nodes")

    def published(self, generation: Generation) -> None:
        if self._generations.get(generation.number) != generation:
            raise Broken(f"generation {generation.number} was published before it was written")
        before = self._generations.get(generation.number - 1)
        members = set(before.workers()) if before else set()
        self._published = generation.number
        self._newcomers = set(generation.workers()) - members
        for worker in generation.workers():
            if worker in self._newcomers or not generation.sound:
                self._call(worker)

    def _call(self, worker: str, has_seen: bool = False) -> None:
        if self._said_entered.get(worker, 0) >= self._newest:
            return
        rules, step_seconds = self.rules, self._step_seconds.get(worker, 0)
        seconds = max(rules.enter_seconds, rules.enter_steps * step_seconds)
        if worker in self._newcomers:
            seconds = rules.idle_enter_seconds if has_seen else rules.enter_seconds
        elif not self._said_entered.get(worker):
            seconds = rules.idle_enter_seconds  # it was one, before a coordinator started again
        elif not step_seconds:
            seconds = rules.first_step_seconds
        self._enter_by[worker] = min(self._enter_by.get(worker, inf), self.world.now + seconds)

    def met(self, generation: Generation, index: int) -> None:
        """All members have joined a collective."""
        number = generation.number
        since = range(number + 1, self._live + 1)
        if self._live > number and not any(restores(self._generations[later]) for later in since):
            raise Broken(f"generation {number} went on beside generation {self._live}")
        self._live = max(self._live, number)

    def seen(self, worker: str, before: int, now: int) -> None:
        if now < before:
            raise Broken(f"{worker} went back from generation {before} to {now}")

    # Planned changes cost nothing

    def failed(self, worker: str, number: int) -> None:
        if self.is_peaceful:
            raise Broken(f"{worker} lost a step of generation {number} to a planned change")

    # Only unevicted members of the generation before heal

    def healed(self, worker: str, number: int) -> None:
        self._healed[worker] = number

    def _check_holders(self, generation: Generation) -> None:
        before = self._generations.get(generation.number - 1)
        domains = {domain.workers: domain for domain in before.domains} if before else {}
        for domain in generation.domains:
            was = domains.get(domain.workers)
            if domain.holds and not (was and self._has_state(was)):
                raise Broken(
                    f"generation {generation.number} lets {'+'.join(domain.workers)} heal others"
                )
            if was and was.since == domain.since and was.holds and not domain.holds:
                raise Broken(
                    f"{'+'.join(domain.workers)} held the state, and is healed all the same"
                )
        leads = generation.domains[generation.leader] if generation.domains else None
        if leads and not leads.holds and not restores(generation):
            raise Broken(f"generation {generation.number} is led by one without the state")

    def _has_state(self, domain: Domain) -> bool:
        """By what has happened: all of it has got the run's state since it was admitted."""
        return all(self._healed.get(worker, 0) >= domain.since for worker in domain.workers)

    # No step is settled twice with different content

    def picked(self, generation: Generation, given: dict[str, Given]) -> Held:
        """What the members of a generation continue from."""
        states = {one.held.name: one.held for one in given.values() if one.held is not None}
        has_state, state_of_domain, state_of_most = self._choose
        held = [
            state_of_domain(
                [
                    _name_of(given[worker]) if has_state(domain, given[worker].healed) else NO_STATE
                    for worker in domain.workers
                ]
            )
            for domain in generation.domains
        ]
        best, number = state_of_most(held), generation.number
        if number not in self._chosen:
            # Later, others may have got the state in the next generation already.
            self._chosen.add(number)
            self._check_choice(generation, given, best)
        if best != NO_STATE:
            return states[best]
        if number not in self._restored:
            self._restored[number] = self._saved
            for step in [step for step in self.settled_states if step > self._saved.step]:
                del self.settled_states[step]
        return self._restored[number]

    def _check_choice(self, generation: Generation, given: dict[str, Given], best: Name) -> None:
        """Nobody's good state is overwritten from one that fewer have, or that has not all, or from
        a checkpoint."""
        holders = Counter[Name]()
        for domain in generation.domains:
            names = {_name_of(given[worker]) for worker in domain.workers}
            if self._has_state(domain) and len(names) == 1:
                holders[names.pop()] += 1
        del holders[NO_STATE]
        if best == NO_STATE and holders:
            raise Broken(f"generation {generation.number} gives up a state that some hold")
        if best != NO_STATE and holders[best] < max(holders.values(), default=1):
            raise Broken(
                f"generation {generation.number} continues from step {best[0]}, which "
                f"{holders[best]} hold of {holders.total()}"
            )

    def is_held_by(self, workers: Collection[str]) -> bool:
        """Whether a domain of these has the run's state; or nobody has it."""
        newest = self._generations.get(self._newest)
        if newest is None:
            return True
        holders = [domain for domain in newest.domains if self._has_state(domain)]
        return not holders or any(set(domain.workers) <= set(workers) for domain in holders)

    def settled(self, worker: str, generation: Generation, held: Held) -> None:
        """A collective ended that all had joined with this state."""
        if generation.number < self._live:
            return  # fenced: readers do not count what it writes
        known = self.settled_states.setdefault(held.step, held)
        if known != held:
            raise Broken(
                f"step {held.step} was settled as committed in generation {known.committed_in}, "
                f"and by {worker} as committed in {held.committed_in}"
            )
        if held.step - 1 not in self.settled_states and held.step > self._saved.step:
            raise Broken(f"step {held.step} was settled, and the one before it was not")
        self.last_settled = self.world.now
        if held.step % SAVE_EVERY == 0:
            self._saved = held

    # Nobody is evicted who answers in time

    def started(self, coordinator: Coordinator) -> None:
        self._started[coordinator.name] = coordinator.now
        self._established[coordinator.name] = self._newest  # it knows of no complaint before it

    def arrived(self, coordinator: Coordinator, worker: str) -> None:
        newest = self._generations.get(self._newest)
        if newest is not None and worker in newest.workers():
            self._call(worker)
            self._first.setdefault(coordinator.name, coordinator.now)
            self._arrived[coordinator.name] = coordinator.now

    def heard(self, coordinator: Coordinator, worker: str) -> None:
        self._heard[coordinator.name, worker] = coordinator.now
        assert coordinator.membership is not None
        self._heard_in[coordinator.name, worker] = coordinator.membership.current.number
        self._closed.pop((coordinator.name, worker), None)

    def closed(self, coordinator: Coordinator, worker: str) -> None:
        if self._heard.pop((coordinator.name, worker), None) is not None:
            self._closed[coordinator.name, worker] = coordinator.now
        self.has_left(worker)

    def said(
        self, coordinator: Coordinator, session: int, worker: str, status: WorkerStatus
    ) -> None:
        if status.step_seconds:
            self._step_seconds[worker] = status.step_seconds
        self._said[coordinator.name, session] = (worker, status)

    def says_nothing(self, coordinator: Coordinator, session: int) -> None:
        self._said.pop((coordinator.name, session), None)

    def established(self, coordinator: Coordinator, number: int) -> None:
        self._established[coordinator.name] = number

    def is_leaving(self, worker: str) -> None:
        self._leaving.add(worker)

    def was_replaced(self, worker: str) -> None:
        """Another process is started in its place, which says that it has ended."""
        self._replaced.add(worker)

    def has_left(self, worker: str) -> None:
        """So far as anyone can tell: it died, or its session closed. Nobody can work on in a
        generation that it was in: the newest one calls its members."""
        newest = self._generations.get(self._newest)
        if newest is not None and worker not in newest.workers():
            for other in newest.workers():
                self._call(other)

    def entered(self, worker: str, number: int) -> None:
        self._entered[worker] = number

    def said_to_have_seen(self, worker: str, number: int) -> None:
        if number == self._published and worker in self._newcomers:
            self._call(worker, has_seen=True)

    def said_to_have_entered(self, worker: str, number: int) -> None:
        if number <= self._said_entered.get(worker, 0):
            return
        self._said_entered[worker] = number
        self._enter_by.pop(worker, None)
        newest = self._generations.get(self._newest)
        if newest is not None and number < self._newest and not newest.sound:
            self._call(worker)

    def went(self, generation: Generation) -> None:
        late = [
            worker
            for worker in generation.workers()
            if self._entered.get(worker, 0) < generation.number
        ]
        if late:
            raise Broken(f"generation {generation.number} went without {', '.join(late)}")

    def complained(self, number: int, peers: tuple[str, ...]) -> None:
        self._trouble = max(self._trouble, number)
        for worker in peers:
            self._named.setdefault(worker, set()).add(number)

    def decided(self, coordinator: Coordinator, generation: Generation) -> None:
        """Before it is written."""
        before = self._generations.get(generation.number - 1)
        if before is None:
            return
        staying = set(generation.workers())
        for domain in before.domains:
            out = [worker for worker in domain.workers if worker not in staying]
            if out and all(self._answers(coordinator, before, worker) for worker in domain.workers):
                names = ", ".join(out)
                raise Broken(f"{names} answered in time and was thrown out: {generation.reason}")
        if restores(generation) and not restores(before):
            self._check_ground(coordinator, before)

    def _check_ground(self, coordinator: Coordinator, before: Generation) -> None:
        """The run's state may only be given up when nobody who has all of it is heard for long;
        not because they do not come to a generation: a step may be long."""
        for domain in before.domains:
            if domain.holds and all(
                self._is_there(coordinator, before, worker) for worker in domain.workers
            ):
                raise Broken(
                    f"{'+'.join(domain.workers)} holds the run's state, and it was given up"
                )

    def _is_there(self, coordinator: Coordinator, before: Generation, worker: str) -> bool:
        """Also one that is about to leave: it does so when others have the state."""
        is_heard = self._is_heard(coordinator, worker) and worker not in self._replaced
        return is_heard and self._is_not_silent(coordinator, before, worker)

    def _is_heard(self, coordinator: Coordinator, worker: str) -> bool:
        heard = self._heard.get((coordinator.name, worker), -inf)
        return coordinator.now - heard < self.rules.suspected_seconds

    def _answers(self, coordinator: Coordinator, before: Generation, worker: str) -> bool:
        leaves = worker in self._leaving or worker in self._replaced
        return not leaves and self._is_in_time(coordinator, before, worker)

    def _is_in_time(self, coordinator: Coordinator, before: Generation, worker: str) -> bool:
        is_late = self.world.now >= self._enter_by.get(worker, inf) - CLOCK_SECONDS
        return not is_late and self._is_not_silent(coordinator, before, worker)

    def _is_not_silent(self, coordinator: Coordinator, before: Generation, worker: str) -> bool:
        rules, key = self.rules, (coordinator.name, worker)
        if self._named.get(worker):
            return False
        # Somebody complained, and this coordinator has not seen all well in a newer generation.
        is_troubled = self._trouble >= self._established[coordinator.name]
        is_missed = is_troubled or self._waits(coordinator, before)
        if key in self._heard:
            is_short = is_missed or self._is_called(coordinator, before, worker)
            limit = self._limit(coordinator, before)
            patience = limit if is_short else max(rules.silence_seconds, limit)
            return coordinator.waited_since(self._heard[key]) < patience
        if key in self._closed:
            waited = coordinator.waited_since(self._closed[key])
            return waited < rules.reconnect_seconds and not is_troubled
        if is_missed and coordinator.name in self._first:
            last, first = self._arrived[coordinator.name], self._first[coordinator.name]
            lull_seconds = max(rules.lull_seconds, self._limit(coordinator, before))
            return (
                coordinator.waited_since(last) < lull_seconds
                and coordinator.waited_since(first) < rules.comeback_seconds
            )
        return coordinator.waited_since(self._started[coordinator.name]) < rules.absent_seconds

    def _limit(self, coordinator: Coordinator, generation: Generation) -> float:
        """Longest silence of a member that is missed, by the pauses that this coordinator has
        seen."""
        assert coordinator.membership is not None
        lateness = coordinator.membership.state.lateness.longest(coordinator.now)
        return silence_limit(self.rules, sum(1 for _ in generation.workers()), lateness)

    def _are_most_silent(self, coordinator: Coordinator, generation: Generation) -> bool:
        """Too many for a group that is not small: they are waited for longer."""
        members = list(generation.workers())
        silent = [worker for worker in members if not self._is_heard(coordinator, worker)]
        return 2 * len(silent) > len(members) > self.rules.small_group

    def _is_called(self, coordinator: Coordinator, generation: Generation, worker: str) -> bool:
        """Whether it is to come to this generation as all are, and was not heard since."""
        heard_in = self._heard_in.get((coordinator.name, worker), 0)
        return not generation.sound and heard_in < generation.number

    def _waits(self, coordinator: Coordinator, generation: Generation) -> bool:
        """Whether a member has said so of this generation, or of one that it finishes first, and
        not taken it back."""
        at_work = {generation.number, *generation.sound}
        return any(status.waits in at_work for status in self._statuses(coordinator, generation))

    def _statuses(self, coordinator: Coordinator, generation: Generation) -> list[WorkerStatus]:
        """What its members have said last."""
        members = set(generation.workers())
        return [
            status
            for (name, _), (worker, status) in self._said.items()
            if name == coordinator.name and worker in members
        ]

    # Who is silent while others wait does not hold them up for long

    def looked(self, coordinator: Coordinator) -> None:
        membership = coordinator.membership
        if membership is None or coordinator.is_dead or coordinator.is_writing:
            return
        generation = membership.current
        # In an older one that somebody left, or was in before a restart, all are called anyway.
        at_work = {generation.number}
        if self._established[coordinator.name] < generation.number:
            at_work |= {
                number
                for number in generation.sound
                if set(self._generations[number].workers()) <= set(generation.workers())
            }
        statuses = self._statuses(coordinator, generation)
        is_missed = any(
            status.waits in at_work or status.trouble == generation.number for status in statuses
        )
        holders = [
            worker for domain in generation.domains if domain.holds for worker in domain.workers
        ]
        if not any(self._is_heard(coordinator, worker) for worker in holders):
            return  # perhaps the coordinator itself is cut off
        if self._are_most_silent(coordinator, generation):
            return
        limit = self._limit(coordinator, generation)
        for worker in generation.workers():
            if not is_missed and not self._is_called(coordinator, generation, worker):
                continue
            heard = self._heard.get((coordinator.name, worker), inf)
            silent = coordinator.now - heard
            if heard > coordinator.disturbed and silent > limit:
                raise Broken(f"{worker} is silent for {silent:.1f} s, and others wait for it")


def _name_of(given: Given) -> Name:
    return NO_STATE if given.held is None else given.held.name


def _same(one: Generation, other: Generation) -> bool:
    return [domain.workers for domain in one.domains] == [
        domain.workers for domain in other.domains
    ]
