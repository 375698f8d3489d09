"""What a worker says in its own log: how far it is, every so often, and with whom it works. Whoever
follows one worker sees the run go on."""

from __future__ import annotations

from headway.clock import Clock, stamp
from headway.train.evaluate import EvaluationResult
from headway.train.saying import say
from headway.train.step import StepResult
from headway.train.world import World

EVERY_SECONDS = 10.0
"""A log of a day stays readable."""


class Telling:
    def __init__(self, total_steps: int, tokens_per_step: int, clock: Clock) -> None:
        self._total_steps = total_steps
        self._tokens_per_step = tokens_per_step
        self._clock = clock
        self._is_silent = True
        self._last = (0, 0.0)
        """Step and time of the last line about one."""

    def begin(self, world: World, step: int) -> None:
        # The others of a domain would say the same.
        self._is_silent = world.place.local_rank > 0
        self._last = (step, self._clock.monotonic())
        workers = f"{world.num_workers} worker{'s' if world.num_workers > 1 else ''}"
        self._say(f"generation {world.generation}: {workers}, going on from step {step}")

    def step(self, result: StepResult) -> None:
        before, since = self._last
        now = self._clock.monotonic()
        if now - since < EVERY_SECONDS and result.step < self._total_steps:
            return
        self._last = (result.step, now)
        speed = (result.step - before) * self._tokens_per_step / max(now - since, 1e-9)
        skipped = f"  skipped: {result.skipped}" if result.skipped is not None else ""
        self._say(
            f"step {result.step}/{self._total_steps}  loss {result.loss:.4f}  "
            f"{speed:,.0f} tokens/s{skipped}"
        )

    def evaluation(self, step: int, results: dict[str, EvaluationResult]) -> None:
        losses = "  ".join(f"{name} {result.loss:.4f}" for name, result in results.items())
        self._say(f"step {step}/{self._total_steps}  evaluation: {losses}")

    def _say(self, words: str) -> None:
        if not self._is_silent:
            say(f"{stamp(self._clock.now())} {words}")
