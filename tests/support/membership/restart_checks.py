"""What must hold in every history of a run whose workers end with their generation."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import Generation
from support.membership.checks import CHOOSE, Broken, Checks
from support.membership.storage import Storage
from support.membership.training import Held
from support.membership.world import World

if TYPE_CHECKING:
    from support.membership.coordinator import Coordinator

BROKEN_SECONDS = 1.0
"""From the loss of a worker that others save with to the end of their generation."""


class RestartChecks(Checks):
    def __init__(self, world: World, rules: Rules) -> None:
        super().__init__(world, rules, Held(), CHOOSE)
        self.line = {0: Held()}
        """The states that count, by step."""
        self.num_starts = 0
        """Generations with members."""
        self.longest_pause = 0.0
        """Between two steps."""
        self._begun = 0
        """The newest generation that has begun to train."""
        self._at_work: dict[str, int] = {}
        """Who has entered a generation and not left it, dead or saved."""
        self._lost_in: dict[str, int] = {}
        """In which generation a worker ended before it had saved."""
        self._broken_at: dict[tuple[str, int], float] = {}
        """(coordinator, generation): when it knew of such a loss."""

    # The workers

    def at_work(self, worker: str, number: int) -> None:
        self._at_work[worker] = number

    def has_saved(self, worker: str) -> None:
        """With all others: its generation is finished."""
        self._at_work.pop(worker, None)

    def exited(self, worker: str) -> None:
        number = self._at_work.pop(worker, None)
        if number is not None:
            self._lost_in[worker] = number

    def closed(self, coordinator: Coordinator, worker: str) -> None:
        super().closed(coordinator, worker)
        if worker in self._lost_in:
            self._broken_at.setdefault((coordinator.name, self._lost_in[worker]), coordinator.now)

    # One line of steps, rewound to the newest checkpoint only

    def chosen(self, held: Held, storage: Storage) -> None:
        of_line = [one for one in storage.checkpoints.values() if self.line.get(one.step) == one]
        newest = max(of_line, key=lambda one: one.step)
        if held != newest:
            raise Broken(f"resumes from step {held.step}, and step {newest.step} was saved")

    def began(self, number: int, held: Held) -> None:
        if number <= self._begun:
            raise Broken(f"generation {number} begins after generation {self._begun}")
        if self.line.get(held.step) != held:
            raise Broken(f"generation {number} begins with a step {held.step} that does not count")
        self._begun = number
        redone = [step for step in self.line if step > held.step]
        if redone and self.is_peaceful:
            raise Broken(f"{len(redone)} steps are redone after a planned change")
        for step in redone:
            del self.line[step]

    def committed(self, number: int, held: Held) -> None:
        if number < self._begun:
            return  # fenced: readers do not count what it writes
        if self.line.setdefault(held.step, held) != held:
            raise Broken(f"step {held.step} was committed twice in generation {number}")
        if held.step - 1 not in self.line:
            raise Broken(f"step {held.step} was committed, and the one before it was not")
        if self.last_settled:
            self.longest_pause = max(self.longest_pause, self.world.now - self.last_settled)
        self.last_settled = self.world.now

    def check_ledger(self, ledger: list[Held]) -> None:
        steps = [held.step for held in ledger]
        if steps != list(range(1, len(steps) + 1)):
            raise Broken(f"the ledger has steps {steps}")
        wrong = [held.step for held in ledger if self.line.get(held.step) != held]
        if wrong:
            raise Broken(f"the ledger has another step {wrong[0]} than was trained last")

    # Generations

    def written(self, generation: Generation) -> None:
        number, before = generation.number, self._generations.get(self._newest)
        if number != self._newest + 1:
            raise Broken(f"generation {number} was written after {self._newest}")
        if before is not None and before.domains and generation.domains:
            raise Broken(f"generation {number} has members, and so has the one before")
        is_end = before is not None and (before.domains or before.sound)
        if not generation.domains and not is_end:
            raise Broken(f"generation {number} ends nothing")
        self._newest = number
        self._generations[number] = generation
        self.num_starts += bool(generation.domains)
        for domain in generation.domains:
            self._check_nodes(domain)

    def decided(self, coordinator: Coordinator, generation: Generation) -> None:
        before = self._generations.get(generation.number - 1)
        if generation.domains:
            self._check_start(coordinator, generation, before)
        elif before is not None and before.domains and not generation.sound:
            self._check_end(coordinator, generation, before)

    def _check_end(
        self, coordinator: Coordinator, generation: Generation, before: Generation
    ) -> None:
        if all(self._answers(coordinator, before, worker) for worker in before.workers()):
            raise Broken(f"all answered in time, and had to end: {generation.reason}")

    def _check_start(
        self, coordinator: Coordinator, generation: Generation, before: Generation | None
    ) -> None:
        number, rules = generation.number, self.rules
        if not rules.min_domains <= len(generation.domains) <= rules.max_domains:
            raise Broken(f"generation {number} has {len(generation.domains)} domains")
        used = [worker for worker in generation.workers() if self._said_entered.get(worker)]
        if used:
            raise Broken(f"{', '.join(used)} have entered a generation before {number}")
        if before is not None:
            for worker, entered in self._at_work.items():
                if entered in before.sound and self._is_heard(coordinator, worker):
                    raise Broken(f"generation {number} begins, and {worker} has not saved")

    # Who is silent while others wait does not hold them up for long

    def looked(self, coordinator: Coordinator) -> None:
        membership = coordinator.membership
        if membership is None or coordinator.is_dead or coordinator.is_writing:
            return
        generation = membership.current
        for number in generation.sound:
            self._check_is_broken(coordinator, number)
        members = list(generation.workers())
        statuses = self._statuses(coordinator, generation)
        is_missed = any(status.waits == generation.number for status in statuses)
        if not any(self._is_heard(coordinator, worker) for worker in members):
            return  # perhaps the coordinator itself is cut off
        if self._are_most_silent(coordinator, generation):
            return
        limit = self._limit(coordinator, generation)
        for worker in members:
            if not is_missed and not self._is_called(coordinator, generation, worker):
                continue
            heard = self._heard.get((coordinator.name, worker), inf)
            silent = coordinator.now - heard
            if heard > coordinator.disturbed and silent > limit:
                raise Broken(f"{worker} is silent for {silent:.1f} s, and others wait for it")

    def _check_is_broken(self, coordinator: Coordinator, number: int) -> None:
        """Nothing else ends those that wait for a dead peer."""
        known = self._broken_at.get((coordinator.name, number), inf)
        if known > coordinator.disturbed and coordinator.now - known > BROKEN_SECONDS:
            raise Broken(f"generation {number} has lost a worker, and the others are not told")
