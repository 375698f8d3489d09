"""The interval between checkpoints that loses least, beside Daly's own figures and a simulation of
interruptions that come by chance."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.plan.figure import Figure
from headway.plan.interruptions import Placement
from headway.plan.save_interval import (
    DEFAULT_SECONDS,
    SaveCost,
    chosen_interval,
    daly_interval,
    expected_stretch,
    rounded,
    save_cost,
    young_interval,
)

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(
    ("mean_seconds", "published_minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)]
)
def test_what_daly_published(mean_seconds: float, published_minutes: float) -> None:
    """Figures 3, 4 and 5 of his paper: saves of 5 minutes."""
    found = daly_interval(5 * MINUTE, mean_seconds) / MINUTE
    assert float(f"{found:.{len(str(published_minutes).replace('.', ''))}g}") == published_minutes


def test_rare_interruptions_give_youngs_interval() -> None:
    assert daly_interval(1.0, 1e7) == pytest.approx(young_interval(1.0, 1e7), rel=0.001)


def test_saves_longer_than_the_time_between_interruptions() -> None:
    assert daly_interval(1000.0, 100.0) == 100.0
    assert expected_stretch(100.0, 1e6, 100.0, 10.0) == math.inf


seconds = st.floats(0.05, 300.0)


@given(save=seconds, recovery=seconds, ratio=st.floats(3.0, 1e5))
def test_no_other_interval_loses_less(save: float, recovery: float, ratio: float) -> None:
    """By the exact expectation, to a thousandth of what is lost."""
    mean = save * ratio
    best = daly_interval(save, mean)

    def lost(every: float) -> float:
        return expected_stretch(every, save, mean, recovery) - 1

    for factor in (0.5, 0.8, 1.25, 2.0):
        assert lost(best) <= lost(best * factor) * 1.001


def simulated_stretch(
    every: float, save: float, recovery: float, faults: list[float], work: float
) -> float:
    """Of a run that does `work` seconds of training, with faults at these times."""
    now = done = 0.0
    coming = iter(faults)
    fault = next(coming)
    while done < work:
        segment = min(every, work - done)
        if now + segment + save <= fault:
            now, done = now + segment + save, done + segment
            continue
        now = fault
        while (fault := next(coming)) < now + recovery:
            now = fault
        now += recovery
    return now / work


@pytest.mark.parametrize(
    ("save", "recovery", "mean"), [(2.0, 30.0, 3600.0), (20.0, 60.0, 900.0), (0.2, 5.0, 20_000.0)]
)
def test_in_a_simulation_neighbours_lose_more(save: float, recovery: float, mean: float) -> None:
    work = 2000 * mean
    chance = random.Random(7)
    time, faults = 0.0, []
    while time < 4 * work:
        time += chance.expovariate(1 / mean)
        faults.append(time)
    best = daly_interval(save, mean)
    lost = {
        factor: simulated_stretch(best * factor, save, recovery, faults, work) - 1
        for factor in (0.5, 1.0, 2.0)
    }
    assert lost[1.0] < lost[0.5]
    assert lost[1.0] < lost[2.0]
    expected = expected_stretch(best, save, mean, recovery) - 1
    assert lost[1.0] == pytest.approx(expected, rel=0.1)


def cost(held: float, write: float = 1.0) -> SaveCost:
    return SaveCost(Figure.exact(held, ""), Figure.exact(write, ""))


def every(held: float, write: float, hours: float) -> float:
    return chosen_interval(cost(held, write), Figure.exact(1 / hours, "faults")).value


def test_the_chosen_interval_is_daly_s_as_a_round_number() -> None:
    assert every(1.0, 1.0, 24.0) == rounded(daly_interval(1.0, 24 * HOUR)) == 420
    assert every(10.0, 1.0, 24.0) == 22 * 60


def test_its_bounds() -> None:
    assert every(0.001, 0.1, 1.0) == 60  # saves that cost nothing
    assert every(100.0, 0.1, 10_000.0) == 3600  # hardly any faults
    assert every(0.001, 90.0, 1.0) == 180  # writing takes longer than what is best
    assert every(0.001, 4000.0, 1.0) == 133 * 60  # or more than an hour


def test_its_reason_has_the_numbers() -> None:
    chosen = chosen_interval(cost(1.0), Figure.exact(1 / 24, "spot machines", "given"))
    assert chosen.reason == (
        "a save holds training for 1 s; back to a checkpoint every 24 h (spot machines); Daly 2006"
    )
    assert chosen.basis == "given"
    assert chosen.low <= chosen.value <= chosen.high


def test_a_model_of_unknown_size_keeps_the_default() -> None:
    assert chosen_interval(None, Figure.exact(1.0, "")).value == DEFAULT_SECONDS


@settings(max_examples=50)
@given(held=st.floats(0.01, 60), write=st.floats(0.1, 600), hours=st.floats(0.2, 5000))
def test_more_faults_never_give_a_longer_interval(held: float, write: float, hours: float) -> None:
    assert every(held, write, hours) <= every(held, write, 2 * hours)


def place(nodes: int, ranks_per_node: int, copy_ranks: int, on_gpu: bool) -> Placement:
    return Placement(
        mode="restart",
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        copy_ranks=copy_ranks,
        spot_nodes=0,
        trains_with_fewer=False,
        on_gpu=on_gpu,
        on_pods=on_gpu,
    )


def test_the_cost_of_a_save() -> None:
    """Of the 88 million parameters of bench-save it is what was measured there."""
    here = save_cost(88_000_000, place(1, 1, 1, on_gpu=False), is_remote=False)
    assert here.held_seconds.value == pytest.approx(0.0293 * 60, rel=0.05)
    assert here.write_seconds.value == pytest.approx(2.2, rel=0.05)
    gpus = save_cost(70 * 10**9, place(8, 8, 64, on_gpu=True), is_remote=True)
    assert gpus.held_seconds.value == pytest.approx(70e9 * 12 / 64 / 10e9)
    assert gpus.held_seconds.basis == "assumed"
    assert gpus.write_seconds.value == pytest.approx(70e9 * 12 / 8 / 1e9)
    whole = save_cost(70 * 10**9, place(8, 8, 1, on_gpu=True), is_remote=True)
    assert whole == gpus, "all ranks write where all restart together"
    live = dataclasses.replace(place(8, 8, 1, on_gpu=False), mode="live")
    assert save_cost(70 * 10**9, live, is_remote=True).write_seconds.value == 70e9 * 12 / 1e9
