"""A pod's side of the membership: what it has heard, and what follows for its training. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from headway.member.events import Status
from headway.member.generation import Domain, Generation, nobody


class Follower:
    def __init__(self, pod: str) -> None:
        self.pod = pod
        self.incarnation = 0
        """The highest of all coordinators it has met."""
        self.newest: Generation = nobody(0)
        self.status = Status()
        """What it tells the coordinator."""

    def meet(self, incarnation: int) -> bool:
        """Whether to follow this coordinator: not one that another has replaced."""
        self.incarnation = max(self.incarnation, incarnation)
        return incarnation == self.incarnation

    def hear(self, generation: Generation, went: bool = False) -> None:
        if generation.number > self.newest.number:
            was_in = self.domain is not None
            self.newest = generation
            self.status = replace(self.status, seen=generation.number)
            if was_in and self.domain is None:
                # Out. Training itself has to say that it could begin again.
                self.status = replace(self.status, ready=False)
        if went:
            self.hear_go(generation.number)

    def hear_go(self, number: int) -> None:
        """All have entered the generation: its group can be formed."""
        if number > self.status.went:
            self.status = replace(self.status, went=number)

    # For training

    @property
    def domain(self) -> Domain | None:
        """Its own in the newest generation; None: it is not in it."""
        return self.newest.domain_of(self.pod)

    @property
    def may_form(self) -> bool:
        """Whether all others of the generation it entered have done so too."""
        return self.status.went >= self.status.entered > 0

    def must_drop(self) -> bool:
        """Whether the step cannot be finished: its generation is broken, or it hangs and there is a
        newer one."""
        working = self.status.entered
        hangs = self.status.trouble == working
        return self.newest.breaks(working) or (hangs and working < self.newest.number)

    def goes_over(self, lowest_seen: int, highest_seen: int) -> bool:
        """At the end of a step, from what its reduction says of all members: whether all know the
        same newer generation. They all find the same, so that they all go over together."""
        return lowest_seen == highest_seen > self.status.entered

    def enter(self) -> Generation:
        """Lets go of all before, and waits for the others of the newest generation."""
        self.status = replace(self.status, entered=self.newest.number, trouble=0, peers=(), waits=0)
        return self.newest

    def healed(self) -> None:
        self.status = replace(self.status, healed=self.status.entered)

    def complain(self, peers: tuple[str, ...] = ()) -> None:
        self.status = replace(self.status, trouble=self.status.entered, peers=peers)

    def withdraw(self) -> None:
        """What hung goes on after all."""
        self.status = replace(self.status, trouble=0, peers=())

    def be_waiting(self) -> None:
        """A collective takes long. Nothing is wrong yet, unless somebody is silent."""
        self.status = replace(self.status, waits=self.status.entered)

    def go_on(self) -> None:
        """It waits no longer."""
        self.status = replace(self.status, waits=0)

    def take_steps_of(self, seconds: int) -> None:
        """So long, each, by the median of recent ones."""
        self.status = replace(self.status, step_seconds=seconds)

    def be_ready(self) -> None:
        self.status = replace(self.status, ready=True)

    def leave(self) -> None:
        self.status = replace(self.status, leaving=True)
