"""Steps that must not be learned from: non-finite ones and loss spikes."""

from __future__ import annotations

import math
import statistics
from collections import deque

from headway.errors import RunFailed
from headway.spec.run import Guard

HISTORY_STEPS = 128
"""Losses a spike is measured against; until there are so many, nothing counts as one."""


class LossGuard:
    """Decides from reduced values only, so every worker decides the same. Saved and restored."""

    def __init__(self, spec: Guard) -> None:
        self.spec = spec
        self.history: deque[float] = deque(maxlen=HISTORY_STEPS)
        self.skipped_in_a_row = 0

    def verdict(self, loss: float, grad_norm: float) -> str | None:
        """Why this step must be skipped, or None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(grad_norm):
            return f"the gradient norm is {grad_norm}"
        if self.spec.loss_spike != "off" and len(self.history) == HISTORY_STEPS:
            mean, spread = statistics.fmean(self.history), statistics.pstdev(self.history)
            limit = mean + self.spec.loss_spike * spread
            if loss > limit:
                return f"the loss spiked to {loss:.4f}, above {limit:.4f}"
        return None

    def record(self, loss: float, reason: str | None) -> None:
        """Takes note of a step's verdict."""
        if reason is None:
            self.history.append(loss)
            self.skipped_in_a_row = 0
        else:
            self.skipped_in_a_row += 1

    def require_progress(self, step: int, reason: str | None) -> None:
        """Raises RunFailed when too many steps in a row were skipped."""
        if self.skipped_in_a_row >= self.spec.stop_after:
            raise RunFailed(
                f"{self.skipped_in_a_row} steps in a row could not be learned from; at step "
                f"{step} {reason}",
                "lower optimizer.lr, lengthen schedule.warmup, or look at the data of these steps",
            )

    def state(self) -> dict[str, object]:
        return {"history": list(self.history), "skipped_in_a_row": self.skipped_in_a_row}

    def restore(self, state: dict[str, object]) -> None:
        history, skipped = state["history"], state["skipped_in_a_row"]
        assert isinstance(history, list)
        assert isinstance(skipped, int)
        self.history.clear()
        self.history.extend(history)
        self.skipped_in_a_row = skipped
