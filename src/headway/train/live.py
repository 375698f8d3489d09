"""Live worlds: one World for each generation of the coordinator, and a thread that ends collectives
of a broken generation.

A worker that waits in a collective waits in C++, for a peer that may never answer. So a thread of
ours watches the session: when the generation is broken it shuts the connections of its groups, and
collectives that wait there fail at once. The same thread tells the coordinator when a collective
takes long, which makes the coordinator check silent workers sooner.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from headway.errors import Exit, PeerLost
from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.identity import without_tokens
from headway.member.worker.session import Session
from headway.member.worker.session_view import GenerationOver, Late, SessionClosed, View
from headway.train.collectives import WorkerGroup
from headway.train.domain_group import DomainGroup, DomainLost, wanted_generations
from headway.train.restart_place import PLACE_SECONDS, end_process
from headway.train.session_store import Group, GroupFailed, SessionStore, form_group
from headway.train.stop_request import StopRequest
from headway.train.watchdog import MAX_HANGS, abort
from headway.train.worker_log import log_line
from headway.train.world import RankPlacement, World

WATCH_SECONDS = 0.1
"""Between two looks at the session."""
SLOW_COLLECTIVE_SECONDS = 0.5
"""A collective that takes longer: a peer may be lost."""
STOP_SECONDS = 30.0
"""Wait for other workers at most, once the run was asked to stop."""


class LiveWorlds:
    """One world for each generation of the coordinator."""

    saves_before_change = False
    exit_code: Exit | None = None

    def __init__(
        self,
        session: Session,
        placement: RankPlacement,
        stop: StopRequest,
        restarts_because: str | None = None,
    ) -> None:
        self.session, self.placement, self.stop = session, placement, stop
        self.restarts_because = restarts_because
        """Why groups cannot be left here: if one is lost in which this process waits, so is the
        process. None: they can be left."""
        self._generation: Generation | None = None
        """The generation of the newest world."""
        self._domain: Domain | None = None
        self._monitor: _WorldMonitor | None = None
        self._has_begun = False
        """Whether all workers of the newest world have the run's state."""
        self._failed_groups = 0
        """Groups in a row that did not form: the next one has longer."""
        self._wanted_at = time.monotonic()
        self._is_waiting = False
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._watch_session, name="headway-worlds", daemon=True
        )
        self._thread.start()

    # Called by training

    @property
    def has_state(self) -> bool:
        healed = self.session.view.status.healed
        return self._domain is not None and self._domain.has_state(healed)

    @property
    def is_paused(self) -> bool:
        return self._generation is not None and self._generation.paused

    @property
    def num_newer_generations(self) -> int:
        status = self.session.view.status
        return status.seen - status.entered

    @property
    def is_leaving(self) -> bool:
        return self.session.view.status.leaving

    @property
    def reason(self) -> str:
        # Without tokens, which tell a process from its predecessor on the same node.
        return "" if self._generation is None else without_tokens(self._generation.reason)

    @property
    def worker_names(self) -> list[str]:
        domains = [] if self._generation is None else _leader_first(self._generation)
        return [without_tokens(worker) for domain in domains for worker in domain.workers]

    def report_hang(self, times: int) -> None:
        monitor = self._monitor
        if monitor is not None and monitor.since is not None and not monitor.is_over:
            self._complain(())  # it waits for others: something is wrong between them
        elif times >= MAX_HANGS:
            abort()  # the others have continued without it, and it is replaced

    def report_state(self) -> None:
        self._has_begun = True
        self.session.healed()

    def report_step_seconds(self, seconds: float) -> None:
        self.session.set_step_seconds(math.ceil(seconds))

    def next(self, is_wanted: Callable[[], bool]) -> World | None:
        self._wanted_at = time.monotonic()
        while self._wait_for_place(is_wanted):
            generation = self._enter()
            if generation is None or not self._wait_for_all(generation.number, is_wanted):
                continue
            # All have entered, so nobody needs the groups of the previous world.
            self._drop()
            world = None
            try:
                world = self._form(generation)
                self._failed_groups = 0
            except GroupFailed as failed:
                self._failed_groups += 1
                log_line(failed.message)
                self._complain(failed.workers)
            except GenerationOver:
                pass
            if self._have_all_formed(generation.number, world):
                return world
            self._drop()
        return None

    def _enter(self) -> Generation | None:
        """The newest generation, which all ranks of the domain enter together. None: there is a
        newer one, or one of the ranks knows of another."""
        number = self.session.view.generation.number
        if self.placement.domain_groups is not None:
            control = WorkerGroup(self.placement.domain_groups[1], _MeetingMonitor(self.session))
            wanted = wanted_generations(control, number)
            if set(wanted) != {number}:
                with suppress(Late):
                    self.session.wait_for(
                        "the generation that another rank of the domain knows",
                        lambda view: view.generation.number >= max(wanted),
                        PLACE_SECONDS,
                    )
                return None
        generation = self.session.enter(number)
        if generation.number != number or generation.domain_of(self.session.name) is None:
            return None  # a newer one came between the two
        return generation

    def _have_all_formed(self, number: int, world: World | None) -> bool:
        """COLLECTIVE in the domain. Whether all its ranks have formed their groups. From now on
        they leave a world together."""
        domain = self._domain_group(number, _WorldMonitor())
        if domain is None:
            return world is not None
        try:
            return all(formed == [1] for formed in domain.all_gather([int(world is not None)]))
        except DomainLost:
            raise
        except PeerLost:
            return False  # one of them has left for a newer generation already

    def _domain_group(self, number: int, monitor: _WorldMonitor) -> DomainGroup | None:
        if self.placement.domain_groups is None:
            return None
        in_domain = _DomainMonitor(self.session, monitor)
        data, control = (WorkerGroup(group, in_domain) for group in self.placement.domain_groups)
        return DomainGroup(data, control, number)

    def wait_for_change(self, is_wanted: Callable[[], bool]) -> None:
        number = self.session.view.status.entered
        while is_wanted() and not self.is_leaving:
            try:
                self.session.wait_for(
                    "another generation",
                    lambda view: view.generation.number > number,
                    PLACE_SECONDS,
                )
            except Late:
                continue
            return

    def end_world(self, lost: PeerLost) -> None:
        # Or the error and its frames would keep each other alive, and the group with its threads
        # and sockets, until the next garbage collection.
        traceback.clear_frames(lost.__traceback__)
        self._drop()
        self._complain(() if self._has_begun else self._newcomers())

    def _newcomers(self) -> tuple[str, ...]:
        """Those that were to be given the run's state by this worker and others. If that fails
        again and again, and nobody is lost, it is not the fault of those that trained before."""
        if self._generation is None or not self.has_state:
            return ()
        lacking = [one for one in self._generation.domains if not one.holds and one != self._domain]
        return tuple(worker for domain in lacking for worker in domain.workers)

    def finish(self, world: World) -> None:
        pass

    def close(self, reason: str) -> None:
        self._is_closed = True
        self._drop()
        self.session.goodbye(reason)
        self._thread.join(1.0)

    # From one world to the next

    def _wait_for_place(self, is_wanted: Callable[[], bool]) -> bool:
        while True:
            view = self.session.view
            if view.status.leaving and self._may_leave(view):
                return False
            if view.domain is None:
                if not is_wanted():
                    return False
                if not view.status.ready:
                    self.session.be_ready()
            try:
                self.session.wait_for("a place in the run", _has_new_place, PLACE_SECONDS)
            except Late:
                if self._gives_up(is_wanted):
                    return False
                continue
            return True

    def _may_leave(self, view: View) -> bool:
        """It has no place in the run, or has saved and waits in a run that is paused."""
        newest = self._generation
        is_paused = newest is not None and newest.paused and newest.number == view.generation.number
        return view.domain is None or is_paused

    def _gives_up(self, is_wanted: Callable[[], bool]) -> bool:
        """Whether the run was asked to stop and no other workers have come to stop it with: they
        are gone, and maybe the launcher, too."""
        now = time.monotonic()
        if is_wanted():
            self._wanted_at = now
        return now - self._wanted_at > STOP_SECONDS

    def _wait_for_all(self, number: int, is_wanted: Callable[[], bool]) -> bool:
        """Whether all workers have entered the generation; not if there is a newer one. Without a
        timeout: some finish their step first, and the coordinator removes those that never come."""
        while True:
            try:
                view = self.session.wait_for(
                    "all others",
                    lambda view: view.may_form or view.generation.number > number,
                    PLACE_SECONDS,
                )
            except Late:
                if self._gives_up(is_wanted):
                    return False
                continue
            return view.may_form and view.generation.number == number

    def _form(self, generation: Generation) -> World:
        domain = generation.domain_of(self.session.name)
        assert domain is not None
        local_rank, size = domain.workers.index(self.session.name), len(domain.workers)
        assert (local_rank, size) == (self.placement.local_rank, self.placement.domain_size), domain
        domains = _leader_first(generation)
        index = domains.index(domain)
        monitor = _WorldMonitor()
        store = SessionStore(self.session, generation.number)
        replicas = None
        if len(domains) > 1:
            name = f"replicas-{local_rank}"
            try:
                group = form_group(
                    store, index, len(domains), name=name, failures=self._failed_groups
                )
            except GroupFailed as failed:
                failed.workers = tuple(
                    domains[missing].workers[local_rank] for missing in failed.ranks
                )
                raise
            assert group.process_group is not None
            monitor.groups.append(group)
            replicas = WorkerGroup(group.process_group, monitor)
        self._generation, self._domain, self._monitor = generation, domain, monitor
        self._has_begun = False
        return World(
            rank=index * size + local_rank,
            num_workers=len(domains) * size,
            generation=generation.number,
            placement=self.placement,
            replicas=replicas,
            domain=self._domain_group(generation.number, monitor),
        )

    def _complain(self, peers: tuple[str, ...]) -> None:
        status = self.session.view.status
        if status.seen == status.entered:  # else there is a newer generation already
            self.session.complain(peers)

    def _drop(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.drop()

    # The thread

    def _watch_session(self) -> None:
        with suppress(SessionClosed):  # by `close`, at any time
            while not self._is_closed:
                with suppress(Late):
                    self.session.wait_for("a change", self._is_broken, WATCH_SECONDS)
                if self.stop.leave_asked and not self.session.view.status.leaving:
                    self.session.leave()
                monitor = self._monitor
                if monitor is not None and self._is_broken(self.session.view):
                    if monitor.groups and self.restarts_because is not None:
                        end_process(self.session.view.generation)
                    monitor.drop()
                self._report_waiting(monitor)

    def _is_broken(self, view: View) -> bool:
        monitor = self._monitor
        return monitor is not None and not monitor.is_over and view.must_drop

    def _report_waiting(self, monitor: _WorldMonitor | None) -> None:
        since = None if monitor is None else monitor.since
        is_waiting = since is not None and time.monotonic() - since >= SLOW_COLLECTIVE_SECONDS
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            if is_waiting:
                self.session.start_waiting()
            else:
                self.session.stop_waiting()


class _WorldMonitor:
    """The monitor of one world's groups."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.is_over = False
        self.since: float | None = None
        """Time since which this worker waits in a collective."""

    def wait_begins(self) -> None:
        self.since = time.monotonic()

    def wait_ends(self) -> None:
        self.since = None

    def drop(self) -> None:
        self.is_over = True
        for group in self.groups:
            group.drop()


class _DomainMonitor:
    """The monitor of a domain's own groups. They are over once the domain was removed from the run,
    which frees a rank that waits for a stopped one. Not when other domains are lost, and not when
    the domain leaves as planned: then it finishes its step."""

    def __init__(self, session: Session, monitor: _WorldMonitor) -> None:
        self._session = session
        self.wait_begins, self.wait_ends = monitor.wait_begins, monitor.wait_ends

    @property
    def is_over(self) -> bool:
        view = self._session.view
        return view.domain is None and view.must_drop


class _MeetingMonitor(_DomainMonitor):
    """The same between two worlds, where no step is left to finish."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, _WorldMonitor())

    @property
    def is_over(self) -> bool:
        return self._session.view.domain is None


def _has_new_place(view: View) -> bool:
    return view.domain is not None and view.generation.number > view.status.entered


def _leader_first(generation: Generation) -> list[Domain]:
    leader = generation.domains[generation.leader]
    return [leader, *(domain for domain in generation.domains if domain is not leader)]
