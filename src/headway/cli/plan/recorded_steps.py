"""The time of a step as a run has recorded it, which `headway plan RUN` takes in place of an
estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.model_shape import read_workload
from headway.plan.accelerators import find_device
from headway.plan.step_time import measured_step_time
from headway.plan.workload import Layout, Workload, layout_of
from headway.report.planned import seconds_of_steps
from headway.spec.load import Loaded
from headway.spec.located_yaml import Located
from headway.spec.resolve import begun_of
from headway.state.status import newest_event
from headway.state.time_left import WARMUP_STEPS

if TYPE_CHECKING:
    from headway.plan.fleet import Fleet
    from headway.plan.step_time import StepTime
    from headway.state.run_directory import RunDirectory

LEAST_STEPS = 5
"""Fewer say too little of the steps that follow."""


@dataclass(frozen=True)
class RecordedSteps:
    """Steps of a run since its newest start or change of members, and all that their time depends
    on."""

    run: str
    seconds: Sequence[float]
    """Of each step, without those that warm up."""
    workload: Workload
    layout: Layout
    ranks_per_node: int
    workers: int
    device: str
    """Name of the workers' device, as the driver gives it."""
    is_cpu: bool

    def step_time(self, workload: Workload, fleet: Fleet, layout: Layout) -> StepTime | None:
        """None if the steps of this workload are others, or on other devices."""
        device = fleet.device
        is_same = (
            _of_a_step(workload) == self.workload
            and layout == self.layout
            and (fleet.devices_per_node, fleet.num_devices) == (self.ranks_per_node, self.workers)
            and (device is None) == self.is_cpu
            and (device is None or find_device(device.name) == find_device(self.device))
        )
        if not is_same:
            return None
        return measured_step_time(workload, fleet, layout, self.seconds, f"run {self.run}")


def recorded_steps(directory: RunDirectory) -> RecordedSteps | None:
    """None if there are too few of them, or if the shape of the model is not known."""
    resolved, events = directory.read_spec(), directory.history()
    begin = newest_event(events, "started", "changed")
    started = newest_event(events, "started")
    if begin is None or started is None:
        return None
    seconds = seconds_of_steps(directory.steps(), begin["time"])[WARMUP_STEPS:]
    begun = begun_of(resolved)
    workload = read_workload(Loaded(resolved.run, Path(resolved.folder), Located({}), begun=begun))
    if len(seconds) < LEAST_STEPS or not isinstance(workload, Workload):
        return None
    return RecordedSteps(
        run=directory.name,
        seconds=seconds,
        workload=_of_a_step(workload),
        layout=layout_of(resolved),
        ranks_per_node=resolved.ranks_per_node,
        workers=begin["workers"],
        device=started["device"],
        is_cpu=resolved.device == "cpu",
    )


def _of_a_step(workload: Workload) -> Workload:
    """The workload without what says how many steps there are."""
    return replace(workload, steps=None, epoch_samples=None, is_micro_open=False)
