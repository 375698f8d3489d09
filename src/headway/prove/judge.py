"""Whether what a run has recorded is what it should be: pure functions of its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from headway.clock import seconds_of

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


def require_equal(
    steps: Sequence[Record], reference: Sequence[Record], tolerance: float, whose: str
) -> str:
    """Losses and gradient norms of every step against those of `whose` run."""
    _require_all_steps(steps, len(reference))
    figures = []
    for name, allowance in ALLOWANCE.items():
        largest, at_step = max(
            (_difference(step[name], expected[name]), expected["step"])
            for step, expected in zip(steps, reference, strict=True)
        )
        if not largest <= allowance * tolerance:
            raise ProofFailed(
                f"{name} of step {at_step} differs by {largest:.1e} from {whose}'s; "
                f"allowed: {allowance * tolerance:.0e}"
            )
        figures.append(f"{name} within {largest:.1e}")
    return f"{', '.join(figures)} of {whose}'s in {len(reference)} steps"


def require_lost(history: Iterable[Record]) -> None:
    if not any(event["event"] == "lost" for event in history):
        raise ProofFailed("a worker was killed, but the run has no record of a lost worker")


def require_resumed(history: Iterable[Record], what_happened: str) -> str:
    """By itself, from a checkpoint. `history`: the events of a run to which that happened."""
    starts = [event for event in history if event["event"] == "started"]
    if len(starts) < 2 or starts[-1]["resumed_from"] is None:
        raise ProofFailed(f"{what_happened}, but the run did not resume from a checkpoint")
    return f"{what_happened}, resumed from step {starts[-1]['resumed_from']}"


def pause_at_change(lines: Iterable[Record]) -> float:
    """The longest time between two steps of different generations, by the clocks of the nodes.
    `lines`: all that was recorded, also of steps that were lost with their workers."""
    steps = [line for line in lines if "loss" in line]
    pauses = [
        seconds_of(after["time"]) - seconds_of(before["time"])
        for before, after in pairwise(steps)
        if before["generation"] < after["generation"]
    ]
    if not pauses:
        raise ProofFailed("a worker was lost, but no step was recorded after it")
    return max(pauses)


def require_whole_ledger(verdict: Record, num_steps: int) -> str:
    """`verdict`: of `headway ledger verify`, which fails where samples are missing or repeated."""
    if verdict["steps"] != num_steps:
        raise ProofFailed(f"the ledger has {verdict['steps']} steps")
    return f"ledger exact, {verdict['samples']} samples"


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
