"""Which of a run's two coordinator pods acts: the one that holds its Lease. At most one at a time,
whatever is late: the holder stops before anybody else may begin.

The holder counts from before it asked to renew the Lease, the other from after it has read that it
was renewed. Only durations count, so clocks need not agree; one may run 1.3 times as fast as the
other."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from math import inf
from threading import Event, Thread
from typing import Protocol, Self

from headway.clock import Clock, SystemClock
from headway.errors import HeadwayError
from headway.kube.client import KubeClient
from headway.kube.lease_object import FoundLease, KubeLease, process_name

DURATION_SECONDS = 4.0
"""For so long a Lease is not taken that was renewed. Of the 10 s within which training continues
after coordinator and worker are lost together, the rest is for workers to come back (1.5 s), for
those who do not (1.5 s), and for a new group."""
HELD_SECONDS = 3.0
"""For so long its holder acts after a renewal. The difference is for ending the coordinator's
process and for clocks of different rates."""
RENEW_SECONDS = 1.0
LOOK_SECONDS = 0.5
"""Between two looks of a pod that stands by."""
RETRY_SECONDS = 0.1
"""Until the next attempt of a holder whose renewal failed."""
CALL_SECONDS = 1.0
"""For one call to the API server, so that a second one fits into HELD_SECONDS."""
WATCH_SECONDS = 0.1
RELEASE_SECONDS = 3.0


class BootClock(SystemClock):
    """Time in which the machine was suspended counts."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseStore(Protocol):
    def read(self) -> FoundLease: ...

    def write(
        self, before: FoundLease, holder: str, term: int, launch: str = ""
    ) -> FoundLease | None: ...


class LeaseCandidate:
    """One process that may hold the Lease. Pure: times are its own clock's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._held_until = -inf
        self._seen = ""
        self._seen_at = inf

    def is_held(self, now: float) -> bool:
        return now < self._held_until

    def saw(self, lease: FoundLease, now: float) -> None:
        """`now`: after the answer has come."""
        if lease.version != self._seen:
            self._seen, self._seen_at = lease.version, now
        if lease.holder != self.name:
            self.give_up()

    def wants(self, lease: FoundLease, now: float) -> bool:
        """Whether it may write the Lease that it has seen: it is its own, nobody's, or was not
        renewed for too long."""
        if lease.holder in ("", self.name):
            return True
        return lease.version == self._seen and now >= self._seen_at + DURATION_SECONDS

    def wrote(self, sent: float) -> None:
        """`sent`: before it asked."""
        self._held_until = sent + HELD_SECONDS

    def give_up(self) -> None:
        self._held_until = -inf


class LeaseKeeper:
    """Takes the Lease when it may, and renews it until it is lost, in a thread: nothing that the
    keeper waits for delays it. Another thread calls `on_lost` at once. For one term: a process that
    has lost the Lease begins anew."""

    def __init__(
        self, lease: LeaseStore, name: str, clock: Clock, say: Callable[[str], None]
    ) -> None:
        """`name`: of this process, also of its later terms."""
        self.on_lost: Callable[[], None] = lambda: None
        self.launch = ""
        """To be written with the next renewal."""
        self.found_launch = ""
        """What the holder before had written, when the Lease was taken."""
        self.term = 0
        """0: not taken yet."""
        self._lease = lease
        self._candidate = LeaseCandidate(name)
        self._clock = clock
        self._say = say
        self._said = ""
        self._own: FoundLease | None = None
        """As this process has written it; None: to be read."""
        self._is_over = False
        self._ending = Event()
        self._threads = [
            Thread(target=one, name=name, daemon=True)
            for name, one in (("lease", self._keep), ("lease watch", self._watch))
        ]

    @classmethod
    def of_pod(cls, name: str, process: str, say: Callable[[str], None]) -> Self:
        """In a pod. `process`: of whatever else has run in it."""
        clock = BootClock()
        kube = KubeClient.in_cluster(CALL_SECONDS)
        lease = KubeLease(kube, name, clock, DURATION_SECONDS)
        return cls(lease, process_name(socket.gethostname(), process), clock, say)

    def is_held(self) -> bool:
        """Once it was not held in time, it is over, even if it is renewed a moment later: the
        coordinator has been ended."""
        if self.term and not self._candidate.is_held(self._clock.monotonic()):
            self._is_over = True
        return bool(self.term) and not self._is_over

    @property
    def is_over(self) -> bool:
        return bool(self.term) and not self.is_held()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the Lease up, so that the other need not wait for its end."""
        self._ending.set()
        for thread in self._threads:
            thread.join(RELEASE_SECONDS)
        self.release()

    def release(self) -> None:
        """What this process did as its holder has ended by now."""
        was_held, self._is_over = self.is_held(), True
        if was_held and self._own is not None:
            try:
                self._lease.write(self._own, "", self.term, self.launch)
            except HeadwayError as error:
                self._say(f"the Lease of the run ends by itself in a moment: {error}")

    def turn(self) -> float:
        """Looks at it, takes it or renews it, once. Returns the time until the next."""
        try:
            self._turn()
            self._said = ""
        # A thread that ended would leave nobody to take over, and no one would see it.
        except Exception as error:  # noqa: BLE001
            self._own = None
            if str(error) != self._said:
                self._said = str(error)
                self._say(f"the Lease of the run cannot be read or renewed: {error}")
        if self._own is not None:
            return RENEW_SECONDS
        return RETRY_SECONDS if self.is_held() else LOOK_SECONDS

    def _turn(self) -> None:
        if self.is_over:
            return
        candidate = self._candidate
        lease = self._own or self._lease.read()
        candidate.saw(lease, self._clock.monotonic())
        sent = self._clock.monotonic()
        if self.is_over or not candidate.wants(lease, sent):
            return
        term = self.term or lease.term + 1
        launch = self.launch or lease.launch
        self._own = self._lease.write(lease, candidate.name, term, launch)
        if self._own is None or self.is_over:
            return  # None: another has changed it, and it is read again
        candidate.wrote(sent)
        if not self.term:
            self.found_launch, self.term = lease.launch, term

    def _keep(self) -> None:
        while not self._ending.wait(self.turn()):
            pass

    def _watch(self) -> None:
        while not self._ending.wait(WATCH_SECONDS):
            if self.is_over:
                self.on_lost()
                return
