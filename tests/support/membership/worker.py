"""A worker of a live run: a model of training."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from msgspec.structs import replace

from headway.member.protocol.generation import Generation
from headway.member.worker.follower import Follower
from support.membership.checks import Checks
from support.membership.connected_process import ConnectedProcess
from support.membership.generations import enters_next
from support.membership.network import Network
from support.membership.training import (
    EXCHANGE,
    FIRST_STEP,
    FORM,
    HEAL,
    Given,
    Group,
    Held,
)
from support.membership.world import World

FORM_SECONDS = 2.0
WAITS_SECONDS = 0.5
"""In a collective: then it says so, and does nothing else."""
HANG_SECONDS = 10.0
"""In a collective: then its watchdog takes it for one that will not end."""
HANG_STEPS = 5
"""The same, where steps are long."""
GO_SECONDS = 10.0
SHORT_SECONDS = 1.0
"""A longer step cannot be left early, as that of a sharded domain."""


class Worker(ConnectedProcess):
    def __init__(
        self,
        world: World,
        network: Network,
        checks: Checks,
        groups: Callable[[Generation], Group],
        make_follower: Callable[[str], Follower],
        name: str,
        step_seconds: float,
    ) -> None:
        super().__init__(world, network, checks, make_follower, name)
        self._groups = groups
        self._step_seconds = step_seconds
        self._step_began: float | None = None
        """When it began the one that it computes, which it cannot leave early."""
        self.held: Held | None = Held()
        """None: it is about to get another state, and has no whole one."""
        self.group: Group | None = None
        self._collective: int | None = None
        """The one it waits in."""
        self._picked = Held()
        self._failed_in = 0
        self._is_built = False
        world.after(1 + world.random.random() * 2, lambda: self.do(self._be_ready))

    def _leave_group(self, silently: bool) -> None:
        self.checks.has_left(self.name)
        if self.group is not None:
            self.group.leave(self, silently)

    # Training

    def _be_ready(self) -> None:
        self._is_built = True
        self.follower.be_ready()
        self._say()

    def leave(self) -> None:
        self.world.tell(self.name, "is asked to leave")
        self.checks.is_leaving(self.name)
        self.follower.leave()
        self._say()
        if self.group is None and self.follower.domain is None:
            self._go_away()
        else:
            self._poll()

    def _go_away(self) -> None:
        session = self.session
        if session is not None:
            session.up(lambda: session.coordinator.goodbye(session))
        self.checks.is_leaving(self.name)
        self.die(silently=False)

    def _poll(self) -> None:
        """What a trainer does between two looks at its collective."""
        follower = self.follower
        if self.is_stuck or self.is_dead:
            return
        newer = follower.newest.number > follower.status.entered
        if self.group is None:
            # Out, or waiting for the others, or failed: nothing holds it.
            if newer and follower.domain is not None:
                self._enter()
            elif newer and follower.status.leaving:
                self._go_away()
            elif newer and self._is_built:
                follower.be_ready()
            elif follower.may_form and self._failed_in != follower.status.entered:
                self._form()
        elif newer and self._step_began is None and follower.must_drop():
            self._go_over()
        elif newer and self._collective is None and self._is_paused():
            self._go_over()
        elif self._collective is None and self._is_paused() and follower.status.leaving:
            self._go_away()  # it has saved

    def _is_paused(self) -> bool:
        return self.group is not None and self.group.generation.paused

    def _go_over(self) -> None:
        self._step_began = None
        if self.group is not None:
            self.group.leave(self)
            self.group = None
            self._collective_ends()
        self._poll()

    def _enter(self) -> None:
        generation = self.follower.enter()
        self.checks.entered(self.name, generation.number)
        self._say()
        if self.follower.may_form:
            self._form()
        else:
            number = generation.number
            self.world.after(GO_SECONDS, lambda: self.do(lambda: self._nobody_comes(number)))

    def _nobody_comes(self, number: int) -> None:
        if self.group is None and self.follower.status.entered == number:
            self.follower.complain()
            self.checks.complained(number, ())
            self._say()

    def _form(self) -> None:
        generation = self.follower.newest
        if generation.number != self.follower.status.entered:
            return
        if self.follower.status.trouble:
            self._withdraw()
            self._say()
        self.group = group = self._groups(generation)
        self._join(FORM)
        self.world.after(
            FORM_SECONDS, lambda: self.do(lambda: self._hangs(group, FORM, is_fatal=True))
        )

    def _join(self, index: int, held: Held | None = None) -> None:
        group = self.group
        assert group is not None
        self._collective = index
        status = self.follower.status
        group.join(self, index, Given(status.seen, status.healed, held))
        self.world.after(WAITS_SECONDS, lambda: self.do(lambda: self._waits(group, index)))
        seconds = max(HANG_SECONDS, HANG_STEPS * self._step_seconds)
        self.world.after(seconds, lambda: self.do(lambda: self._hangs(group, index)))

    def _waits(self, group: Group, index: int) -> None:
        """A thread says so that looks after the collective: also for a trainer that is stuck."""
        if group is self.group and self._collective == index:
            self.follower.start_waiting()
            self._say()

    def _collective_ends(self) -> None:
        self._collective = None
        if self.follower.status.waits:
            self.follower.stop_waiting()

    def _hangs(self, group: Group, index: int, is_fatal: bool = False) -> None:
        if group is not self.group or self._collective != index:
            return
        if is_fatal:
            self.failed(group)
        elif self.is_stuck:
            self.world.after(1, lambda: self.do(lambda: self._hangs(group, index)))
        else:
            if self.follower.newest.number > self.follower.status.entered:
                self._go_over()
            else:
                self._complain(group)
                self._say()

    def _withdraw(self) -> None:
        """What hung has completed after all."""
        self.follower.status = replace(self.follower.status, trouble=0, peers=())

    def _complain(self, group: Group) -> None:
        peers = group.unreachable(self) if self.world.random.random() < 0.8 else ()
        self.follower.complain(peers)
        self.checks.complained(group.generation.number, peers)

    def failed(self, group: Group) -> None:
        if group is not self.group or self.is_dead:
            return
        self._failed_in = group.generation.number
        self.checks.failed(self.name, group.generation.number)
        self._complain(group)
        self._go_over()
        self._say()

    def completed(self, group: Group, index: int, given: dict[str, Given]) -> None:
        if group is not self.group:
            return
        if self.follower.status.trouble:
            self._withdraw()
        self._collective_ends()
        self._say()
        if index == FORM:
            self._join(EXCHANGE, self.held)
        elif index == EXCHANGE:
            self._picked = self.checks.picked(group.generation, given)
            if self.held != self._picked:
                self.held = None
            self._join(HEAL)
        elif index == HEAL:
            self.held = self._picked
            self.follower.healed()
            self.checks.healed(self.name, group.generation.number)
            self._say()
            self._step(FIRST_STEP)
        else:
            assert self.held is not None
            self.checks.settled(self.name, group.generation, self.held)
            self.held = self.held.learn(group.generation.number)
            self.follower.set_step_seconds(ceil(self._step_seconds))
            seen = [one.seen for one in given.values()]
            if enters_next(self.follower.status.entered, seen):
                self._go_over()
            else:
                self._step(index + 1)

    def _step(self, index: int) -> None:
        group = self.group
        if self._is_paused():
            self._poll()
            return

        began = self.world.now
        if self._step_seconds > SHORT_SECONDS:
            self._step_began = began

        def compute() -> None:
            if self._step_began not in (None, began) or group is not self.group:
                return
            if self.is_stuck:
                self.world.after(0.5, lambda: self.do(compute))
                return
            self._step_began = None
            if self.follower.must_drop():
                self._go_over()
            else:
                self._join(index)

        seconds = self._step_seconds * (0.5 + self.world.random.random())
        self.world.after(seconds, lambda: self.do(compute))
