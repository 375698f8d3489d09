"""Expected interruptions of a run, and what is left of its time: goodput, as `status` counts it.

Rates are of one node and one hour: the target's own (`interruptions`), else a default that names
where it comes from. Recoveries are those that were measured in this project (bench/results); they
were measured on CPUs, and what a GPU adds is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from headway.plan.figure import Figure, combined
from headway.plan.save_interval import expected_stretch

Mode = Literal["live", "restart"]

# 419 unexpected interruptions in 54 days on 16,384 H100s ("The Llama 3 Herd of Models", 2024, table
# 5), by device, since most were of a GPU or its memory. Half and six times as many: other clusters
# are younger, older or not watched over by the same people.
_LLAMA_3 = 419 / (54 * 24 * 16384)
DEVICE_FAILURES_PER_HOUR = Figure(
    _LLAMA_3,
    _LLAMA_3 / 2,
    _LLAMA_3 * 6,
    "published",
    "419 interruptions in 54 days of 16,384 H100s (Llama 3, 2024)",
)
CPU_FAILURES_PER_HOUR = Figure(
    8 * _LLAMA_3,
    _LLAMA_3,
    48 * _LLAMA_3,
    "assumed",
    "as often as a node of 8 H100s (Llama 3, 2024)",
)
# 600 preemptions in 3,066 node-hours: github.com/skypilot-org/spot-traces at 221da1a, the traces
# preemption/4-node/aws-08-03-2023, of four p3.2xlarge in each of three zones for two weeks. From 75
# in 1,250 hours (us-east-2a) to 195 in 420 (us-east-1f). No cloud publishes a rate by the hour.
SPOT_PREEMPTIONS_PER_HOUR = Figure(
    600 / 3066,
    75 / 1250,
    195 / 420,
    "assumed",
    "600 preemptions in 3,066 hours of V100 spot nodes (AWS, August 2023, skypilot-org/spot-traces)"
    "; set it: interruptions in the target",
)

OUTAGE_HOURS = Figure(
    30 * 24,
    7 * 24,
    180 * 24,
    "assumed",
    "everything at once (power, network, storage, a mistake): assumed once in 30 days",
)
GPU_START_SECONDS = Figure(
    30.0, 5.0, 90.0, "assumed", "30 s for CUDA, NCCL and first steps: never measured here"
)
MACHINE_SECONDS = Figure(
    300.0, 20.0, 900.0, "assumed", "5 min until a machine in place of the lost one is there"
)
OTHER_SHARE = Figure(
    0.010,
    0.005,
    0.02,
    "measured",
    "1 % for data and between steps (bench-goodput, 2026-11-15; cluster-storm, 2026-11-16)",
)


@dataclass(frozen=True)
class Recovery:
    """What one lost node costs the run, in seconds, as it was measured: without the step in flight,
    and for models that load in no time."""

    pause: Figure
    """From the loss until the others train, beyond the step."""
    join: Figure
    """Without steps when its replacement joins, beyond the step."""
    replaced: Figure
    """From the loss until the replacement trains, on a machine that is there."""
    alone: Figure
    """From the loss until training continues if no other node can: until it is replaced."""
    start: Figure
    """From a launch to the first step."""


def _measured(value: float, low: float, high: float, source: str) -> Figure:
    return Figure(value, low, high, "measured", source)


PODS: Mapping[Mode, Recovery] = {
    "live": Recovery(
        pause=_measured(
            0.7,
            0.3,
            1.1,
            "0.9 s to the next step, steps of 0.25 s (bench-plugs, 2026-11-17, cf79769)",
        ),
        join=_measured(
            0.15, 0.1, 0.2, "0.27 s, steps of 0.13 s (bench-losses, 2026-11-15, 34a975b)"
        ),
        replaced=_measured(17.3, 16.0, 18.2, "17.3 s (bench-plugs, 2026-11-17, cf79769)"),
        alone=_measured(
            26.0, 26.0, 40.0, "26 s, a node alone (tests/cluster, 2026-11-17, daad0ac)"
        ),
        start=_measured(10.9, 9.6, 19.1, "11 s (cluster-storm, 2026-11-16, d050688)"),
    ),
    "restart": Recovery(
        pause=_measured(
            1.5, 1.5, 10.8, "1.75 s to the next step (tests/cluster, 2026-11-17, daad0ac)"
        ),
        join=_measured(
            1.5, 0.6, 3.0, "as long as after a loss (tests/cluster, 2026-11-17, daad0ac)"
        ),
        replaced=_measured(21.9, 21.9, 41.3, "21.9 s (tests/cluster, 2026-11-17, daad0ac)"),
        alone=_measured(
            26.0, 26.0, 40.0, "26 s, a node alone (tests/cluster, 2026-11-17, daad0ac)"
        ),
        start=_measured(10.9, 9.6, 19.1, "11 s (cluster-storm, 2026-11-16, d050688)"),
    ),
}
"""Machines of the test cluster that lose power without a word."""
HERE: Mapping[Mode, Recovery] = {
    "live": Recovery(
        pause=_measured(
            0.08, 0.05, 1.1, "0.19 s to the next step, steps of 0.11 s (bench-losses, 2026-11-15)"
        ),
        join=_measured(
            0.15, 0.1, 0.2, "0.27 s, steps of 0.13 s (bench-losses, 2026-11-15, 34a975b)"
        ),
        replaced=_measured(1.4, 1.4, 1.7, "1.4 s (bench-goodput, 2026-11-15, bb0738e)"),
        alone=_measured(0.9, 0.8, 1.4, "1.23 s, steps of 0.33 s (bench-losses, 2026-11-15)"),
        start=_measured(5.8, 5.5, 15.0, "5.8 s (bench-goodput, 2026-11-15, bb0738e)"),
    ),
    "restart": Recovery(
        pause=_measured(
            0.58,
            0.3,
            1.2,
            "0.75 s to the next step, steps of 0.175 s (bench-restart, 2026-11-17, 2042e60)",
        ),
        join=_measured(0.0, 0.0, 0.0, "the lost worker is back with the others"),
        replaced=_measured(0.75, 0.47, 1.4, "0.75 s (bench-restart, 2026-11-17, 2042e60)"),
        alone=_measured(0.9, 0.8, 1.4, "1.23 s, steps of 0.33 s (bench-losses, 2026-11-15)"),
        start=_measured(5.8, 5.5, 15.0, "5.8 s (bench-goodput, 2026-11-15, bb0738e)"),
    ),
}
"""Worker processes of one machine that are killed."""


@dataclass(frozen=True)
class LossRates:
    """Interruptions of one node in one hour."""

    spot: Figure
    on_demand: Figure


def node_rates(
    devices_per_node: int,
    *,
    on_gpu: bool,
    spot: float | None = None,
    on_demand: float | None = None,
) -> LossRates:
    """`spot`, `on_demand`: the target's own, by the hour."""
    failures = CPU_FAILURES_PER_HOUR
    if on_gpu:
        of_one = DEVICE_FAILURES_PER_HOUR
        failures = of_one.times(devices_per_node, of_one.reason)
    given = "interruptions of the target"
    return LossRates(
        spot=SPOT_PREEMPTIONS_PER_HOUR if spot is None else Figure.exact(spot, given, "given"),
        on_demand=failures if on_demand is None else Figure.exact(on_demand, given, "given"),
    )


@dataclass(frozen=True)
class Placement:
    """How many nodes can be lost, of which kind, and what is left then."""

    mode: Mode
    nodes: int
    spot_nodes: int
    copies: int
    """Copies of the model that are lost one by one: in a live run each holds the state."""
    trains_with_fewer: bool
    """Whether the others train on until the lost node is replaced."""
    on_gpu: bool
    on_pods: bool
    """Whether nodes are pods of a cluster; else processes of this machine."""

    def interruptions_per_hour(self, rates: LossRates) -> Figure:
        """Of the whole run."""
        others = self.nodes - self.spot_nodes
        inputs, words = {}, []
        if self.spot_nodes:
            inputs["spot"] = rates.spot
            words.append(f"{_nodes(self.spot_nodes, 'spot ')}, {rates.spot.reason}")
        if others:
            inputs["on_demand"] = rates.on_demand
            words.append(f"{_nodes(others, '')}, {rates.on_demand.reason}")
        return combined(
            lambda spot=0.0, on_demand=0.0: self.spot_nodes * spot + others * on_demand,
            inputs,
            "; ".join(words),
        )

    @property
    def recovery(self) -> Recovery:
        return (PODS if self.on_pods else HERE)[self.mode]


def _nodes(count: int, kind: str) -> str:
    return f"{count} {kind}node{'s' if count > 1 else ''}"


def rewinds_per_hour(place: Placement, rates: LossRates) -> Figure:
    """Interruptions after which the run goes back to a checkpoint."""
    if place.mode == "restart" or place.copies == 1:
        nodes = place.interruptions_per_hour(rates)
        return combined(
            lambda nodes, outage: nodes + 1 / outage,
            {"nodes": nodes, "outage": OUTAGE_HOURS},
            f"{nodes.reason}; {OUTAGE_HOURS.reason}",
        )
    return combined(
        lambda outage: 1 / outage,
        {"outage": OUTAGE_HOURS},
        f"a lost node costs no step: {place.copies} copies hold the state; {OUTAGE_HOURS.reason}",
    )


@dataclass(frozen=True)
class RunTimes:
    """What a goodput is made of besides interruptions."""

    training_seconds: float
    """All steps together, undisturbed."""
    step_seconds: float
    save_every_seconds: float
    save_held_seconds: Figure
    save_write_seconds: Figure
    load_seconds: Figure
    """To read a checkpoint."""
    evaluation_share: float = 0.0
    """Time of evaluations, over that of steps."""
    start_seconds: Figure | None = None
    """From the launch to the first step, if it was measured."""
    other_share: Figure = OTHER_SHARE
    """Of the time between starts, saves and interruptions: waiting for data, and the like."""


@dataclass(frozen=True)
class ExpectedGoodput:
    goodput: Figure
    """Time of steps that count over all time, as `headway status` shows it afterwards."""
    capacity: Figure
    """Nodes that are there on average, over those that there should be. With fewer, each step takes
    longer; goodput does not show it."""
    interruptions_per_hour: Figure
    interruptions: Figure
    """In the whole run."""
    lost_seconds: Mapping[str, float]
    """Of the whole run, by cause, in the words of `headway status` where it has one."""

    def wall_seconds(self, training_seconds: float) -> Figure:
        """All of the time that the run takes. `training_seconds`: of its steps, undisturbed."""
        return combined(
            lambda goodput, capacity: training_seconds / (goodput * capacity),
            {"goodput": self.goodput, "capacity": self.capacity},
            f"{self.goodput.value:.1%} of the time in steps that count, with "
            f"{self.capacity.value:.1%} of the nodes on average",
        )


def evaluation_share(sequences: int, every_steps: int, global_batch: int) -> float:
    """Time of evaluations over that of steps: a forward pass is a third of a step."""
    return sequences / 3 / (every_steps * global_batch)


def expected_goodput(place: Placement, rates: LossRates, times: RunTimes) -> ExpectedGoodput:
    rate, recovery = place.interruptions_per_hour(rates), place.recovery
    inputs = {
        "rate": rate,
        "pause": recovery.pause if place.trains_with_fewer else recovery.alone,
        "join": recovery.join,
        "start": times.start_seconds or recovery.start,
        "held": times.save_held_seconds,
        "write": times.save_write_seconds,
        "load": times.load_seconds,
        "other": times.other_share,
    }
    if place.on_gpu:
        inputs["gpu"] = GPU_START_SECONDS
    is_replaced_later = place.on_pods and not place.trains_with_fewer
    if is_replaced_later:
        inputs["machine"] = MACHINE_SECONDS

    def ratio(**values: float) -> float:
        total = sum(_lost(place, times, **values).values()) + times.training_seconds
        return times.training_seconds / total

    lost = _lost(place, times, **{name: figure.value for name, figure in inputs.items()})
    total = times.training_seconds + sum(lost.values())
    most = sorted((cause for cause in lost if lost[cause] > 0), key=lambda cause: -lost[cause])[:3]
    largest = ", ".join(f"{lost[cause] / total:.1%} {cause}" for cause in most)
    if math.isinf(total):
        largest = "all steps by " + " and ".join(one for one in most if math.isinf(lost[one]))
    return ExpectedGoodput(
        goodput=_share(
            combined(ratio, inputs, f"{place.mode}: lost are {largest} ({rate.reason})")
        ),
        capacity=_capacity(place, rates),
        interruptions_per_hour=rate,
        interruptions=rate.times(total / 3600, f"in {total / 3600:.3g} h: {rate.reason}"),
        lost_seconds=lost,
    )


def _capacity(place: Placement, rates: LossRates) -> Figure:
    if not place.trains_with_fewer or not place.on_pods:
        return Figure.exact(1.0, "the run waits for a replacement, or has it at once")
    of_one = place.interruptions_per_hour(rates).times(1 / place.nodes, "")
    there = place.recovery.replaced
    away = combined(
        lambda rate, there, machine: 1 / (1 + rate * (there + machine) / 3600),
        {"rate": of_one, "there": there, "machine": MACHINE_SECONDS},
        f"a lost node is away for {MACHINE_SECONDS.value + there.value:.0f} s: {there.reason}; "
        f"{MACHINE_SECONDS.reason}",
    )
    return _share(away)


def _share(figure: Figure) -> Figure:
    """Of a whole: independent errors that are added up know nothing of that."""
    return replace(figure, low=max(0.0, figure.low), high=min(1.0, figure.high))


def _lost(
    place: Placement,
    times: RunTimes,
    *,
    rate: float,
    pause: float,
    join: float,
    start: float,
    held: float,
    write: float,
    load: float,
    other: float,
    gpu: float = 0.0,
    machine: float = 0.0,
) -> dict[str, float]:
    """Seconds by cause over the whole run. `rate` by the hour, `other` as a share, the rest in
    seconds."""
    training = times.training_seconds
    evaluation = training * times.evaluation_share
    others = (training + evaluation) * other / (1 - other)
    busy = training + evaluation + others
    saving = busy * held / times.save_every_seconds
    found = {
        "start": start + gpu,
        "evaluation": evaluation,
        "data and other": others,
        "saving": saving,
    }
    restart = pause + machine + gpu + load
    if place.mode == "live" and place.trains_with_fewer:
        # The step in flight is discarded, on average half of it.
        cost = pause + join + times.step_seconds / 2
        found["changes"] = (busy + saving) * _of_each_second(rate, cost)
        return found
    mean = 3600 / rate if rate else float("inf")
    if mean == float("inf"):
        return found
    # A checkpoint counts once it is written, so what is lost begins that much earlier.
    stretch = expected_stretch(times.save_every_seconds, held, mean, restart + write)
    with_losses = busy * stretch
    interruptions = with_losses / mean
    found["restart"] = interruptions * restart
    found["redone"] = max(0.0, with_losses - (busy + saving) - found["restart"])
    if place.trains_with_fewer and place.on_pods:  # here it is back with the others
        # The replacement joins as planned: all save, and restart together.
        found["restart"] += interruptions * (join + held + write + load + gpu)
    return found


def _of_each_second(rate: float, cost: float) -> float:
    """Seconds lost for each second of work, at `rate` interruptions an hour of all time."""
    share = min(0.999, rate / 3600 * cost)
    return share / (1 - share)
