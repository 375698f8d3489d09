"""The interval between checkpoints that loses least time: what `checkpoint.every: auto` takes.

A save costs the seconds that training is held, every interval; an interruption costs, on average,
half an interval of steps that are done again. Young (1974, "A first order approximation to the
optimum checkpoint interval") balances the two to the first order, Daly (2006, "A higher order
estimate of the optimum checkpoint interval for restart dumps") also where interruptions are so
frequent that they strike during a save or a recovery.

In a live run the others have the state when a node is lost, and nothing is done again. There a
checkpoint only helps against the loss of all copies at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.plan.figure import Figure, combined
from headway.plan.interruptions import Placement
from headway.plan.memory_need import CHECKPOINT_BYTES

DEFAULT_SECONDS = 600.0
"""Where the cost of a save is not known, and without `auto`."""
LEAST_SECONDS = 60.0
"""More often, the requests of a save and the removal of old checkpoints would count."""
MOST_SECONDS = 3600.0
"""Checkpoints also serve people: to evaluate, fork or continue from. Beyond an hour there is
next to nothing left to gain: a save of a second in an hour costs 0.03 %."""
CPU_COPY = Figure(
    8.9e9, 8.3e9, 9.3e9, "measured", "1.06 GB copied in 0.12 s (bench-save, 2026-11-15)"
)
"""Bytes a second that a worker on the CPU copies while training is held."""
CPU_WRITING_SHARE = Figure(
    1.55, 0.0, 2.35, "measured", "2.9 % of a minute for 1.06 GB on 2 cores (bench-save, 2026-11-15)"
)
"""Seconds of training that writing a gigabyte takes from workers on the same cores."""
GPU_COPY = Figure(
    10e9, 5e9, 25e9, "assumed", "10 GB/s from a GPU to the host's memory: assumed, never measured"
)
LOCAL_WRITE = Figure(0.48e9, 0.4e9, 0.64e9, "measured", "1.06 GB in 2.2 s (bench-save, 2026-11-15)")
REMOTE_WRITE = Figure(
    1e9, 0.2e9, 5e9, "assumed", "1 GB/s from a node to the storage: assumed, never measured"
)


@dataclass(frozen=True)
class SaveCost:
    """Of one checkpoint."""

    held_seconds: Figure
    """Training time that it costs: the copy, and on CPUs what writing takes from their cores."""
    write_seconds: Figure
    """From the copy until the checkpoint counts. Training continues meanwhile. Reading it back is
    assumed to be as fast."""


def save_cost(parameters: int, place: Placement, *, is_remote: bool) -> SaveCost:
    """`is_remote`: whether runs are kept elsewhere than on a disk of the machine."""
    num_bytes, writers, nodes = parameters * CHECKPOINT_BYTES, place.writers, place.writing_nodes
    share = num_bytes / writers
    size = f"{num_bytes / 1e9:.3g} GB" + (f" by {writers} workers" if writers > 1 else "")
    copy = GPU_COPY if place.on_gpu else CPU_COPY
    inputs = {"copy": copy} | ({} if place.on_gpu else {"writing": CPU_WRITING_SHARE})
    held = combined(
        lambda copy, writing=0.0: share / copy + writing * num_bytes / 1e9,
        inputs,
        f"{size}: {'; '.join(one.reason for one in inputs.values())}",
    )
    speed = REMOTE_WRITE if is_remote else LOCAL_WRITE
    write = combined(
        lambda speed: num_bytes / speed / nodes,
        {"speed": speed},
        f"{num_bytes / 1e9:.3g} GB by {_nodes(nodes)}: {speed.reason}",
    )
    return SaveCost(held, write)


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count > 1 else ''}"


def young_interval(save_seconds: float, mean_seconds: float) -> float:
    """Seconds of training between two saves. `mean_seconds`: between two interruptions."""
    return math.sqrt(2 * save_seconds * mean_seconds)


def daly_interval(save_seconds: float, mean_seconds: float) -> float:
    """The same to a higher order: equation 37 of Daly's. Beyond a save of twice the time between
    interruptions nothing helps."""
    if save_seconds >= 2 * mean_seconds:
        return mean_seconds
    ratio = save_seconds / (2 * mean_seconds)
    series = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return young_interval(save_seconds, mean_seconds) * series - save_seconds


def expected_stretch(
    every_seconds: float, save_seconds: float, mean_seconds: float, recovery_seconds: float
) -> float:
    """Time that a second of training takes with saves, with interruptions by chance (a Poisson
    process), and with the recoveries and repeated steps that follow; those may be interrupted,
    too. Equation 20 of Daly's."""
    segment = (every_seconds + save_seconds) / mean_seconds
    recovery = recovery_seconds / mean_seconds
    if segment + recovery > 500:  # beyond what a float holds: it never gets done
        return math.inf
    return mean_seconds * math.exp(recovery) * math.expm1(segment) / every_seconds


def chosen_interval(cost: SaveCost | None, rewinds_per_hour: Figure) -> Figure:
    """Return what `checkpoint.every: auto` takes: a round number of seconds. A function of its
    arguments alone, so that all nodes and all commands find the same. `cost`: None if the size of
    the model is not known."""
    if cost is None:
        reason = "10min: the size of the model is not known before it is built"
        return Figure.exact(DEFAULT_SECONDS, reason, "assumed")

    least = max(LEAST_SECONDS, 2 * cost.write_seconds.value)
    most = max(least, MOST_SECONDS)

    def interval(held: float, rewinds: float) -> float:
        return min(most, max(least, daly_interval(held, 3600 / rewinds)))

    inputs = {"held": cost.held_seconds, "rewinds": rewinds_per_hour}
    exact = combined(interval, inputs, "")
    seconds = rounded(exact.value)
    reason = (
        f"a save holds training for {seconds_text(cost.held_seconds.value)}; back to a checkpoint "
        f"every {seconds_text(3600 / rewinds_per_hour.value)} ({rewinds_per_hour.reason}); Daly "
        f"2006{_bound(exact.value, least, most)}"
    )
    low, high = max(least, min(exact.low, seconds)), min(most, max(exact.high, seconds))
    return Figure(seconds, low, high, exact.basis, reason)


def _bound(seconds: float, least: float, most: float) -> str:
    if seconds >= most:
        return f", at most {seconds_text(most)}"
    return f", at least {seconds_text(least)}" if seconds <= least else ""


def rounded(seconds: float) -> float:
    """To ten seconds below ten minutes, else to a minute: people read it."""
    unit = 10.0 if seconds < 600 else 60.0
    return max(unit, round(seconds / unit) * unit)


def seconds_text(seconds: float) -> str:
    for unit, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.3g} {word}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
