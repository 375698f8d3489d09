"""What a run leaves to look at: one line per committed step, evaluations, activations."""

from __future__ import annotations

import math
from typing import Any

from headway.clock import Clock, stamp
from headway.spec.resolve import Resolved
from headway.state.ledger import LedgerWriter
from headway.state.rundir import RunDirectory
from headway.train.evaluate import EvaluationResult, perplexity
from headway.train.step import StepResult
from headway.train.trackers import open_trackers
from headway.train.world import World


class Recorder:
    """The leader's. `first_step` is the step the run goes on from; what lies beyond it in the logs
    is announced as about to be done again."""

    def __init__(
        self,
        directory: RunDirectory,
        resolved: Resolved,
        world: World,
        first_step: int,
        facts: dict[str, Any],
        clock: Clock,
    ) -> None:
        self.directory = directory
        self.world = world
        self.clock = clock
        self.batch = resolved.global_batch
        self.tokens_per_step = self.batch * resolved.run.data.sequence_length
        self.ledger = LedgerWriter(directory.ledger)
        self.trackers = open_trackers(directory, resolved, first_step)
        if world.generation > 1:
            self.ledger.rewind(first_step)
            directory.metrics.append({"rewind": first_step})
            directory.evaluations.append({"rewind": first_step})
            if directory.activations.last() is not None:  # few runs have them
                directory.activations.append({"rewind": first_step})
        self.ledger.begin(world.generation, first_step, facts)

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
            "time": stamp(self.clock.now()),
            "tokens": result.step * self.tokens_per_step,
            "targets": result.count,
            **numbers,
        }
        if result.skipped is not None:
            line["skipped"] = result.skipped
        self.directory.metrics.append(_finite(line))
        self.ledger.committed(
            {
                "step": result.step,
                "first": (result.step - 1) * self.batch,
                "count": self.batch,
                "generation": self.world.generation,
                "members": self.world.num_workers,
                "tokens": self.tokens_per_step,
                "loss": finite(result.loss),
                "learned": result.skipped is None,
            }
        )
        self._track(result.step, "train", numbers)

    def evaluation(self, step: int, results: dict[str, EvaluationResult]) -> None:
        for name, result in results.items():
            self._one_evaluation(step, name, result)

    def _one_evaluation(self, step: int, name: str, result: EvaluationResult) -> None:
        numbers = {"loss": result.loss, "perplexity": result.perplexity, **result.metrics}
        self.directory.evaluations.append(_finite({"step": step, "set": name, **numbers}))
        self._track(step, name, numbers)

    def activations(self, step: int, blocks: list[dict[str, float]]) -> None:
        """Figures of each block, in order."""
        for block, numbers in enumerate(blocks):
            self.directory.activations.append(_finite({"step": step, "block": block, **numbers}))
            self._track(step, f"activations/{block}", numbers)

    def _track(self, step: int, group: str, numbers: dict[str, float]) -> None:
        for tracker in self.trackers:
            tracker.numbers(step, {f"{group}/{name}": value for name, value in numbers.items()})

    def close(self) -> None:
        self.ledger.settle()
        for tracker in self.trackers:
            tracker.close()


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null says that there is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite(line: dict[str, Any]) -> dict[str, Any]:
    return {key: finite(value) for key, value in line.items()}
