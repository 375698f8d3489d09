"""Steps that must not be learned from."""

from __future__ import annotations

import math

import pytest

from headway.errors import RunFailed
from headway.spec.run import Guard
from headway.train.guard import HISTORY_STEPS, LossGuard
from headway.train.precision import GROWTH_STEPS, INITIAL_SCALE, LossScale


def settled(guard: LossGuard) -> LossGuard:
    for step in range(HISTORY_STEPS):
        guard.record(2.0 + 0.01 * (step % 2), None)
    return guard


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.inf)])
def test_what_is_not_finite_is_skipped_from_the_first_step(loss: float, norm: float) -> None:
    assert LossGuard(Guard()).verdict(loss, norm) is not None


def test_a_spike_is_skipped_once_there_is_a_history() -> None:
    assert LossGuard(Guard()).verdict(100.0, 1.0) is None
    guard = settled(LossGuard(Guard()))
    assert guard.verdict(2.01, 1.0) is None
    assert "spiked to 9.0000" in (guard.verdict(9.0, 1.0) or "")
    assert settled(LossGuard(Guard(loss_spike="off"))).verdict(9.0, 1.0) is None


def test_a_skipped_loss_does_not_move_the_measure() -> None:
    guard = settled(LossGuard(Guard(stop_after=50)))
    for _ in range(20):
        guard.record(9.0, "it spiked")
    assert guard.verdict(9.0, 1.0) is not None


def test_too_many_in_a_row_fail_the_run_with_the_cause() -> None:
    guard = LossGuard(Guard(stop_after=3))
    for reason in ("the loss is nan", "the loss is nan", None, "the loss is nan", "it spiked"):
        guard.record(2.0, reason)
        guard.require_progress(5, reason)
    guard.record(2.0, "the loss is nan")
    with pytest.raises(RunFailed, match=r"3 steps in a row .* at step 6 the loss is nan"):
        guard.require_progress(6, "the loss is nan")


def test_a_restored_guard_decides_the_same() -> None:
    guard = settled(LossGuard(Guard()))
    other = LossGuard(Guard())
    other.restore(guard.state())
    assert other.verdict(2.3, 1.0) == guard.verdict(2.3, 1.0)
    assert other.state() == guard.state()


def test_the_scale_halves_on_overflow_and_grows_after_many_good_steps() -> None:
    scale = LossScale("fp16")
    scale.update(finite=False)
    assert scale.scale == INITIAL_SCALE / 2
    for _ in range(GROWTH_STEPS):
        scale.update(finite=True)
    assert scale.scale == INITIAL_SCALE


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_other_precisions_are_not_scaled(precision: str) -> None:
    scale = LossScale(precision)  # type: ignore[arg-type]
    scale.update(finite=False)
    assert scale.factor(4096) == 1.0
