"""Throughput: tokens per second, and the share of the device's peak (MFU)."""

from __future__ import annotations

from headway.clock import Clock
from headway.plan.accelerators import find_device, mfu, why_no_mfu
from headway.plan.model_size import ModelSize, flops_per_token
from headway.spec.resolve import Resolved
from headway.train.device import name_of
from headway.train.feed import Feed
from headway.train.world import RankPlacement


class ThroughputMeter:
    """Times steps. Evaluations and saves are outside of `start` and `finish`."""

    def __init__(
        self, resolved: Resolved, size: ModelSize | None, placement: RankPlacement, clock: Clock
    ) -> None:
        run = resolved.run
        self.clock = clock
        self.tokens_per_step = resolved.tokens_per_step
        self.num_devices = 1
        """Number of workers at present."""
        self.precision = run.precision
        self.flops = flops_per_token(size, run.data.sequence_length) if size else None
        self.device_name = name_of(placement.device)
        self.device = find_device(self.device_name)
        self.started = 0.0
        self.waited = 0.0
        self.unprepared = 0.0

    def no_mfu_because(self) -> str | None:
        if self.flops is None:
            return "MFU is not given: the size of this type of model is unknown."
        if self.mfu(1.0) is None:
            return why_no_mfu(self.device_name, self.precision)
        return None

    def mfu(self, tokens_per_second: float) -> float | None:
        if self.flops is None:
            return None
        return mfu(self.flops, tokens_per_second, self.device, self.num_devices, self.precision)

    def start(self, feed: Feed) -> None:
        self.started = self.clock.monotonic()
        self.waited = feed.waited_seconds
        self.unprepared = feed.unprepared_seconds

    def finish(self, feed: Feed) -> dict[str, float]:
        """Figures of the step since `start`."""
        seconds = self.clock.monotonic() - self.started
        speed = self.tokens_per_step / seconds
        figures = {
            "seconds": round(seconds, 6),
            "data_seconds": round(feed.waited_seconds - self.waited, 6),
            "tokens_per_second": round(speed, 1),
        }
        if feed.unprepared_seconds > self.unprepared:
            figures["unprepared_seconds"] = round(feed.unprepared_seconds - self.unprepared, 6)
        share = self.mfu(speed)
        return figures if share is None else {**figures, "mfu": round(share, 4)}
