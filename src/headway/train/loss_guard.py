"""Skips the update of steps with a non-finite loss or a loss spike.

A spike is over after a few steps. A loss that stays high and level is a new plateau, caused by
other data or by an update. Its steps are not skipped, or the run would never get beyond it.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from headway.errors import RunFailed
from headway.spec.run_file import GuardConfig

HISTORY_STEPS = 128
"""Losses that a spike is measured against; with fewer, nothing counts as a spike."""
PLATEAU_STEPS = 8
"""The first loss above the limit that may be learned from, if it and those before it are level.
Spikes are shorter, and among fewer losses noise hides whether they rise."""
LOOK_BACK_STEPS = 10
"""Losses above the limit that are looked at."""
RISE_STEPS, RISE_DEVIATIONS = 3, 3.0
"""Rising: the last 3 are on average so many deviations above the first 3. Of 4,000 noisy plateaus
none was found to rise three times in a row; a rise of 1.5 deviations a step is found in 999 of
1,000."""


@dataclass(frozen=True)
class Level:
    """Where losses lie."""

    mean: float
    spread: float
    """Standard deviation."""


class LossGuard:
    """Decides from reduced values only, so every worker decides the same. Saved and restored."""

    def __init__(self, spec: GuardConfig) -> None:
        self.spec = spec
        self.history: deque[float] = deque(maxlen=HISTORY_STEPS)
        self.skipped_in_a_row = 0
        self._above: deque[float] = deque(maxlen=LOOK_BACK_STEPS - 1)
        """Finite losses that were skipped as too high, since the loss was last where it used to
        be."""
        self._at_level = 0
        """Steps learned from since the level was last moved to a plateau."""

    def verdict(self, loss: float, grad_norm: float) -> str | None:
        """Why this step must be skipped, or None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(grad_norm):
            return f"the gradient norm is {grad_norm}"
        level = self._level()
        if level is None or loss <= self._limit(level) or self._is_plateau(loss, level):
            return None
        return f"the loss spiked to {loss:.4f}, above {self._limit(level):.4f}"

    def record(self, loss: float, reason: str | None) -> None:
        """Records a step's verdict."""
        level = self._level()
        is_above = level is not None and loss > self._limit(level)
        if reason is not None:
            self.skipped_in_a_row += 1
            if is_above and math.isfinite(loss):
                self._above.append(loss)
            return
        self.skipped_in_a_row = 0
        if level is not None and is_above:
            self._move(level, statistics.fmean([*self._above, loss]))
        elif level is not None and loss <= level.mean + (self._limit(level) - level.mean) / 2:
            # Not by any loss below the limit: noise brings some of a plateau's there.
            self._above.clear()
        self.history.append(loss)
        self._at_level += 1

    def require_progress(self, step: int, reason: str | None) -> None:
        """Raises RunFailed when too many steps in a row were skipped."""
        if self.skipped_in_a_row >= self.spec.stop_after:
            raise RunFailed(
                f"{self.skipped_in_a_row} steps in a row were skipped; at step {step} {reason}",
                "lower optimizer.lr, lengthen schedule.warmup, or inspect the data of these steps",
            )

    def state(self) -> dict[str, object]:
        return {
            "history": list(self.history),
            "skipped_in_a_row": self.skipped_in_a_row,
            "above": list(self._above),
            "at_level": self._at_level,
        }

    def restore(self, state: dict[str, object]) -> None:
        history, skipped = state["history"], state["skipped_in_a_row"]
        assert isinstance(history, list)
        assert isinstance(skipped, int)
        above, at_level = state["above"], state["at_level"]
        assert isinstance(above, list)
        assert isinstance(at_level, int)
        self.history.clear()
        self.history.extend(history)
        self.skipped_in_a_row = skipped
        self._above.clear()
        self._above.extend(above)
        self._at_level = at_level

    def _level(self) -> Level | None:
        """None while there is nothing to measure a spike against."""
        if self.spec.loss_spike == "off" or len(self.history) < HISTORY_STEPS:
            return None
        # Not statistics.pstdev, which is exact and takes a hundred times as long.
        mean = math.fsum(self.history) / HISTORY_STEPS
        variance = math.fsum([(loss - mean) ** 2 for loss in self.history]) / HISTORY_STEPS
        return Level(mean, math.sqrt(variance))

    def _limit(self, level: Level) -> float:
        assert self.spec.loss_spike != "off"
        return level.mean + self.spec.loss_spike * level.spread

    def _is_plateau(self, loss: float, level: Level) -> bool:
        """Whether the losses above the limit, this one being the newest, stay where they are. Once
        for a whole history: what is on the rise again before that will not stay."""
        high = [*self._above, loss]
        if self._at_level < HISTORY_STEPS or len(high) < PLATEAU_STEPS:
            return False
        rise = statistics.fmean(high[-RISE_STEPS:]) - statistics.fmean(high[:RISE_STEPS])
        # A plateau may be noisier; the history's spread would count a rise it has learned from.
        return rise <= RISE_DEVIATIONS * max(_noise(self.history), _noise(high))

    def _move(self, level: Level, mean: float) -> None:
        """The history as if it had been at the plateau, with the spread it has."""
        moved = [loss - level.mean + mean for loss in self.history]
        self.history.clear()
        self.history.extend(moved)
        self._above.clear()
        self._at_level = 0


def _noise(losses: Iterable[float]) -> float:
    """About their standard deviation around whatever trend they have: so far are neighbours apart
    in the median."""
    return statistics.median(abs(after - before) for before, after in pairwise(losses))
