"""A worker's own log, which is its stderr: progress every so often, whom it works with, and why it
ends. Who follows the log of one worker sees the progress of the run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from headway.clock import Clock, stamp

if TYPE_CHECKING:  # this module is imported before torch is
    from headway.train.evaluate import EvaluationResult
    from headway.train.samples import Sample
    from headway.train.step import StepResult
    from headway.train.world import World

EVERY_SECONDS = 10.0
"""Between two lines about progress: the log of a day stays readable."""
MAX_REASON_BYTES = 32768
"""Less than a pipe holds: nobody reads it before this process has ended."""
exit_reason_pipe: int | None = None
"""Pipe to the launcher for the reason of a worker's exit, in workers that a fork server has
forked."""


def log_line(line: str) -> None:
    with suppress(OSError):  # the log can be on a disk that is full
        print(line, file=sys.stderr, flush=True)


def log_exit_reason(reason: str) -> None:
    """Why this process ends: to its log, and to its launcher, in case the log cannot take it."""
    log_line(reason)
    report_exit_reason(reason)


def report_exit_reason(reason: str) -> None:
    """To the launcher only: the log has it already."""
    if exit_reason_pipe is not None:
        with suppress(OSError):
            os.write(exit_reason_pipe, reason.encode(errors="replace")[-MAX_REASON_BYTES:])


class WorkerLog:
    def __init__(
        self, total_steps: int, tokens_per_step: int, clock: Clock, is_shared: bool = False
    ) -> None:
        """`is_shared`: all workers write into one log."""
        self._is_shared = is_shared
        self._total_steps = total_steps
        self._tokens_per_step = tokens_per_step
        self._clock = clock
        self._is_silent = True
        self._last = (0, 0.0)
        """Step and time of the last line about progress."""

    def begin(self, world: World, step: int) -> None:
        # The other ranks of a domain would write the same.
        self._is_silent = (world.rank if self._is_shared else world.placement.local_rank) > 0
        self._last = (step, self._clock.monotonic())
        workers = f"{world.num_workers} worker{'s' if world.num_workers > 1 else ''}"
        self._log(f"generation {world.generation}: {workers}, training from step {step}")

    def step(self, result: StepResult) -> None:
        before, since = self._last
        now = self._clock.monotonic()
        if now - since < EVERY_SECONDS and result.step < self._total_steps:
            return
        self._last = (result.step, now)
        speed = (result.step - before) * self._tokens_per_step / max(now - since, 1e-9)
        skipped = f"  skipped: {result.skipped}" if result.skipped is not None else ""
        self._log(
            f"step {result.step}/{self._total_steps}  loss {result.loss:.4f}  "
            f"{speed:,.0f} tokens/s{skipped}"
        )

    def evaluation(
        self, step: int, results: dict[str, EvaluationResult], samples: list[Sample]
    ) -> None:
        at = f"step {step}/{self._total_steps}"
        if results:
            losses = "  ".join(f"{name} {result.loss:.4f}" for name, result in results.items())
            self._log(f"{at}  evaluation: {losses}")
        for sample in samples:
            self._log(f"{at}  sample: {sample.prompt!r} {sample.text!r}")

    def _log(self, line: str) -> None:
        if not self._is_silent:
            log_line(f"{stamp(self._clock.now())} {line}")
