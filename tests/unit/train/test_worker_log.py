"""What whoever follows one worker's log sees of the run."""

from __future__ import annotations

import pytest
import torch

from headway.train.evaluate import EvaluationResult
from headway.train.samples import Sample
from headway.train.step import StepResult
from headway.train.worker_log import EVERY_SECONDS, WorkerLog
from headway.train.world import RankPlacement, World
from support.clock import Patient


def world(generation: int = 1, workers: int = 3, local_rank: int = 0) -> World:
    placement = RankPlacement(torch.device("cpu"), local_rank)
    return World(rank=local_rank, num_workers=workers, generation=generation, placement=placement)


def step(number: int, **more: str) -> StepResult:
    return StepResult(step=number, loss=2.5, count=10, grad_norm=1.0, lr=0.1, **more)  # type: ignore[arg-type]


def lines(captured: pytest.CaptureFixture[str]) -> list[str]:
    """Without their times."""
    return [line.partition(" ")[2] for line in captured.readouterr().err.splitlines()]


def test_how_far_it_is_every_so_often(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Patient()
    worker_log = WorkerLog(total_steps=100, tokens_per_step=1000, clock=clock)
    worker_log.begin(world(generation=4), 10)
    for number in range(11, 31):
        clock.passed += EVERY_SECONDS / 10
        worker_log.step(step(number))
    assert lines(capsys) == [
        "generation 4: 3 workers, training from step 10",
        "step 20/100  loss 2.5000  1,000 tokens/s",
        "step 30/100  loss 2.5000  1,000 tokens/s",
    ]


def test_the_last_step_is_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Patient()
    worker_log = WorkerLog(total_steps=2, tokens_per_step=1000, clock=clock)
    worker_log.begin(world(workers=1), 0)
    clock.passed += 1
    worker_log.step(step(1))
    clock.passed += 1
    worker_log.step(step(2, skipped="the loss is not finite"))
    worker_log.evaluation(2, {"held-out": EvaluationResult(3.25, 10, {})}, [Sample("Once", "a\nb")])
    assert lines(capsys) == [
        "generation 1: 1 worker, training from step 0",
        "step 2/2  loss 2.5000  1,000 tokens/s  skipped: the loss is not finite",
        "step 2/2  evaluation: held-out 3.2500",
        r"step 2/2  sample: 'Once' 'a\nb'",
    ]


def test_one_of_those_that_hold_the_model_together_is_enough(
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker_log = WorkerLog(total_steps=1, tokens_per_step=1000, clock=Patient())
    worker_log.begin(world(local_rank=1), 0)
    worker_log.step(step(1))
    assert lines(capsys) == []


@pytest.mark.parametrize(("is_shared", "says"), [(True, False), (False, True)])
def test_one_log_of_all_workers_has_each_line_once(
    is_shared: bool, says: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """As under torchrun, whose output is that of all of them."""
    worker_log = WorkerLog(100, 1000, Patient(), is_shared=is_shared)
    placement = RankPlacement(torch.device("cpu"), 0)
    worker_log.begin(World(rank=2, num_workers=3, generation=1, placement=placement), 10)
    assert bool(lines(capsys)) == says
