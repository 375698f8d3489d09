"""What counts as equal, resumed and learned, from records of a run."""

from __future__ import annotations

from typing import Any

import pytest

from headway.prove.judge import (
    ProofFailed,
    pause_at_change,
    require_equal,
    require_learning,
    require_lost,
    require_resumed,
    require_same_loss,
)


def steps(*losses: float | None, norm: float = 2.0) -> list[dict[str, float | int | None]]:
    return [
        {"step": number, "loss": loss, "grad_norm": norm}
        for number, loss in enumerate(losses, start=1)
    ]


ALONE = steps(6.0, 5.0, 4.0)


def test_losses_that_differ_by_rounding_are_equal_and_the_difference_is_the_figure() -> None:
    found = require_equal(steps(6.0, 5.00002, 4.0), ALONE, 1e-5, "one worker")
    assert found == "loss within 4.0e-06, grad_norm within 0.0e+00 of one worker's in 3 steps"


def test_one_step_with_another_loss_is_named() -> None:
    with pytest.raises(ProofFailed, match=r"^loss of step 2 differs by 2.0e-03 from one worker's"):
        require_equal(steps(6.0, 5.01, 4.0), ALONE, 1e-5, "one worker")


def test_equal_losses_with_other_gradients_are_not_equal() -> None:
    with pytest.raises(ProofFailed, match="grad_norm of step"):
        require_equal(steps(6.0, 5.0, 4.0, norm=2.01), ALONE, 1e-5, "one worker")


def test_a_loss_that_is_not_finite_is_not_equal() -> None:
    with pytest.raises(ProofFailed, match="loss of step 3 differs by inf"):
        require_equal(steps(6.0, 5.0, None), ALONE, 1e-5, "one worker")


@pytest.mark.parametrize("found", [steps(6.0, 5.0), [*ALONE, ALONE[-1]], []])
def test_a_run_with_other_steps_is_not_equal(found: list[dict[str, float]]) -> None:
    with pytest.raises(ProofFailed, match=f"3 steps expected, but {len(found)} recorded"):
        require_equal(found, ALONE, 1e-5, "one worker")


def test_a_run_whose_loss_stays_has_not_learned() -> None:
    assert require_learning(ALONE, 3) == "loss 6.000 at step 1, 4.000 at step 3"
    with pytest.raises(ProofFailed, match="does not fall"):
        require_learning(steps(6.0, 6.0, 5.99), 3)


LOST = {"event": "lost"}
FIRST = {"event": "started", "resumed_from": None}


def test_resumed_names_the_steps() -> None:
    history = [FIRST, LOST, {"event": "started", "resumed_from": 6}]
    require_lost(history)
    assert require_resumed(history, "killed after step 8").endswith("8, resumed from step 6")


@pytest.mark.parametrize("history", [[FIRST, LOST], [FIRST, LOST, FIRST]])
def test_a_run_that_only_seems_to_have_resumed(history: list[dict]) -> None:
    with pytest.raises(ProofFailed, match="killed after step 8, but the run did not resume"):
        require_resumed(history, "killed after step 8")


def test_a_killed_worker_that_the_run_knows_nothing_of() -> None:
    with pytest.raises(ProofFailed, match="no record of a lost worker"):
        require_lost([FIRST])


def line(step: int, generation: int, second: int) -> dict[str, Any]:
    time = f"2026-11-17T02:00:{second:02d}.000Z"
    return {"step": step, "loss": 5.0, "generation": generation, "time": time}


def test_the_pause_is_between_the_last_step_before_and_the_first_after() -> None:
    lines = [line(1, 1, 0), line(2, 1, 1), {"rewind": 1, "generation": 3}, line(2, 3, 11)]
    assert pause_at_change([*lines, line(3, 3, 13), line(4, 4, 17)]) == 10.0
    with pytest.raises(ProofFailed, match="no step was recorded after it"):
        pause_at_change(lines[:2])


def test_an_export_with_another_loss() -> None:
    assert "3.300000 in the run" in require_same_loss(3.3, 3.3, 1e-5)
    with pytest.raises(ProofFailed, match=r"they differ by 3.0e-03"):
        require_same_loss(3.31, 3.3, 1e-5)
    with pytest.raises(ProofFailed):
        require_same_loss(float("nan"), 3.3, 1e-5)
