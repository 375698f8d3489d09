"""Whether what a run has recorded is what it should be: pure functions of its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
ALLOWANCE = {"loss": 1.0, "grad_norm": 10.0}
"""Multiples of the tolerance. A gradient is the more sensitive function of the weights."""


class ProofFailed(Exception):
    """A check did not find what it should have found."""


def require_learning(steps: Sequence[Record], num_steps: int) -> str:
    """Losses that agree would also agree if no run had learned anything."""
    _require_all_steps(steps, num_steps)
    first, last = steps[0]["loss"], steps[-1]["loss"]
    figure = f"loss {first:.3f} at step 1, {last:.3f} at step {num_steps}"
    if last > 0.98 * first:
        raise ProofFailed(f"the loss does not fall: {figure}")
    return figure


def require_equal(steps: Sequence[Record], reference: Sequence[Record], tolerance: float) -> str:
    """Losses and gradient norms of every step against those of one worker."""
    _require_all_steps(steps, len(reference))
    figures = []
    for name, allowance in ALLOWANCE.items():
        largest, at_step = max(
            (_difference(step[name], expected[name]), expected["step"])
            for step, expected in zip(steps, reference, strict=True)
        )
        if not largest <= allowance * tolerance:
            raise ProofFailed(
                f"{name} of step {at_step} differs by {largest:.1e} from one worker's; "
                f"allowed: {allowance * tolerance:.0e}"
            )
        figures.append(f"{name} within {largest:.1e}")
    return f"{', '.join(figures)} of one worker's in {len(reference)} steps"


def require_resumed(history: Iterable[Record], killed_at: int) -> str:
    """By itself, from a checkpoint. `history`: the events of a run with one killed worker."""
    events = list(history)
    if not any(event["event"] == "lost" for event in events):
        raise ProofFailed("a worker was killed, but the run has no record of a lost worker")
    starts = [event for event in events if event["event"] == "started"]
    if len(starts) < 2 or starts[-1]["resumed_from"] is None:
        raise ProofFailed("a worker was killed, but the run did not resume from a checkpoint")
    return f"killed after step {killed_at}, resumed from step {starts[-1]['resumed_from']}"


def require_same_loss(found: float, expected: float, tolerance: float) -> str:
    difference = _difference(found, expected)
    figure = f"held-out loss {found:.6f} in transformers, {expected:.6f} in the run"
    if not difference <= tolerance:
        raise ProofFailed(f"{figure}: they differ by {difference:.1e}; allowed: {tolerance:.0e}")
    return figure


def _require_all_steps(steps: Sequence[Record], num_steps: int) -> None:
    found = [step["step"] for step in steps]
    if found != list(range(1, num_steps + 1)):
        raise ProofFailed(f"{num_steps} steps expected, but {len(found)} recorded")


def _difference(found: float | None, expected: float | None) -> float:
    """Relative; infinite where one of them is not finite, which is recorded as null."""
    if found is None or expected is None:
        return float("inf")
    return abs(found - expected) / max(abs(expected), 1e-12)
