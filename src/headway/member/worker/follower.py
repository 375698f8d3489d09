"""The worker's side of the membership: what it has heard, and what follows for training. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from headway.member.protocol.generation import Domain, Generation, nobody
from headway.member.protocol.status import WorkerStatus


class Follower:
    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 0
        """Highest incarnation of a coordinator it has met."""
        self.newest: Generation = nobody(0)
        self.status = WorkerStatus()
        """Status that it reports to the coordinator."""

    def meet(self, incarnation: int) -> bool:
        """Whether to follow this coordinator: not if another has replaced it."""
        self.incarnation = max(self.incarnation, incarnation)
        return incarnation == self.incarnation

    def hear(self, generation: Generation, went: bool = False) -> None:
        if generation.number > self.newest.number:
            was_in = self.domain is not None
            self.newest = generation
            self.status = replace(self.status, seen=generation.number)
            if was_in and self.domain is None:
                # It is out. Training itself has to report that it is ready again.
                self.status = replace(self.status, ready=False)
        if went:
            self.hear_go(generation.number)

    def hear_go(self, number: int) -> None:
        """All members have entered the generation: its group can be formed."""
        if number > self.status.went:
            self.status = replace(self.status, went=number)

    # For training

    @property
    def domain(self) -> Domain | None:
        """Its own domain in the newest generation; None: it is not a member."""
        return self.newest.domain_of(self.name)

    @property
    def may_form(self) -> bool:
        """Whether all others of the generation it entered have done so too."""
        return self.status.went >= self.status.entered > 0

    def must_drop(self) -> bool:
        """Whether the step cannot be finished: its generation has lost a member, or it hangs and
        there is a newer one."""
        working = self.status.entered
        hangs = self.status.trouble == working
        return self.newest.breaks(working) or (hangs and working < self.newest.number)

    def enter(self) -> Generation:
        """Leaves all earlier generations, and waits for the others of the newest."""
        self.status = replace(self.status, entered=self.newest.number, trouble=0, peers=(), waits=0)
        return self.newest

    def healed(self) -> None:
        self.status = replace(self.status, healed=self.status.entered)

    def complain(self, peers: tuple[str, ...] = ()) -> None:
        self.status = replace(self.status, trouble=self.status.entered, peers=peers)

    def start_waiting(self) -> None:
        """A collective takes long. Nothing is wrong yet, unless a peer is silent."""
        self.status = replace(self.status, waits=self.status.entered)

    def stop_waiting(self) -> None:
        """The collective has ended."""
        self.status = replace(self.status, waits=0)

    def set_step_seconds(self, seconds: int) -> None:
        """Median time of recent steps."""
        self.status = replace(self.status, step_seconds=seconds)

    def be_ready(self) -> None:
        self.status = replace(self.status, ready=True)

    def leave(self) -> None:
        self.status = replace(self.status, leaving=True)
