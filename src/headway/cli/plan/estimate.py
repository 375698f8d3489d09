"""A run's plan on each fleet that it may get: what the functions of `headway.plan` say, in the
order in which people ask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from headway.cli.output import short_count
from headway.cli.plan.figure_text import PlanEntry, shown
from headway.cli.plan.model_shape import UnknownShape, read_workload
from headway.memory_limits import byte_size
from headway.plan.batch_division import num_micro_batches, share_of
from headway.plan.figure import Figure
from headway.plan.memory_need import state_bytes
from headway.plan.workload import Layout, Workload
from headway.spec.resolve import LARGE_MODEL_PARAMETERS, copies_problem, whole_copies

if TYPE_CHECKING:
    from headway.cli.plan.asked import Asked
    from headway.plan.fleet import Fleet
    from headway.spec.run_file import RunFile

Verdict = Literal["yes", "maybe", "no", "unknown"]
"""Of a question whose answer should be yes."""


@dataclass(frozen=True)
class PlanSection:
    """Figures that belong together."""

    key: str
    title: str
    entries: tuple[PlanEntry, ...]


@dataclass(frozen=True)
class Answer:
    """To one of the questions that a plan is asked for."""

    verdict: Verdict
    words: str


@dataclass(frozen=True)
class FleetPlan:
    """The plan on one fleet."""

    fleet: Fleet
    fits: Answer
    sections: tuple[PlanSection, ...] = ()
    layout: Layout | None = None
    notes: tuple[str, ...] = ()
    """What to know, and what to change."""

    @property
    def is_refused(self) -> bool:
        return self.fits.verdict == "no"


@dataclass(frozen=True)
class RunPlan:
    asked: Asked
    workload: Workload | UnknownShape
    model: PlanSection
    """The same on every fleet."""
    fleets: tuple[FleetPlan, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return self.asked.place.notes


def plan_of(asked: Asked) -> RunPlan:
    workload = read_workload(asked.loaded)
    if isinstance(workload, UnknownShape):
        unknown = Answer("unknown", workload.problem)
        fleets = tuple(FleetPlan(fleet, unknown) for fleet in asked.place.fleets)
        return RunPlan(asked, workload, PlanSection("model", "Model", ()), fleets)
    fleets = tuple(fleet_plan(asked.run, workload, fleet) for fleet in asked.place.fleets)
    return RunPlan(asked, workload, model_section(workload), fleets)


def model_section(workload: Workload) -> PlanSection:
    size, length = workload.model.size, workload.sequence_length
    tokens = Figure.exact(
        workload.tokens_per_step, f"{workload.global_batch} sequences x {length} tokens"
    )
    entries = [
        PlanEntry(
            "parameters",
            "parameters",
            Figure.exact(size.parameters, f"counted from the shape of {workload.model.type}"),
            "count",
            f"{workload.model.type}, {size.num_layers} layers, {workload.precision}",
        ),
        PlanEntry(
            "flops_per_token",
            "FLOPs a token",
            Figure.exact(
                workload.flops_per_token,
                f"6 x {size.matmul_parameters:,} weights in matrix products + 12 x "
                f"{size.num_layers} layers x {size.attention_width} wide x {length} tokens",
            ),
            "flops",
            "forward and backward, nothing recomputed",
        ),
        PlanEntry(
            "tokens_per_step",
            "tokens a step",
            tokens,
            "count",
            f"{workload.global_batch} sequences of {length}",
        ),
    ]
    if workload.steps is not None:
        total = workload.steps * workload.tokens_per_step
        by = f"{workload.steps:,} steps x {workload.tokens_per_step:,} tokens"
        entries += [
            PlanEntry("steps", "steps", Figure.exact(workload.steps, "train_for"), "count"),
            PlanEntry("tokens", "tokens in all", Figure.exact(total, by), "count"),
        ]
    return PlanSection("model", "Model", tuple(entries))


def fleet_plan(run: RunFile, workload: Workload, fleet: Fleet) -> FleetPlan:
    if fleet.device is not None and workload.precision == "bf16" and not fleet.device.bf16_flops:
        words = f"the {fleet.device.name} has no bf16 units: --set precision=fp16"
        return FleetPlan(fleet, Answer("no", words))
    if problem := copies_problem(run, fleet.nodes):
        words = f"{problem}: --nodes {whole_copies(run, fleet.nodes)}, or --set shard=all"
        return FleetPlan(fleet, Answer("no", words))
    layout = _layout(run, workload, fleet)
    plan = FleetPlan(fleet, Answer("unknown", ""), layout=layout)
    plan = _with_memory(plan, workload)
    return replace(plan, notes=tuple(_notes(workload, fleet, layout)))


def _layout(run: RunFile, workload: Workload, fleet: Fleet) -> Layout:
    is_large = workload.model.size.parameters >= LARGE_MODEL_PARAMETERS
    unit, ranks = run.shard.unit, fleet.devices_per_node
    devices = 1
    if run.shard.is_wide:
        devices = ranks * (run.shard.num_nodes or fleet.nodes)
    elif unit == "node" or (unit == "auto" and is_large):
        devices = ranks
    offloads = run.memory.offload != "none"
    recomputes = run.memory.checkpoint_activations
    is_recomputed = is_large or offloads if recomputes == "auto" else recomputes
    return Layout(devices, is_recomputed, offloads)


def _with_memory(plan: FleetPlan, workload: Workload) -> FleetPlan:
    assert plan.layout is not None
    shards, size = plan.layout.shard_devices, workload.model.size
    needed = state_bytes(size.parameters, workload.precision, shards)
    state = Figure.exact(
        needed, f"{size.parameters:,} parameters of 16 or 18 bytes over {shards} devices"
    )
    entries = [PlanEntry("state", "state", state, "bytes", "weights, gradients, optimizer")]
    room = room_bytes(plan.fleet)
    section = PlanSection("memory", "Memory of each device", tuple(entries))
    if room is None:
        fits = Answer("unknown", f"{byte_size(needed)} of state; the memory there is not known")
    elif needed > room:
        words = f"{byte_size(needed)} of state alone on each device, which has {byte_size(room)}"
        fits = Answer("no", words)
    else:
        words = f"{byte_size(needed)} of state on each device, which has {byte_size(room)}"
        fits = Answer("maybe", f"{words}; activations are not counted yet")
    return replace(plan, fits=fits, sections=(*plan.sections, section))


def room_bytes(fleet: Fleet) -> float | None:
    """Memory of a device, or of a worker on the CPU."""
    if fleet.memory_bytes is not None:
        return fleet.memory_bytes
    return None if fleet.device is None else fleet.device.memory_gib * 2**30


def _notes(workload: Workload, fleet: Fleet, layout: Layout) -> list[str]:
    count = num_micro_batches(workload.global_batch, workload.micro)
    devices = fleet.num_devices
    if count < devices:
        most = max(1, workload.global_batch // devices)
        change = (
            f"in a new run, --set batch.micro={most} gives every device some"
            if num_micro_batches(workload.global_batch, most) >= devices
            else f"no more than {workload.global_batch} devices can help at this global batch"
        )
        return [
            f"{count} micro-batches of {workload.micro} for {devices} devices: "
            f"{devices - count} of them idle; {change}"
        ]
    passes = share_of(count, devices, min(layout.shard_devices, devices), 0).num_passes
    waste = 1 - count / (passes * devices)
    if waste >= 0.1:
        return [
            f"{count} micro-batches for {devices} devices: some compute {passes} a step and "
            f"others fewer, {shown(waste, 'share')} of the devices' time is idle"
        ]
    return []


def tokens_words(workload: Workload) -> str:
    """The length of the run, in a few words."""
    if workload.steps is None:
        return "as long as the data says"
    return f"{short_count(workload.steps * workload.tokens_per_step)} tokens"
