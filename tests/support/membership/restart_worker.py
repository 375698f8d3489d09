"""A worker of a run whose workers end with their generation: a model of training, and of the thread
that ends the process (`train/restart.py`)."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from headway.errors import Exit
from headway.member.protocol.generation import Generation
from headway.member.worker.follower import Follower
from support.membership.connected_process import ConnectedProcess
from support.membership.generations import enters_next
from support.membership.network import Network
from support.membership.restart_checks import RestartChecks
from support.membership.storage import Storage
from support.membership.training import Given, Group, Held
from support.membership.world import Action, World

READY_SECONDS = 0.3
BUILD_SECONDS = 1.0
SAVE_SECONDS = 1.0
SAVE_EVERY = 4
WAITS_SECONDS = 0.5
FORM_SECONDS = 20.0
"""As the 3 minutes of a real one."""
COLLECTIVE_SECONDS = 40.0
"""As the 10 minutes of a real one."""
WATCHDOG_SECONDS, WATCHDOG_STEPS = 20.0, 5
MEET_SECONDS = 10.0
DECISION_SECONDS = 5.0
ABORTED = -6
KILLED = -9
Then = Callable[[dict[str, Given]], None]


class RestartWorker(ConnectedProcess):
    def __init__(
        self,
        world: World,
        network: Network,
        checks: RestartChecks,
        groups: Callable[[Generation], Group],
        make_follower: Callable[[str], Follower],
        name: str,
        step_seconds: float,
        storage: Storage,
        notices_peers: bool,
        exited: Callable[[RestartWorker], None],
    ) -> None:
        """`notices_peers`: whether a collective fails when a peer is lost, as gloo's do; NCCL's
        wait."""
        super().__init__(world, network, checks, make_follower, name)
        self.run_checks = checks
        self.exit_code: int | None = None
        self._groups, self._storage, self._exited = groups, storage, exited
        self._step_seconds, self._notices_peers = step_seconds, notices_peers
        self._generation: Generation | None = None
        self._group: Group | None = None
        self._num_collectives = 0
        self._then: Then | None = None
        """What it does after the collective that it waits in."""
        self._follows = True
        """Whether the end of its generation ends this process."""
        self._is_leaving = False
        self._held = Held()
        self._unwritten: Held | None = None
        """Committed, and not in the ledger: it is settled with the next step or a save."""
        self._progress: float | None = None
        """When it last committed a step, while its watchdog is on duty."""
        self._leave_pause, self._next_leave_step = 1, 0
        world.soon(lambda: self.do(self._poll), READY_SECONDS)

    # The process

    def _leave_group(self, silently: bool) -> None:
        self.run_checks.exited(self.name)
        self.checks.has_left(self.name)
        if self._group is not None:
            self._group.leave(self, silently or not self._notices_peers)

    def exit(self, code: int) -> None:
        if self.is_dead:
            return
        self.exit_code = code
        self.world.tell(self.name, f"exits with {code}")
        self.die(silently=False)
        self._exited(self)

    def leave(self) -> None:
        self.world.tell(self.name, "is asked to leave")
        self.checks.is_leaving(self.name)
        self._is_leaving = True
        if self._follows:
            self.follower.leave()
            self._say()
        self._poll()

    def _close(self, code: int) -> None:
        session = self.session
        self.checks.is_leaving(self.name)
        if session is not None:
            session.up(lambda: session.coordinator.goodbye(session))
        self.exit(code)

    # Before there is a group

    def _poll(self) -> None:
        if self.is_dead:
            return
        if self._follows and self._is_over():
            self.exit(Exit.GENERATION_OVER)  # a thread does it, wherever training waits
        elif not self.is_stuck and self._group is None:
            self._look_for_a_place()

    def _is_over(self) -> bool:
        entered = self.follower.status.entered
        return entered > 0 and self.follower.newest.breaks(entered)

    def _look_for_a_place(self) -> None:
        follower = self.follower
        if follower.status.entered:
            if follower.may_form:
                self._form()
        elif self._is_leaving:
            self._close(Exit.STOPPED)
        elif follower.domain is not None:
            self._generation = follower.enter()
            self.checks.entered(self.name, self._generation.number)
            self.run_checks.at_work(self.name, self._generation.number)
            self._say()
        elif not follower.status.ready:
            follower.be_ready()
            self._say()

    # Collectives

    def _meet(
        self, then: Then, held: Held | None = None, seconds: float = COLLECTIVE_SECONDS
    ) -> None:
        group, index = self._group, self._num_collectives
        assert group is not None
        self._num_collectives += 1
        self._then = then
        self.world.after(WAITS_SECONDS, lambda: self.do(lambda: self._waits(index)))
        self.world.after(seconds, lambda: self.do(lambda: self._times_out(index)))
        status = self.follower.status
        group.join(self, index, Given(status.seen, held=held, leaving=status.leaving))

    def _is_in(self, index: int) -> bool:
        return self._then is not None and self._num_collectives == index + 1

    def _waits(self, index: int) -> None:
        if self._is_in(index):
            self.follower.start_waiting()
            self._say()

    def _stop_waiting(self) -> None:
        self._then = None
        if self.follower.status.waits:
            self.follower.stop_waiting()
            self._say()

    def _times_out(self, index: int) -> None:
        if self._is_in(index) and self._group is not None:
            self.failed(self._group)

    def completed(self, group: Group, index: int, given: dict[str, Given]) -> None:
        then = self._then
        if then is None:
            return
        self._stop_waiting()
        self._work(0.0, lambda: then(given))

    def failed(self, group: Group) -> None:
        then = self._then
        if then is None or self.is_dead:
            return
        self._stop_waiting()
        if then == self._exit_as_planned:
            self._exit_as_planned({})
        else:
            self._lose_peer()

    def _lose_peer(self) -> None:
        """The coordinator says soon who is lost, and its thread ends it; if not, it has lost the
        others itself."""
        self._progress = None
        self.world.after(DECISION_SECONDS, lambda: self.do(lambda: self.exit(Exit.PEER_LOST)))

    def _work(self, seconds: float, then: Action) -> None:
        """Training works for so long."""

        def done() -> None:
            if self.is_stuck:
                self._work(0.5, then)
            else:
                then()

        if seconds or self.is_stuck:
            self.world.after(seconds, lambda: self.do(done))
        else:
            then()

    def _some(self, seconds: float) -> float:
        return seconds * (0.1 + 0.9 * self.world.random.random())

    # Training

    @property
    def _number(self) -> int:
        assert self._generation is not None
        return self._generation.number

    @property
    def _leader(self) -> str:
        assert self._generation is not None
        return next(self._generation.workers())

    @property
    def _is_leader(self) -> bool:
        return self.name == self._leader

    def _form(self) -> None:
        assert self._generation is not None
        self._group = self._groups(self._generation)
        self._meet(
            lambda _: self._work(self._some(BUILD_SECONDS), self._choose), None, FORM_SECONDS
        )

    def _choose(self) -> None:
        chosen = self._storage.newest() if self._is_leader else None
        if self._is_leader and chosen is None:
            self._lose_peer()  # the storage is away
            return
        if chosen is not None:
            self.run_checks.chosen(chosen, self._storage)
        self._meet(self._restore, chosen)

    def _restore(self, given: dict[str, Given]) -> None:
        chosen = given[self._leader].held
        assert chosen is not None
        self._held = chosen
        self._work(self._some(BUILD_SECONDS), lambda: self._meet(self._begin))

    def _begin(self, given: dict[str, Given]) -> None:
        self.follower.healed()
        self._say()
        if self._is_leader:
            self.run_checks.began(self._number, self._held)
            self._storage.begin(self._number, self._held)
        self._feed_watchdog()
        self._step()

    def _feed_watchdog(self) -> None:
        fed = self._progress = self.world.now

        def look() -> None:
            if self._progress == fed:
                self.exit(ABORTED)

        seconds = WATCHDOG_SECONDS + WATCHDOG_STEPS * self._step_seconds
        self.world.after(seconds, lambda: self.do(look))

    def _step(self) -> None:
        seconds = self._step_seconds * (0.5 + self.world.random.random())
        self._work(seconds, lambda: self._meet(self._commit))

    def _commit(self, given: dict[str, Given]) -> None:
        self._settle()
        self._held = self._unwritten = self._held.learn(self._number)
        self.run_checks.committed(self._number, self._held)
        self._feed_watchdog()
        self.follower.set_step_seconds(ceil(self._step_seconds))
        if self._is_leader and self._held.step % SAVE_EVERY == 0:
            self._save_soon()
        seen = [one.seen for one in given.values()]
        all_leave = all(one.leaving for one in given.values())
        is_over = all_leave or enters_next(self.follower.status.entered, seen)
        if is_over and self._held.step >= self._next_leave_step:
            self._save_for_change()
        else:
            self._step()

    def _settle(self) -> None:
        if self._is_leader and self._unwritten is not None:
            self._storage.note(self._unwritten, self._number)
        self._unwritten = None

    def _save_soon(self) -> None:
        """A thread writes it."""
        self._settle()
        held = self._held
        seconds = self._some(SAVE_SECONDS)
        self.world.after(seconds, lambda: self.do(lambda: self._storage.save(held, self._number)))

    def _save_for_change(self) -> None:
        self._settle()
        self._progress = None

        def write() -> None:
            is_saved = self._is_leader and self._storage.save(self._held, self._number)
            self._meet(self._saved, self._held if is_saved else None)

        self._work(self._some(SAVE_SECONDS), write)

    def _saved(self, given: dict[str, Given]) -> None:
        if given[self._leader].held is not None:
            self._follows = False
            self.run_checks.has_saved(self.name)
            self._meet(self._exit_as_planned, None, MEET_SECONDS)
            return
        self._leave_pause *= 2
        self._next_leave_step = self._held.step + self._leave_pause
        self._feed_watchdog()
        self._step()

    def _exit_as_planned(self, _: dict[str, Given]) -> None:
        is_leaving = self.follower.status.leaving
        code = Exit.STOPPED if is_leaving else Exit.GENERATION_OVER
        self._work(self._some(READY_SECONDS), lambda: self._close(code))
