"""What a check of a target found: one line for each thing that a run needs there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["passed", "warned", "failed", "not checked"]

LOGIN, YOUR_RIGHTS, QUOTA, POLICY = "login", "your rights", "quota", "policy and queue"
NAMED = "what pods name"
COORDINATOR_RIGHTS, STORAGE, CONDITIONAL = "coordinator's rights", "storage", "conditional writes"
REGION, FABRIC, RUN = "region", "fabric", "run of two nodes"
ASKED = (LOGIN, YOUR_RIGHTS, QUOTA, POLICY, NAMED)
"""Lines that the API server alone answers."""
NAMES_IN_ORDER = (*ASKED, COORDINATOR_RIGHTS, STORAGE, CONDITIONAL, REGION, FABRIC, RUN)
"""Names of all lines, as they are shown: what others depend on first."""


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


def unchecked(names: Sequence[str], why: str) -> list[CheckLine]:
    return [not_checked(name, why) for name in names]


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
