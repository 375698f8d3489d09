"""What `headway plan` found: the answers, figures and changes of each fleet that a run may get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headway.cli.model_shape import UnknownShape
    from headway.cli.plan.asked import Asked
    from headway.cli.plan.figure_text import PlanSection
    from headway.plan.figure import Figure
    from headway.plan.fleet import Fleet
    from headway.plan.host_memory import HostMemory
    from headway.plan.search import Way
    from headway.plan.workload import Workload

Verdict = Literal["yes", "maybe", "no", "unknown"]
"""Of a question whose answer should be yes."""


@dataclass(frozen=True)
class PlanAnswer:
    """To one of the questions that a plan is asked for."""

    verdict: Verdict
    words: str


@dataclass(frozen=True)
class PlanChange:
    """Something that helps."""

    options: str
    """What to add to the command."""
    effect: str

    @property
    def words(self) -> str:
        return f"{self.options}: {self.effect}"


@dataclass(frozen=True)
class FleetPlan:
    """The plan on one fleet."""

    fleet: Fleet
    fits: PlanAnswer
    budget: PlanAnswer | None = None
    """None: it has none."""
    use: PlanAnswer | None = None
    """Whether all devices have work. None: they cost nothing by the hour, or it is not known."""
    long_words: str = ""
    """What to say of a run of more than a year."""
    way: Way | None = None
    """How it is computed there; None: its shape is not known, or it cannot be."""
    peak: Figure | None = None
    """Most bytes that a device holds."""
    room: Figure | None = None
    """Bytes that it has for them."""
    host: HostMemory | None = None
    """Of its node's host."""
    step: Figure | None = None
    """Seconds of a step."""
    seconds: Figure | None = None
    """From the launch to the end."""
    usd: Figure | None = None
    """In all."""
    sections: tuple[PlanSection, ...] = ()
    target_change: str = ""
    """What to change in the target so that it fits; empty: nothing."""
    changes: tuple[PlanChange, ...] = ()
    """Nearest first."""
    notes: tuple[str, ...] = ()
    """What to know, and what to change."""

    @property
    def change_words(self) -> tuple[str, ...]:
        """What to change, nearest first."""
        of_target = (self.target_change,) if self.target_change else ()
        return (*of_target, *(change.words for change in self.changes))

    @property
    def is_refused(self) -> bool:
        answers = (self.fits, self.use, self.budget)
        return any(answer is not None and answer.verdict == "no" for answer in answers)

    @property
    def device_hours(self) -> float | None:
        if self.seconds is None:
            return None
        return self.seconds.value / 3600 * self.fleet.num_devices


@dataclass(frozen=True)
class RunPlan:
    asked: Asked
    workload: Workload | UnknownShape
    model: PlanSection
    """The same on every fleet."""
    fleets: tuple[FleetPlan, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return self.asked.place.notes
