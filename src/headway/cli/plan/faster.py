"""Changes that make a run that fits faster, by the same estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.plan.step_time import step_time

if TYPE_CHECKING:
    from headway.plan.fleet import Fleet
    from headway.plan.workload import Layout, Workload

LEAST_GAIN = 0.03
"""A change that gains less is not worth its words."""


def faster_changes(
    workload: Workload,
    fleet: Fleet,
    layout: Layout,
    fits: Callable[[Workload, Layout], bool],
) -> Iterator[tuple[str, str]]:
    """Options of the command, and what they gain; the largest gain first."""
    now = step_time(workload, fleet, layout)
    if now is None:
        return
    found = []
    for options, other, divided in _candidates(workload, layout):
        then = step_time(other, fleet, divided)
        gain = 1 - then.seconds.value / now.seconds.value if then is not None else 0.0
        if gain >= LEAST_GAIN and fits(other, divided):
            found.append((gain, options))
    for gain, options in sorted(found, reverse=True):
        yield options, f"{gain:.0%} less time, and it still fits"


def _candidates(workload: Workload, layout: Layout) -> Iterator[tuple[str, Workload, Layout]]:
    if layout.recomputed_blocks:
        options = "--set memory.checkpoint_activations=false"
        yield options, workload, replace(layout, recomputed_blocks=0, offloads=False)
    if not workload.compiles and not layout.offloads:
        yield "--set memory.compile=true", replace(workload, compiles=True), layout
    if layout.shard_devices > 1:
        yield "--set shard=none", workload, replace(layout, shard_devices=1)
