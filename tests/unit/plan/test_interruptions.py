"""How often a run loses a node, and how often it goes back to a checkpoint."""

from __future__ import annotations

import dataclasses

import pytest

from headway.plan.figure import Figure, combined
from headway.plan.interruptions import (
    Mode,
    Placement,
    losses_per_hour,
    rewinds_per_hour,
)
from headway.spec.interruption_rate import InterruptionsConfig

OFTEN = InterruptionsConfig.model_validate({"on_demand": "20% per hour"})


def place(mode: Mode = "restart", **changed: object) -> Placement:
    one = Placement(
        mode=mode,
        nodes=8,
        ranks_per_node=1,
        copy_ranks=1,
        spot_nodes=0,
        trains_with_fewer=True,
        on_gpu=False,
        on_pods=True,
    )
    return dataclasses.replace(one, **changed)  # type: ignore[arg-type]


def test_defaults_name_where_they_come_from() -> None:
    gpus = place(nodes=1, ranks_per_node=8, on_gpu=True)
    found = losses_per_hour(gpus)
    assert found.value == pytest.approx(419 / (54 * 24 * 2048))  # nodes of 8
    assert "Llama 3" in found.reason
    spot = losses_per_hour(dataclasses.replace(gpus, spot_nodes=1))
    assert spot.value == pytest.approx(0.2, rel=0.05)
    assert "spot-traces" in spot.reason
    assert "interruptions in the target" in spot.reason


def test_the_targets_own_rates() -> None:
    rates = {"spot": "5% per hour", "on_demand": "0.1% per hour"}
    given = InterruptionsConfig.model_validate(rates)
    mixed = losses_per_hour(place(spot_nodes=6), given)
    assert mixed.value == pytest.approx(6 * 0.05 + 2 * 0.001)
    assert mixed.basis == "given"
    assert mixed.reason.startswith("6 spot nodes, interruptions of the target; 2 nodes,")


def test_the_run_of_llama_3_had_an_interruption_every_three_hours() -> None:
    run = place(nodes=2048, ranks_per_node=8, on_gpu=True)
    assert 1 / losses_per_hour(run).value == pytest.approx(3.1, abs=0.05)


def test_live_goes_back_to_a_checkpoint_only_when_all_copies_are_lost() -> None:
    live = rewinds_per_hour(place("live"), losses_per_hour(place("live"), OFTEN))
    assert live.value == pytest.approx(1 / 720)
    assert "8 copies hold the state" in live.reason
    restart = rewinds_per_hour(place(), losses_per_hour(place(), OFTEN))
    assert restart.value == pytest.approx(1.6 + 1 / 720)
    alone = place("live", nodes=1, trains_with_fewer=False)
    found = rewinds_per_hour(alone, losses_per_hour(alone, OFTEN))
    assert found.value == pytest.approx(0.2 + 1 / 720)


def test_independent_errors_add_up_as_squares() -> None:
    one = Figure(10.0, 7.0, 14.0, "measured", "")
    two = Figure(20.0, 16.0, 23.0, "assumed", "")
    both = combined(lambda one, two: one - two, {"one": one, "two": two}, "why")
    assert (both.value, both.basis, both.reason) == (-10.0, "assumed", "why")
    assert both.low == pytest.approx(-10 - (3**2 + 3**2) ** 0.5)
    assert both.high == pytest.approx(-10 + (4**2 + 4**2) ** 0.5)
