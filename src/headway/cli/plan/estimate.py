"""A run's plan on each fleet that it may get: what the functions of `headway.plan` say, in the
order in which people ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.cli.epoch_samples import what_is_missing
from headway.cli.model_shape import UnknownShape, read_workload
from headway.cli.plan.cost_section import hourly_words, planned_cost
from headway.cli.plan.figure_text import PlanEntry, PlanSection, money, ranged, shown
from headway.cli.plan.goodput_section import run_time
from headway.cli.plan.memory_section import memory_section, memory_words
from headway.cli.plan.right_size import (
    MOST_IDLE,
    change_that_keeps_busy,
    idle_share,
    idle_words,
    long_run_words,
)
from headway.cli.plan.run_plan import FleetPlan, PlanAnswer, PlanChange, RunPlan, Verdict
from headway.cli.plan.time_section import time_section
from headway.errors import BadInput
from headway.plan.batch_division import num_micro_batches, share_of
from headway.plan.figure import Figure
from headway.plan.fit import (
    Change,
    changes_that_fit,
    cheaper_changes,
    chosen_way,
    copy_nodes,
)
from headway.plan.machines import POD_SHARE, find_machine
from headway.plan.memory_peak import memory_of
from headway.plan.step_time import StepTime, step_time
from headway.plan.workload import Layout, Workload
from headway.spec.resolve import copies_problem, whole_copies

if TYPE_CHECKING:
    from headway.cli.plan.asked import Asked
    from headway.plan.fleet import Fleet
    from headway.plan.host_memory import HostMemory
    from headway.plan.search import Way
    from headway.spec.run_file import BudgetConfig, RunFile

VERDICTS: Mapping[str | None, Verdict] = {
    "fits": "yes",
    "may not fit": "maybe",
    "does not fit": "no",
    None: "unknown",
}
"""Of a memory estimate."""
WORSE: tuple[Verdict, ...] = ("yes", "unknown", "maybe", "no")
NOT_MEASURED = (
    "how fast a CPU is, only steps say: headway run --set name=trial --set 'train_for=20 steps', "
    "then headway plan trial --set 'train_for=N steps'"
)


def plan_of(asked: Asked) -> RunPlan:
    workload = read_workload(asked.loaded, asked.epoch_samples)
    if isinstance(workload, UnknownShape):
        unknown = PlanAnswer("unknown", workload.problem)
        fleets = tuple(
            FleetPlan(fleet, unknown, notes=tuple(filter(None, [hourly_words(asked, fleet)])))
            for fleet in asked.place.fleets
        )
        return RunPlan(asked, workload, PlanSection("model", "Model", ()), fleets)
    fleets = tuple(fleet_plan(asked, workload, fleet) for fleet in asked.place.fleets)
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
            "forward and backward",
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
        samples = workload.epoch_samples
        reason = "train_for" + (f", {samples:,} sequences an epoch" if samples else "")
        entries += [
            PlanEntry("steps", "steps", Figure.exact(workload.steps, reason), "number"),
            PlanEntry("tokens", "tokens in all", Figure.exact(total, by), "count"),
        ]
    return PlanSection("model", "Model", tuple(entries))


def fleet_plan(asked: Asked, workload: Workload, fleet: Fleet) -> FleetPlan:
    plan = _figures(asked, workload, fleet)
    if plan.way is None:
        return plan

    def on(other: Fleet) -> FleetPlan:
        return _figures(asked, workload, other)

    kept = plan.changes if plan.fits.verdict == "yes" and not plan.is_refused else ()
    changes = (*_changes(plan, asked, workload), *kept)
    if plan.fits.verdict != "no" and fleet.device is not None:
        plan = _with_use(plan, plan.way)
    if plan.way is not None and plan.use is not None and plan.use.verdict == "no":
        found = change_that_keeps_busy(plan, plan.way, on)
        changes = (*([PlanChange(*found)] if found else []), *changes)
    return replace(plan, changes=changes, long_words=long_run_words(plan, on))


def _with_use(plan: FleetPlan, way: Way) -> FleetPlan:
    devices = plan.fleet.num_devices
    is_idle = idle_share(way, devices) > MOST_IDLE
    words = idle_words(way, devices) if is_idle else "all have work"
    return replace(plan, use=PlanAnswer("no" if is_idle else "yes", words))


def _figures(asked: Asked, workload: Workload, fleet: Fleet) -> FleetPlan:
    """Memory, time and cost on one fleet, without what would improve them."""
    run = asked.run
    if fleet.device is not None and workload.precision == "bf16" and not fleet.device.bf16_flops:
        words = f"the {fleet.device.name} has no bf16 units: --set precision=fp16"
        return FleetPlan(fleet, PlanAnswer("no", words))
    if problem := copies_problem(run.shard, fleet.nodes):
        words = f"{problem}: --nodes {whole_copies(run.shard, fleet.nodes)}, or --set shard=all"
        return FleetPlan(fleet, PlanAnswer("no", words))
    way = chosen_way(run, workload, fleet)
    plan = FleetPlan(fleet, PlanAnswer("unknown", ""), way=way)
    plan = _with_memory(plan, asked, way)
    plan = _with_time(plan, asked, way)
    # Idle devices of an accelerator are a verdict.
    idle = () if fleet.device is not None else _notes(way.workload, fleet, way.layout)
    return replace(plan, notes=(*_sharding_note(run, fleet, way.layout), *idle, *plan.notes))


def _changes(plan: FleetPlan, asked: Asked, workload: Workload) -> Iterator[PlanChange]:
    """Yield changes that make the run fit, or cheaper if it fits."""
    assert plan.way is not None
    if plan.fits.verdict in ("no", "maybe"):
        for change in changes_that_fit(asked.run, workload, plan.fleet, plan.way):
            flags = change.flags
            if asked.place.is_shape:
                flags = flags.replace("--set resources.accelerators=", "--on ")
            yield PlanChange(flags, _effect(change))
    if plan.fits.verdict == "yes" and plan.step is not None:
        for change in cheaper_changes(asked.run, workload, plan.fleet, plan.way):
            yield PlanChange(change.flags, _saving(plan, change))


def _saving(plan: FleetPlan, change: Change) -> str:
    """Return what a change on the same devices saves, and what is left with its range."""
    assert change.time_factor is not None
    in_a_new_run = "in a new run; " if change.is_new_run else ""
    words = [f"{in_a_new_run}{change.words}; {1 - change.time_factor:.0%} less time"]
    if plan.seconds is not None:
        words.append(ranged(plan.seconds.times(change.time_factor, ""), "seconds"))
    if plan.usd is not None:
        words.append(ranged(plan.usd.times(change.time_factor, ""), "usd"))
    return ", ".join(words)


def _effect(change: Change) -> str:
    in_a_new_run = "in a new run; " if change.is_new_run else ""
    if change.time_factor is None:
        return f"{in_a_new_run}{change.words}"
    gain = 1 - change.time_factor
    price = "as fast"
    if abs(gain) >= 0.02:
        price = f"steps take {abs(gain):.0%} {'less' if gain > 0 else 'longer'}"
    return f"{in_a_new_run}{change.words}; {price}"


def _with_time(plan: FleetPlan, asked: Asked, way: Way) -> FleetPlan:
    workload, layout = way.workload, way.layout
    try:
        step = _step_time(plan.fleet, asked, workload, layout)
    except BadInput as error:
        note = error.message + (f": {error.hint}" if error.hint else "")
        return replace(plan, notes=(*plan.notes, note))
    if asked.directory is not None and (step is None or step.seconds.basis != "measured"):
        words = f"{asked.title} has not recorded enough steps of this batch and layout on "
        plan = replace(plan, notes=(*plan.notes, f"{words}{plan.fleet}"))
    if step is None:
        return replace(plan, notes=(*plan.notes, NOT_MEASURED))
    plan = replace(
        plan,
        step=step.seconds,
        sections=(*plan.sections, time_section(step)),
        notes=(*plan.notes, *(note for note in step.notes if "micro-batches" not in note)),
    )
    time = run_time(asked, workload, plan.fleet, layout, step.seconds)
    if time is None:
        return replace(plan, notes=(*plan.notes, what_is_missing(asked.loaded)))
    changes = () if time.change is None else (PlanChange(*time.change),)
    sections = (*plan.sections, time.section)
    plan = replace(plan, seconds=time.seconds, sections=sections, changes=changes)
    return _with_cost(plan, asked, workload, time.seconds)


def _step_time(fleet: Fleet, asked: Asked, workload: Workload, layout: Layout) -> StepTime | None:
    """As the run that is asked for has recorded it, else estimated."""
    recorded = asked.recorded
    found = None if recorded is None else recorded.step_time(workload, fleet, layout)
    return found or step_time(workload, fleet, layout)


def _with_cost(plan: FleetPlan, asked: Asked, workload: Workload, seconds: Figure) -> FleetPlan:
    found = planned_cost(asked, workload, plan.fleet, seconds)
    notes = plan.notes
    if found.how_to_price is not None and not asked.place.is_here:
        notes = (*notes, f"no price is known; {found.how_to_price}")
    if found.price is not None and found.price.published:
        notes = (*notes, f"priced by {found.price.pages}; set yours in a target: prices")
    return replace(
        plan,
        usd=found.cost.usd,
        sections=(*plan.sections, found.section),
        notes=notes,
        # Prices of public pages are nobody's bill.
        budget=_budget(
            asked.run.budget,
            seconds,
            None if found.price is None or found.price.published else found.cost.usd,
        ),
    )


def _budget(budget: BudgetConfig, seconds: Figure, usd: Figure | None) -> PlanAnswer | None:
    """The worse of both answers."""
    answers = []
    if budget.hours is not None:
        limit = Figure.exact(budget.hours * 3600, "")
        words = f"{ranged(seconds, 'seconds')}, and budget.hours is {budget.hours:g}"
        answers.append(PlanAnswer(_within(seconds, limit.value), words))
    if budget.usd is not None and usd is not None:
        words = f"{ranged(usd, 'usd')}, and budget.usd is {money(budget.usd)}"
        answers.append(PlanAnswer(_within(usd, budget.usd), words))
    return max(answers, key=lambda answer: WORSE.index(answer.verdict), default=None)


def _within(figure: Figure, limit: float) -> Verdict:
    return "no" if figure.value > limit else "maybe" if figure.high > limit else "yes"


def _with_memory(plan: FleetPlan, asked: Asked, way: Way) -> FleetPlan:
    memory = memory_of(way.workload, plan.fleet, way.layout)
    host = memory.host
    return replace(
        plan,
        fits=PlanAnswer(VERDICTS[memory.verdict], memory_words(memory, plan.fleet)),
        peak=memory.peak,
        room=memory.room,
        host=host,
        sections=(*plan.sections, memory_section(memory, plan.fleet)),
        target_change=_larger_pods(host, asked) if memory.device_verdict != "does not fit" else "",
    )


def _larger_pods(host: HostMemory, asked: Asked) -> str:
    """What to write in the target so that its pods are large enough, if its machines are."""
    target = asked.place.target
    if target is None or host.verdict in ("fits", None):
        return ""
    amount = -(-int(host.need.high) // 2**30)
    machine = find_machine(target.target.machine) if target.target.machine is not None else None
    has = machine.memory_mib if machine is not None else None
    if has is not None and amount * 1024 > has * POD_SHARE:
        return ""
    return f"in target {target.name}, pod: {{resources: {{memory: {amount}Gi}}}}"


def _sharding_note(run: RunFile, fleet: Fleet, layout: Layout) -> list[str]:
    nodes = copy_nodes(layout, fleet.devices_per_node)
    if run.shard.unit != "auto" or nodes == 1:
        return []
    return [f"no node holds a copy of the model: shard: auto divides it over {nodes} nodes"]


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
