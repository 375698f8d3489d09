"""Metrics, evaluations, samples, activations and the ledger of a run: lines of committed steps.

Every worker keeps the newest lines; the leader writes them. So when it dies, its successor appends
what is missing, and there is no gap. A leader that only hangs may continue to write at any moment:
so the lines of its successor must be valid whatever comes before, between and after them, and
reading the log only tells which lines need not be written again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from headway.clock import Clock, stamp
from headway.spec.resolve import Resolved
from headway.state.ledger import follows
from headway.state.rewinds import Record, step_after
from headway.state.run_directory import RunDirectory
from headway.state.store import in_parallel
from headway.train.evaluate import EvaluationResult
from headway.train.objectives import HARD_LOSS
from headway.train.samples import Sample
from headway.train.step import StepResult
from headway.train.trackers import Tracker, open_trackers
from headway.train.world import World

KEPT_LINES = 20_000
"""More than are ever written between two uploads of the logs to a store."""
LARGEST_EXPONENT = 50.0
"""A larger exponent carries no information and would overflow the plots."""


class Recorder:
    def __init__(
        self, directory: RunDirectory, resolved: Resolved, facts: dict[str, Any], clock: Clock
    ) -> None:
        """`facts` are written to the ledger at the beginning of each generation."""
        self.directory = directory
        self.resolved = resolved
        self.clock = clock
        self.facts = facts
        self.batch = resolved.global_batch
        self.tokens_per_step = resolved.tokens_per_step
        self._world: World | None = None
        self._metrics: deque[Record] = deque(maxlen=KEPT_LINES)
        self._evaluations: deque[Record] = deque(maxlen=KEPT_LINES)
        self._ledger: deque[Record] = deque(maxlen=KEPT_LINES)
        """Lines of settled steps."""
        self._kept = (self._metrics, self._evaluations, self._ledger)
        self._committed: Record | None = None
        """The ledger's line of the last step. It is settled when the next step is committed, when
        all workers continue from it, or when a checkpoint has it."""
        self._trackers: list[Tracker] | None = None

    @property
    def is_leader(self) -> bool:
        return self._world is not None and self._world.is_leader

    def begin(self, world: World, first_step: int) -> None:
        """All members of a generation have the state of `first_step`, and continue from it."""
        self._world = world
        self.settle(upto=first_step)
        for kept in self._kept:
            while kept and step_after(kept[-1]) > first_step:
                kept.pop()
            if world.generation > 1:
                # Always: a leader that hangs may have written lines beyond it that are not visible
                # yet.
                kept.append({"rewind": first_step, "generation": world.generation})
        self._ledger.append({"begin": world.generation, "step": first_step, **self.facts})
        if self.is_leader and self._trackers is None:
            self._trackers = open_trackers(self.directory, self.resolved, first_step)

    def catch_up(self, first_step: int) -> None:
        """Called by the leader: rewinds what lies beyond the step and writes what is missing before
        it. Raises OSError when the store cannot be reached, and may be called again."""
        assert self._world is not None
        generation, directory = self._world.generation, self.directory
        for log in (directory.metrics, directory.evaluations, directory.ledger):
            log.forget()  # or lines that were not uploaded yet would be written twice
        in_metrics, in_evaluations, in_ledger, in_samples, in_activations = self._newest_written()
        to_metrics = [line for line in self._metrics if follows(line, in_metrics)]
        to_evaluations = [line for line in self._evaluations if follows(line, in_evaluations)]
        to_ledger = [line for line in self._ledger if follows(line, in_ledger)]
        beside = [directory.samples] if in_samples is not None else []
        beside += [directory.activations] if in_activations is not None else []
        # Appending never fails: so all of it is done, or an error above has changed nothing.
        directory.metrics.append(*to_metrics)
        directory.evaluations.append(*to_evaluations)
        directory.ledger.append(*({**line, "writer": generation} for line in to_ledger))
        for log in beside:
            log.append({"rewind": first_step, "generation": generation})

    def _newest_written(self) -> Iterator[Record | None]:
        """The newest record of each log. An object store answers all in the time of one."""
        directory = self.directory
        logs = [directory.metrics, directory.evaluations, directory.ledger]
        logs += [directory.samples, directory.activations]
        if directory.store.is_local:
            return (log.last() for log in logs)
        return in_parallel(lambda log: log.last(), logs, len(logs))

    def resign(self) -> None:
        """The run continues without this worker: another one writes from now on."""
        self._world = self._committed = None

    def kept_records(self) -> list[list[Record]]:
        """The kept lines, for a new worker: it may become the leader."""
        return [list(kept) for kept in self._kept]

    def replace_kept_records(self, records: list[list[Record]]) -> None:
        for kept, lines in zip(self._kept, records, strict=True):
            kept.clear()
            kept.extend(lines)
        self._committed = None

    def step(self, result: StepResult, figures: dict[str, float]) -> None:
        assert self._world is not None
        numbers: dict[str, float] = {
            "loss": result.loss,
            **self._perplexity(self._text_loss(result)),
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
            "generation": self._world.generation,
            **numbers,
        }
        if result.skipped is not None:
            line["skipped"] = result.skipped
        self._metrics.append(_finite(line))
        if self.is_leader:
            self.directory.metrics.append(self._metrics[-1])
        self.settle()
        self._committed = {
            "step": result.step,
            "first": (result.step - 1) * self.batch,
            "count": self.batch,
            "generation": self._world.generation,
            "members": self._world.num_workers,
            "tokens": self.tokens_per_step,
            "loss": finite(result.loss),
            "learned": result.skipped is None,
        }
        self._track(result.step, "train", numbers)

    def _text_loss(self, result: StepResult) -> float:
        """The loss on the text alone: that of a distillation includes the teacher."""
        if self.resolved.run.objective.type == "distill":
            return result.extras[HARD_LOSS]
        return result.loss

    def _perplexity(self, loss: float) -> dict[str, float]:
        """Only where the loss is the cross-entropy of the next token: that of masked tokens is no
        model of the text, and what a loss of the user's own means is not known here."""
        objective = self.resolved.run.objective.type
        return {"perplexity": perplexity(loss)} if objective in ("causal", "distill") else {}

    def settle(self, upto: int | None = None) -> None:
        """The last step is final, unless it lies beyond `upto`: then it is discarded."""
        line, self._committed = self._committed, None
        if line is not None and (upto is None or line["step"] <= upto):
            self._ledger.append(line)
            if self.is_leader and upto is None:
                self.directory.ledger.append(line)

    def evaluation(self, step: int, results: dict[str, EvaluationResult]) -> None:
        assert self._world is not None
        lines = []
        for name, result in results.items():
            numbers = {"loss": result.loss, **self._perplexity(result.loss), **result.metrics}
            line = {"step": step, "set": name, "generation": self._world.generation, **numbers}
            lines.append(_finite(line))
            self._track(step, name, numbers)
        self._evaluations.extend(lines)
        if self.is_leader:
            self.directory.evaluations.append(*lines)

    def samples(self, step: int, samples: list[Sample]) -> None:
        assert self._world is not None
        facts = {"step": step, "generation": self._world.generation}
        if self.is_leader:
            self.directory.samples.append(*({**facts, **asdict(one)} for one in samples))

    def activations(self, step: int, blocks: list[dict[str, float]]) -> None:
        """`blocks`: figures of each block, in order."""
        assert self._world is not None
        generation = self._world.generation
        for block, numbers in enumerate(blocks):
            if self.is_leader:
                line = {"step": step, "block": block, "generation": generation, **numbers}
                self.directory.activations.append(_finite(line))
            self._track(step, f"activations/{block}", numbers)

    def _track(self, step: int, group: str, numbers: dict[str, float]) -> None:
        if self.is_leader:
            for tracker in self._trackers or ():
                tracker.numbers(step, {f"{group}/{name}": value for name, value in numbers.items()})

    def close(self) -> None:
        self.settle()
        for tracker in self._trackers or ():
            tracker.close()


def perplexity(loss: float) -> float:
    return math.exp(min(loss, LARGEST_EXPONENT)) if math.isfinite(loss) else math.inf


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite(line: dict[str, Any]) -> dict[str, Any]:
    return {key: finite(value) for key, value in line.items()}
