"""Steps that must not be learned from."""

from __future__ import annotations

import json
import math
import random

import pytest

from headway.errors import RunFailed
from headway.spec.run_file import GuardConfig
from headway.train.loss_guard import HISTORY_STEPS, LossGuard
from headway.train.precision import GROWTH_STEPS, INITIAL_SCALE, LossScale


def settled(guard: LossGuard) -> LossGuard:
    for step in range(HISTORY_STEPS):
        guard.record(2.0 + 0.01 * (step % 2), None)
    return guard


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.inf)])
def test_what_is_not_finite_is_skipped_from_the_first_step(loss: float, norm: float) -> None:
    assert LossGuard(GuardConfig()).verdict(loss, norm) is not None


def test_a_spike_is_skipped_once_there_is_a_history() -> None:
    assert LossGuard(GuardConfig()).verdict(100.0, 1.0) is None
    guard = settled(LossGuard(GuardConfig()))
    assert guard.verdict(2.01, 1.0) is None
    assert "spiked to 9.0000" in (guard.verdict(9.0, 1.0) or "")
    assert settled(LossGuard(GuardConfig(loss_spike="off"))).verdict(9.0, 1.0) is None


def losses(seed: int, *levels: float, noise: float = 0.1) -> list[float]:
    """So many losses, each of its level in deviations above 2, with noise of one deviation."""
    drawn = random.Random(seed)
    return [2.0 + noise * (level + drawn.gauss(0, 1)) for level in levels]


def skipped_of(guard: LossGuard, values: list[float]) -> list[bool]:
    """Which of these losses are skipped, as a run would; RunFailed as there."""
    skipped = []
    for step, loss in enumerate(values):
        reason = guard.verdict(loss, 1.0)
        guard.record(loss, reason)
        guard.require_progress(step, reason)
        skipped.append(reason is not None)
    return skipped


CALM = [0.0] * (HISTORY_STEPS + 20)


@pytest.mark.parametrize("shift", [8.0, 30.0])
def test_a_lasting_shift_costs_a_few_steps_and_the_run_continues(shift: float) -> None:
    for seed in range(60):
        skipped = skipped_of(LossGuard(GuardConfig()), losses(seed, *CALM, *[shift] * 60))
        assert not any(skipped[: len(CALM)])
        assert 1 <= sum(skipped) <= 9, f"seed {seed}"
        assert not any(skipped[len(CALM) + 20 :])


def test_the_noise_may_be_larger_after_the_shift() -> None:
    for seed in range(40):
        after = [2.0 + 0.1 * random.Random(seed + turn).gauss(15, 3) for turn in range(60)]
        skipped = skipped_of(LossGuard(GuardConfig()), losses(seed, *CALM) + after)
        assert sum(skipped) <= 20, f"seed {seed}"


def test_spikes_of_a_few_steps_are_all_skipped() -> None:
    for seed in range(20):
        spikes = [len(CALM) + 40 * count for count in range(1, 6)]
        levels = [0.0] * (spikes[-1] + 30)
        for count, first in enumerate(spikes, start=1):
            levels[first : first + count] = [12.0 + 10 * seed] * count
        expected = [level > 0 for level in levels]
        assert skipped_of(LossGuard(GuardConfig()), losses(seed, *levels)) == expected


def test_spikes_close_to_each_other_are_no_plateau() -> None:
    for seed in range(20):
        levels = CALM + ([15.0] * 5 + [0.0] * 3) * 6
        expected = [level > 0 for level in levels]
        assert skipped_of(LossGuard(GuardConfig()), losses(seed, *levels)) == expected


@pytest.mark.parametrize("rise", [2.0, 5.0, 50.0])
def test_a_loss_that_keeps_rising_fails_the_run(rise: float) -> None:
    for seed in range(40):
        rising = [rise * turn for turn in range(60)]
        with pytest.raises(RunFailed, match=r"10 steps in a row .* the loss spiked"):
            skipped_of(LossGuard(GuardConfig()), losses(seed, *CALM, *rising))


def test_a_staircase_of_plateaus_fails_the_run() -> None:
    for seed in range(20):
        stairs = [20.0 * (1 + turn // 30) for turn in range(90)]
        with pytest.raises(RunFailed):
            skipped_of(LossGuard(GuardConfig()), losses(seed, *CALM, *stairs))


def test_after_some_time_at_a_level_there_may_be_another() -> None:
    for seed in range(20):
        levels = CALM + [10.0] * 170 + [20.0] * 170
        assert sum(skipped_of(LossGuard(GuardConfig()), losses(seed, *levels))) <= 18


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (4.0, math.inf)])
def test_what_is_not_finite_never_becomes_a_plateau(loss: float, norm: float) -> None:
    guard = LossGuard(GuardConfig())
    skipped_of(guard, losses(1, *CALM))
    for turn in range(10):
        reason = guard.verdict(loss, norm)
        assert reason is not None
        guard.record(loss, reason)
        if turn < 9:
            guard.require_progress(turn, reason)
    with pytest.raises(RunFailed, match="10 steps in a row"):
        guard.require_progress(9, reason)


@pytest.mark.parametrize("saved_after", [len(CALM) - 1, len(CALM) + 4, len(CALM) + 40])
def test_a_resumed_guard_decides_as_one_that_was_never_stopped(saved_after: int) -> None:
    values = losses(2, *CALM, *[9.0] * 60, *[18.0] * 9)
    whole, before, after = (
        LossGuard(GuardConfig()),
        LossGuard(GuardConfig()),
        LossGuard(GuardConfig()),
    )
    expected = skipped_of(whole, values)
    skipped_of(before, values[:saved_after])
    after.restore(json.loads(json.dumps(before.state())))
    assert skipped_of(after, values[saved_after:]) == expected[saved_after:]
    assert after.state() == whole.state()


def test_too_many_in_a_row_fail_the_run_with_the_cause() -> None:
    guard = LossGuard(GuardConfig(stop_after=3))
    for reason in ("the loss is nan", "the loss is nan", None, "the loss is nan", "it spiked"):
        guard.record(2.0, reason)
        guard.require_progress(5, reason)
    guard.record(2.0, "the loss is nan")
    with pytest.raises(RunFailed, match=r"3 steps in a row .* at step 6 the loss is nan"):
        guard.require_progress(6, "the loss is nan")


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
