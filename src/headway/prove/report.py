"""What a proof found: written as prove.json, and shown by prove.html."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from headway.errors import BadInput, NotFound
from headway.memory_limits import byte_size
from headway.spec.section import Section

Outcome = Literal["passed", "failed", "not run"]
Baseline = Literal["bare", "ddp", "fsdp2"]
PlannedFigure = Literal["step_seconds", "tokens_per_second", "memory_bytes"]
PLANNED_FIGURES: Mapping[PlannedFigure, tuple[str, Callable[[float], str]]] = {
    "step_seconds": ("seconds a step", "{:.3f}".format),
    "tokens_per_second": ("tokens/s", "{:,.0f}".format),
    "memory_bytes": ("memory of a device", byte_size),
}
"""How each figure is called and written."""


class CheckResult(Section):
    name: str
    """What was checked."""
    outcome: Outcome
    figure: str
    """What was seen or, if it was not run or failed, why."""
    seconds: float = 0.0
    """How long it took."""

    @property
    def line(self) -> str:
        took = f" ({self.seconds:.0f} s)" if self.outcome != "not run" else ""
        return f"{self.outcome}: {self.name}: {self.figure}{took}"


class SpeedResult(Section):
    """Headway and another loop of the same model, in turns in the same processes."""

    preset: str
    """Name of the preset, and whether it was scaled down."""
    against: Baseline
    """The other loop."""
    workers: int
    """Number of workers."""
    ratio: float
    """Speed of Headway over that of the other: the median of all rounds."""
    quartiles: tuple[float, float]
    """Lower and upper quartile of the ratio."""
    rounds: int
    """Number of rounds."""
    tokens_per_second: float
    """Speed of Headway, all workers together: the median."""
    other_tokens_per_second: float
    """Speed of the other."""
    mfu: float | None = None
    """Model FLOPs utilisation of Headway; None where the device has no known peak."""
    other_mfu: float | None = None
    """Model FLOPs utilisation of the other."""

    @property
    def line(self) -> str:
        speed, other = self.tokens_per_second, self.other_tokens_per_second
        return (
            f"{self.preset}: {speed:,.0f} tokens/s, {self.against} {other:,.0f}, "
            f"ratio {self.ratio:.2f}"
        )


class PlannedResult(Section):
    """One figure of `headway plan`, and what a run of the same devices measured."""

    preset: str
    """Name of the preset, and whether it was scaled down."""
    workers: int
    """Number of workers."""
    precision: str
    """Precision of the run."""
    figure: PlannedFigure
    """Name of the figure, as in `headway plan --json`."""
    planned: float | None
    """Planned value; None where no plan knows the device."""
    low: float | None
    """Lower end of the planned range."""
    high: float | None
    """Upper end of the planned range."""
    measured: float | None
    """Measured value; None for the memory of a CPU."""

    @property
    def line(self) -> str:
        name, unit = PLANNED_FIGURES[self.figure]
        measured = "not measured" if self.measured is None else unit(self.measured)
        if self.planned is None or self.low is None or self.high is None:
            return f"{name} {measured}, not planned"
        return (
            f"{name} {measured}, planned {unit(self.planned)} "
            f"({unit(self.low)} to {unit(self.high)})"
        )


class RateResult(Section):
    """Speed of Headway alone, on the nodes of a target."""

    preset: str
    """Name of the preset, and whether it was scaled down."""
    workers: int
    """Number of workers, on all nodes together."""
    tokens_per_second: float
    """Speed of all workers together: the median of the second half of the steps."""
    mfu: float | None = None
    """Model FLOPs utilisation; None where the device has no known peak."""


class ProofReport(Section):
    version: Literal[1] = 1
    """Version of this format."""
    headway: str
    """Version of Headway."""
    started: str
    """When the proof was started."""
    seconds: float
    """How long it took."""
    device: str
    """Name of the devices; the processor's without GPUs."""
    num_devices: int
    """Number of devices used, on all nodes together; without GPUs, the most workers."""
    nodes: int | None = None
    """Number of nodes of a target; None: on one machine, without a target."""
    is_rehearsal: bool
    """Whether it ran on the CPU."""
    tolerance: float
    """Largest relative difference of losses that counts as equal; of gradient norms, ten times
    as much."""
    machine: dict[str, str]
    """Versions and hardware, by name."""
    checks: list[CheckResult]
    """Every check, in order."""
    speed: list[SpeedResult] = []
    """Every comparison of speed."""
    planned: list[PlannedResult] = []
    """Every figure of a plan, and what came of it."""
    rates: list[RateResult] = []
    """Every speed on a target."""

    @property
    def passed(self) -> bool:
        return all(check.outcome != "failed" for check in self.checks)

    @property
    def verdict(self) -> str:
        """`7 passed, 1 failed, 2 not run`."""
        outcomes = [check.outcome for check in self.checks]
        kinds: list[Outcome] = ["passed", "failed", "not run"]
        return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in kinds if kind in outcomes)


def read_report(path: Path) -> ProofReport:
    try:
        return ProofReport.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"there is no {path}", "headway prove writes it") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BadInput(f"{path} is not a proof's record: {where}: {first['msg']}") from None
