"""A generation: the numbered list of who is in the run, as it is written down and sent."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct


class Domain(Struct, frozen=True):
    """Pods that hold one copy of the model, and are lost together."""

    pods: tuple[str, ...]
    """Their UIDs, in the order of their ranks."""
    since: int
    """The generation that admitted it."""
    holds: bool
    """Whether it has the run's state, so that it may heal others. If not, it is healed itself,
    whatever it believes to have."""


class Generation(Struct, frozen=True):
    number: int
    incarnation: int
    """Of the coordinator that wrote it."""
    domains: tuple[Domain, ...]
    """Longest members first."""
    leader: int
    """Index of the domain that writes the ledger and the checkpoints."""
    paused: bool
    """Fewer than the minimum: agree on the newest state, save it, and wait."""
    sound: tuple[int, ...]
    """Earlier generations that have lost nobody: their members go over at a step's end. Those of
    all others drop what they do."""
    reason: str
    """Why it was made, for people."""

    @property
    def restores(self) -> bool:
        """Nobody holds the state: it comes from the newest checkpoint."""
        return not any(domain.holds for domain in self.domains)

    def pods(self) -> Iterator[str]:
        for domain in self.domains:
            yield from domain.pods

    def breaks(self, earlier: int) -> bool:
        """Whether that generation has lost somebody, so far as this one knows: nothing more can
        come of it."""
        return earlier < self.number and earlier not in self.sound

    def domain_of(self, pod: str) -> Domain | None:
        return next((domain for domain in self.domains if pod in domain.pods), None)


def nobody(incarnation: int, number: int = 0) -> Generation:
    """Before the first."""
    why = "nobody is ready yet"
    return Generation(number, incarnation, (), 0, paused=True, sound=(), reason=why)
