"""A generation: the numbered list of the run's members, as it is recorded and sent."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field


class Domain(Struct, frozen=True):
    """A failure domain: workers that hold one copy of the model, and are lost together."""

    workers: tuple[str, ...] = field(name="pods")
    """Names of the workers, in the order of their ranks."""
    since: int
    """Generation that admitted it."""
    holds: bool
    """Whether it has the run's state, as far as the coordinator knows."""

    def has_state(self, healed: int) -> bool:
        """Whether a worker of it has the run's state, given the generation in which it was last
        healed: it has followed every step since, if its domain was not removed meanwhile.

        The worker decides it, not the coordinator, which may not have heard of it yet."""
        return healed >= self.since


class Generation(Struct, frozen=True):
    number: int
    incarnation: int
    """Incarnation of the coordinator that wrote it."""
    domains: tuple[Domain, ...]
    """Failure domains, the longest members first."""
    leader: int
    """Index of the domain that writes the ledger and the checkpoints."""
    paused: bool
    """Whether there are fewer domains than the minimum: agree on the newest state, save, and
    wait."""
    sound: tuple[int, ...]
    """Earlier generations that have lost nobody: their members finish their step first. Those of
    all others drop it."""
    reason: str
    """Why it was made, for people to read."""
    awaits: tuple[int, int] | None = None
    """Domains that the next one waits for, if this one only ends another: those whose nodes were
    not lost, and with those that were. For the next coordinator: workers are not told."""

    def workers(self) -> Iterator[str]:
        for domain in self.domains:
            yield from domain.workers

    def breaks(self, earlier: int) -> bool:
        """Whether an earlier generation has lost a member, as far as this one knows: its step
        cannot be finished."""
        return earlier < self.number and earlier not in self.sound

    def domain_of(self, worker: str) -> Domain | None:
        return next((domain for domain in self.domains if worker in domain.workers), None)


def nobody(incarnation: int, number: int = 0) -> Generation:
    """The generation before the first."""
    why = "no worker is ready yet"
    return Generation(number, incarnation, (), 0, paused=True, sound=(), reason=why)
