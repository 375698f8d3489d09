"""What a proof found: a table in the terminal, and prove.json."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from headway.errors import BadInput, NotFound
from headway.spec.section import Section

Outcome = Literal["passed", "failed", "not run"]
NAME_COLUMNS = 60


class CheckResult(Section):
    name: str
    """What was checked."""
    outcome: Outcome
    figure: str
    """What was seen or, if it was not run or failed, why."""
    seconds: float = 0.0
    """How long it took; 0 for a row that came with the one above it."""
    numbers: dict[str, float] = {}
    """Numbers in the figure, by name."""

    @property
    def row(self) -> str:
        took = f" ({self.seconds:.0f} s)" if self.seconds else ""
        return f"{self.outcome:<9}{self.name:<{NAME_COLUMNS}}  {self.figure}{took}"


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
    """Number of devices used; without GPUs, the most workers."""
    is_rehearsal: bool
    """Whether it ran on the CPU."""
    tolerance: float
    """Largest relative difference of losses that counts as equal; of gradient norms, ten times
    as much."""
    machine: dict[str, str]
    """Versions and hardware, by name."""
    checks: list[CheckResult]
    """Every check, in order."""

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
