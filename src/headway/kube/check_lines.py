"""What a check of a target found: one line for each thing that a run needs there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["passed", "warned", "failed", "not checked"]

LOGIN, YOUR_RIGHTS, COORDINATOR_RIGHTS = "login", "your rights", "coordinator's rights"
QUOTA, POLICY, IMAGE, MACHINES, DEVICES = (
    "quota",
    "policy and queue",
    "image",
    "machines",
    "devices",
)
FABRIC, REACH, NAMES = "fabric", "pods from here", "name resolution"
WORKERS, COORDINATOR = "worker to worker", "worker to coordinator"
STORAGE, CONDITIONAL, REGION, CLOCKS = "storage", "conditional writes", "region", "clocks"
NAMES_IN_ORDER = (
    *(LOGIN, YOUR_RIGHTS, COORDINATOR_RIGHTS, QUOTA, POLICY, IMAGE, MACHINES, DEVICES, FABRIC),
    *(REACH, NAMES, WORKERS, COORDINATOR, STORAGE, CONDITIONAL, REGION, CLOCKS),
)
"""Of all lines, as they are shown: what others depend on first."""


@dataclass(frozen=True)
class CheckLine:
    name: str
    """One of the names above."""
    outcome: Outcome
    evidence: str
    """What was seen, with figures; of a line that was not checked, why."""
    fix: str | None = None
    """What to do, as a command where there is one. Commands of several lines are kept as they
    are."""


def passed(name: str, evidence: str) -> CheckLine:
    return CheckLine(name, "passed", evidence)


def warned(name: str, evidence: str, fix: str | None) -> CheckLine:
    return CheckLine(name, "warned", evidence, fix)


def failed(name: str, evidence: str, fix: str | None) -> CheckLine:
    return CheckLine(name, "failed", evidence, fix)


def not_checked(name: str, why: str, fix: str | None = None) -> CheckLine:
    return CheckLine(name, "not checked", why, fix)


def has_failed(lines: Sequence[CheckLine]) -> bool:
    return any(line.outcome == "failed" for line in lines)


def lines_json(target: str, seconds: float, lines: Sequence[CheckLine]) -> dict[str, Any]:
    return {
        "target": target,
        "passed": not has_failed(lines),
        "seconds": round(seconds, 1),
        "lines": [asdict(line) for line in lines],
    }


def verdict(lines: Sequence[CheckLine]) -> str:
    """`13 passed, 1 warned, 2 not checked`."""
    outcomes: tuple[Outcome, ...] = ("passed", "warned", "failed", "not checked")
    counts = {one: sum(line.outcome == one for line in lines) for one in outcomes}
    return ", ".join(f"{count} {one}" for one, count in counts.items() if count)
