"""What a run leaves to look at: one line per committed step, evaluations, TensorBoard."""

from __future__ import annotations

import math
from typing import Any

from headway.state.rundir import RunDirectory
from headway.train.evaluate import EvaluationResult, perplexity
from headway.train.step import StepResult


class Recorder:
    """Only the first worker has one that writes. `first_step` is the step the run goes on from."""

    def __init__(
        self, directory: RunDirectory, track: list[str], first_step: int, tokens_per_step: int
    ) -> None:
        self.directory = directory
        self.tokens_per_step = tokens_per_step
        directory.metrics.rewind(first_step)
        directory.evaluations.rewind(first_step)
        self.board: Any = None
        if "tensorboard" in track:
            from torch.utils.tensorboard import SummaryWriter

            # Steps beyond the checkpoint are about to be done again: hide the first attempt.
            self.board = SummaryWriter(
                str(directory.tensorboard), purge_step=first_step + 1, flush_secs=10
            )

    def step(self, result: StepResult, figures: dict[str, float]) -> None:
        numbers: dict[str, float] = {
            "loss": result.loss,
            "perplexity": perplexity(result.loss),
            "lr": result.lr,
            "grad_norm": result.grad_norm,
            **result.extras,
            **figures,
        }
        line: dict[str, Any] = {
            "step": result.step,
            "tokens": result.step * self.tokens_per_step,
            "targets": result.count,
            **numbers,
        }
        if result.skipped is not None:
            line["skipped"] = result.skipped
        self.directory.metrics.append(_finite(line))
        for name, value in numbers.items():
            self._plot(f"train/{name}", value, result.step)

    def evaluation(self, step: int, results: dict[str, EvaluationResult]) -> None:
        for name, result in results.items():
            self._one_evaluation(step, name, result)

    def _one_evaluation(self, step: int, name: str, result: EvaluationResult) -> None:
        numbers = {"loss": result.loss, "perplexity": result.perplexity, **result.metrics}
        self.directory.evaluations.append(_finite({"step": step, "set": name, **numbers}))
        for measure, value in numbers.items():
            self._plot(f"{name}/{measure}", value, step)

    def _plot(self, name: str, value: float, step: int) -> None:
        if self.board is not None:
            self.board.add_scalar(name, value, step)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null says that there is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite(line: dict[str, Any]) -> dict[str, Any]:
    return {key: finite(value) for key, value in line.items()}
