"""Learning rates as a user would plot them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.spec.quantities import Warmup
from headway.spec.run_file import ScheduleConfig
from headway.train.lr_schedule import lr_ratio

KINDS = ["cosine", "linear", "constant", "wsd"]


def ratios(schedule: ScheduleConfig, total: int) -> list[float]:
    return [lr_ratio(schedule, step, total) for step in range(total)]


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_rises_to_the_peak_and_does_not_begin_at_zero(kind: str) -> None:
    schedule = ScheduleConfig(type=kind, warmup=Warmup(10, "steps"))
    assert ratios(schedule, 100)[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd"])
def test_the_last_step_is_at_the_floor(kind: str) -> None:
    schedule = ScheduleConfig(type=kind, warmup=Warmup(0.05, "share"), min_lr_ratio=0.1)
    assert ratios(schedule, 200)[-1] == pytest.approx(0.1)


def test_cosine_is_half_way_down_in_the_middle() -> None:
    schedule = ScheduleConfig(type="cosine", warmup=Warmup(0, "steps"), min_lr_ratio=0.0)
    assert ratios(schedule, 100)[49] == pytest.approx(0.5)


def test_constant_stays() -> None:
    schedule = ScheduleConfig(type="constant", warmup=Warmup(0, "steps"))
    assert set(ratios(schedule, 50)) == {1.0}


def test_wsd_holds_then_falls() -> None:
    schedule = ScheduleConfig(
        type="wsd", warmup=Warmup(10, "steps"), decay=Warmup(20, "steps"), min_lr_ratio=0.0
    )
    found = ratios(schedule, 100)
    assert set(found[9:80]) == {1.0}
    assert found[80:] == pytest.approx([1 - (i + 1) / 20 for i in range(20)])


@given(
    kind=st.sampled_from(KINDS),
    total=st.integers(1, 300),
    warmup=st.integers(0, 400),
    decay=st.integers(0, 400),
    floor=st.floats(0, 1),
)
def test_always_between_zero_and_the_peak_and_never_up_after_warm_up(
    kind: str, total: int, warmup: int, decay: int, floor: float
) -> None:
    schedule = ScheduleConfig(
        type=kind,
        warmup=Warmup(warmup, "steps"),
        decay=Warmup(decay, "steps"),
        min_lr_ratio=floor,
    )
    found = ratios(schedule, total)
    assert all(0 < ratio <= 1 + 1e-9 for ratio in found[:-1])
    after = found[min(warmup, total) :]
    assert all(a >= b - 1e-9 for a, b in pairwise(after))
