"""From one generation to the next: a World of each, and a thread that ends what waits in a broken
one.

A worker that waits in a collective waits in C++, for a peer that may never answer. So a thread of
ours looks at the session: when the generation is broken it shuts the connections of its groups, and
whatever waits there fails at once. The same thread tells the coordinator when a collective takes
long, which makes it look more closely at whoever is silent.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch.distributed as dist

from headway.errors import PeerLost
from headway.member.generation import Domain, Generation
from headway.member.session import Session
from headway.member.session_view import GenerationOver, Late, SessionClosed, View
from headway.train.mates import DomainLost, Mates, meet
from headway.train.peers import Peers
from headway.train.preempt import StopRequest
from headway.train.session_store import FORM_SECONDS, Group, GroupFailed, SessionStore, form_group
from headway.train.world import Place, World

LOOK_SECONDS = 0.1
WAITS_SECONDS = 0.5
"""A collective that takes longer: somebody may be gone."""
TOKEN = re.compile(r"\.[0-9a-f]{16}\b")
HOPELESS_SECONDS = 30.0
HANGS = 2
"""So many times in a row it is given time to go on."""
PLACE_SECONDS = 1.0
"""Between two looks whether a place in the run is still wanted."""


class Worlds(Protocol):
    """Where worlds come from."""

    def next(self, is_wanted: Callable[[], bool]) -> World | None:
        """COLLECTIVE. Waits for a place in the run and for all others. None: it is no longer wanted
        and there is none."""
        ...

    @property
    def holds(self) -> bool:
        """Whether this worker came into the newest world with the run's state."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether there are too few to go on: save, and wait."""
        ...

    @property
    def num_ahead(self) -> int:
        """By how many generations the newest is ahead of the newest world."""
        ...

    @property
    def is_leaving(self) -> bool: ...

    @property
    def reason(self) -> str:
        """Why the newest world was made."""
        ...

    @property
    def names(self) -> list[str]:
        """Of the workers of the newest world, by rank."""
        ...

    def hang(self, times: int) -> None:
        """No step was committed for long, so many times in a row. From any thread."""
        ...

    def has_state(self) -> None:
        """This worker has the run's state now."""
        ...

    def takes_steps_of(self, seconds: float) -> None:
        """So long, each: others wait for the end of one, and know for how long."""
        ...

    def wait_for_change(self, is_wanted: Callable[[], bool]) -> None:
        """Until there is a newer generation, or this worker is to leave."""
        ...

    def lose(self, lost: PeerLost) -> None:
        """The newest world is over. Raises what it is given where there is never another."""
        ...

    def close(self, words: str) -> None:
        """The process ends, and says so."""
        ...


class OneWorld:
    """For a run that starts anew, as a whole, when anyone is lost."""

    holds = is_paused = is_leaving = False
    num_ahead = 0
    reason = "started"

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def names(self) -> list[str]:
        return [f"worker {rank}" for rank in range(self._world.num_workers)]

    def hang(self, times: int) -> None:
        if times >= HANGS:
            os.abort()  # a lost worker: all start again

    def next(self, is_wanted: Callable[[], bool]) -> World | None:
        return self._world

    def has_state(self) -> None:
        pass

    def takes_steps_of(self, seconds: float) -> None:
        pass

    def wait_for_change(self, is_wanted: Callable[[], bool]) -> None:
        raise AssertionError("there is never another world")

    def lose(self, lost: PeerLost) -> None:
        raise lost

    def close(self, words: str) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class LiveWorlds:
    """One world a generation, as the coordinator makes them."""

    def __init__(self, session: Session, place: Place, stop: StopRequest) -> None:
        self.session, self.place, self.stop = session, place, stop
        self._generation: Generation | None = None
        """Of the newest world."""
        self._domain: Domain | None = None
        self._watch: _Watch | None = None
        self._wanted_at = time.monotonic()
        self._is_waiting = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._look, name="headway-worlds", daemon=True)
        self._thread.start()

    # What training asks

    @property
    def holds(self) -> bool:
        return self._domain is not None and self._domain.holds

    @property
    def is_paused(self) -> bool:
        return self._generation is not None and self._generation.paused

    @property
    def num_ahead(self) -> int:
        status = self.session.view.status
        return status.seen - status.entered

    @property
    def is_leaving(self) -> bool:
        return self.session.view.status.leaving

    @property
    def reason(self) -> str:
        # Without what tells a process from the one before it in the same place.
        return "" if self._generation is None else TOKEN.sub("", self._generation.reason)

    @property
    def names(self) -> list[str]:
        domains = [] if self._generation is None else _leader_first(self._generation)
        return [TOKEN.sub("", pod) for domain in domains for pod in domain.pods]

    def hang(self, times: int) -> None:
        watch = self._watch
        if watch is not None and watch.since is not None and not watch.is_over:
            self._complain(())  # it waits for others, and something is wrong between them
        elif times >= HANGS:
            os.abort()  # the others have gone on without it, and it is replaced

    def has_state(self) -> None:
        self.session.healed()

    def takes_steps_of(self, seconds: float) -> None:
        self.session.take_steps_of(math.ceil(seconds))

    def next(self, is_wanted: Callable[[], bool]) -> World | None:
        self._wanted_at = time.monotonic()
        while self._wait_for_a_place(is_wanted):
            generation = self._enter()
            if generation is None or not self._wait_for_all(generation.number, is_wanted):
                continue
            # All have entered, so nobody needs the groups of the world before.
            self._drop()
            world = None
            try:
                world = self._form(generation)
            except GroupFailed as failed:
                self._complain(failed.pods)
            except GenerationOver:
                pass
            if self._have_all_formed(generation.number, world):
                return world
            self._drop()
        return None

    def _enter(self) -> Generation | None:
        """The newest generation, which all ranks of the domain enter together; None: there is a
        newer one, or one of them knows of another."""
        number = self.session.view.generation.number
        if self.place.domain_groups is not None:
            wanted = meet(Peers(self.place.domain_groups[1], _Meeting(self.session)), number)
            if set(wanted) != {number}:
                with suppress(Late):
                    self.session.wait_for(
                        "the generation that another rank of the domain knows",
                        lambda view: view.generation.number >= max(wanted),
                        PLACE_SECONDS,
                    )
                return None
        generation = self.session.enter(number)
        if generation.number != number or generation.domain_of(self.session.pod) is None:
            return None  # a newer one came between the two
        return generation

    def _have_all_formed(self, number: int, world: World | None) -> bool:
        """COLLECTIVE in the domain. Whether all its ranks have formed their groups. From here on
        they leave a world together."""
        mates = self._mates(number, _Watch())
        if mates is None:
            return world is not None
        try:
            return all(formed == [1] for formed in mates.gather([int(world is not None)]))
        except DomainLost:
            raise
        except PeerLost:
            return False  # one of them has left for a newer generation already

    def _mates(self, number: int, watch: _Watch) -> Mates | None:
        if self.place.domain_groups is None:
            return None
        over = _DomainWatch(self.session, watch)
        data, control = (Peers(group, over) for group in self.place.domain_groups)
        return Mates(data, control, number)

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

    def lose(self, lost: PeerLost) -> None:
        # Or it and the frames it went through would hold each other, and the group with its threads
        # and sockets, until a collection that may be far away.
        traceback.clear_frames(lost.__traceback__)
        self._drop()
        self._complain(())

    def close(self, words: str) -> None:
        self._is_closed = True
        self._drop()
        self.session.goodbye(words)
        self._thread.join(1.0)

    # From one to the next

    def _wait_for_a_place(self, is_wanted: Callable[[], bool]) -> bool:
        while True:
            view = self.session.view
            if view.status.leaving and self._is_of_no_use(view):
                return False
            if view.domain is None:
                if not is_wanted():
                    return False
                if not view.status.ready:
                    self.session.be_ready()
            try:
                self.session.wait_for("a place in the run", _is_called, PLACE_SECONDS)
            except Late:
                if self._is_hopeless(is_wanted):
                    return False
                continue
            return True

    def _is_of_no_use(self, view: View) -> bool:
        """It has no place, or has saved and waits in a run that is paused."""
        newest = self._generation
        is_paused = newest is not None and newest.paused and newest.number == view.generation.number
        return view.domain is None or is_paused

    def _is_hopeless(self, is_wanted: Callable[[], bool]) -> bool:
        """The run is to stop, and there has been nobody to stop it with for long: they are gone,
        and so is the launcher, perhaps."""
        now = time.monotonic()
        if is_wanted():
            self._wanted_at = now
        return now - self._wanted_at > HOPELESS_SECONDS

    def _wait_for_all(self, number: int, is_wanted: Callable[[], bool]) -> bool:
        """Whether all have come to the generation; not, if there is a newer one. However long: some
        finish their step first, and who never comes is thrown out by the coordinator."""
        while True:
            try:
                view = self.session.wait_for(
                    "all others",
                    lambda view: view.may_form or view.generation.number > number,
                    PLACE_SECONDS,
                )
            except Late:
                if self._is_hopeless(is_wanted):
                    return False
                continue
            return view.may_form and view.generation.number == number

    def _form(self, generation: Generation) -> World:
        domain = generation.domain_of(self.session.pod)
        assert domain is not None
        local_rank, size = domain.pods.index(self.session.pod), len(domain.pods)
        assert (local_rank, size) == (self.place.local_rank, self.place.domain_size), domain
        domains = _leader_first(generation)
        index = domains.index(domain)
        watch = _Watch()
        store = SessionStore(self.session, generation.number)
        replicas = None
        if len(domains) > 1:
            name = f"replicas-{local_rank}"
            try:
                group = form_group(store, index, len(domains), FORM_SECONDS, name=name)
            except GroupFailed as failed:
                failed.pods = tuple(domains[missing].pods[local_rank] for missing in failed.ranks)
                raise
            assert group.process_group is not None
            watch.groups.append(group)
            replicas = Peers(group.process_group, watch)
        self._generation, self._domain, self._watch = generation, domain, watch
        return World(
            rank=index * size + local_rank,
            num_workers=len(domains) * size,
            generation=generation.number,
            place=self.place,
            replicas=replicas,
            domain=self._mates(generation.number, watch),
        )

    def _complain(self, peers: tuple[str, ...]) -> None:
        status = self.session.view.status
        if status.seen == status.entered:  # else the answer is there already
            self.session.complain(peers)

    def _drop(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.drop()

    # The thread

    def _look(self) -> None:
        with suppress(SessionClosed):  # by `close`, at any moment
            while not self._is_closed:
                with suppress(Late):
                    self.session.wait_for("a change", self._is_broken, LOOK_SECONDS)
                if self.stop.leave_asked and not self.session.view.status.leaving:
                    self.session.leave()
                watch = self._watch
                if watch is not None and self._is_broken(self.session.view):
                    watch.drop()
                self._say_whether_it_waits(watch)

    def _is_broken(self, view: View) -> bool:
        watch = self._watch
        return watch is not None and not watch.is_over and view.must_drop

    def _say_whether_it_waits(self, watch: _Watch | None) -> None:
        since = None if watch is None else watch.since
        is_waiting = since is not None and time.monotonic() - since >= WAITS_SECONDS
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            if is_waiting:
                self.session.be_waiting()
            else:
                self.session.go_on()


class _Watch:
    """Over the groups of one world."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.is_over = False
        self.since: float | None = None
        """When this worker began to wait for others."""

    def begins(self) -> None:
        self.since = time.monotonic()

    def ends(self) -> None:
        self.since = None

    def drop(self) -> None:
        self.is_over = True
        for group in self.groups:
            group.drop()


class _DomainWatch:
    """On the domain's own groups: nothing more comes of them once the domain was thrown out of the
    run, which frees a rank whose mate is stopped. Not when others are lost, and not when the domain
    leaves as planned: then it finishes its step."""

    def __init__(self, session: Session, watch: _Watch) -> None:
        self._session = session
        self.begins, self.ends = watch.begins, watch.ends

    @property
    def is_over(self) -> bool:
        view = self._session.view
        return view.domain is None and view.must_drop


class _Meeting(_DomainWatch):
    """The same between two worlds, where there is no step to finish."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, _Watch())

    @property
    def is_over(self) -> bool:
        return self._session.view.domain is None


def _is_called(view: View) -> bool:
    return view.domain is not None and view.generation.number > view.status.entered


def _leader_first(generation: Generation) -> list[Domain]:
    leader = generation.domains[generation.leader]
    return [leader, *(domain for domain in generation.domains if domain is not leader)]
