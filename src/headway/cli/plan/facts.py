"""A plan as data, under names that stay."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headway.cli.model_shape import UnknownShape

if TYPE_CHECKING:
    from headway.cli.plan.comparison import ComparedPlans
    from headway.cli.plan.figure_text import PlanSection
    from headway.cli.plan.run_plan import FleetPlan, PlanAnswer, RunPlan

VERSION = 1


def plan_facts(plan: RunPlan) -> dict[str, Any]:
    unknown = plan.workload if isinstance(plan.workload, UnknownShape) else None
    return {
        "version": VERSION,
        "run": plan.asked.title,
        "place": plan.asked.place.words,
        "model": section_facts(plan.model),
        "unknown": None if unknown is None else {"problem": unknown.problem, "hint": unknown.hint},
        "notes": list(plan.notes),
        "plans": [fleet_facts(one) for one in plan.fleets],
    }


def comparison_facts(found: ComparedPlans) -> dict[str, Any]:
    """The same, with the places of the cheapest and the fastest plan among them."""
    plans = found.plan.fleets
    places = {
        name: None if one is None else plans.index(one)
        for name, one in (("cheapest", found.cheapest), ("fastest", found.fastest))
    }
    return {**plan_facts(found.plan), **places}


def fleet_facts(plan: FleetPlan) -> dict[str, Any]:
    fleet, way = plan.fleet, plan.way
    return {
        "accelerators": f"{fleet.device.name if fleet.device else 'cpu'}:{fleet.devices_per_node}",
        "nodes": fleet.nodes,
        "devices": fleet.num_devices,
        "spot": fleet.spot_nodes > 0,
        "spot_nodes": fleet.spot_nodes,
        "layout": None
        if way is None
        else {
            "micro": way.workload.micro,
            "shard_devices": way.layout.shard_devices,
            "checkpoint_activations": way.layout.checkpoint_activations,
            "offload": way.layout.offloads,
        },
        "fits": answer_facts(plan.fits),
        "use": plan.use and answer_facts(plan.use),
        "budget": plan.budget and answer_facts(plan.budget),
        **{section.key: section_facts(section) for section in plan.sections},
        "changes": [{"options": one.options, "effect": one.effect} for one in plan.changes],
        "notes": [*([plan.target_change] if plan.target_change else []), *plan.notes],
    }


def answer_facts(answer: PlanAnswer) -> dict[str, str]:
    return {"verdict": answer.verdict, "words": answer.words}


def section_facts(section: PlanSection) -> dict[str, Any]:
    return {entry.key: asdict(entry.figure) for entry in section.entries}
