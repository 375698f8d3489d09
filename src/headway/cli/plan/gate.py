"""What `headway run` refuses and `headway check` says because of the plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.errors import CheckFailed, HeadwayError
from headway.plan.accelerators import find_device, most_memory_gib

if TYPE_CHECKING:
    from headway.cli.plan.run_plan import FleetPlan, RunPlan
    from headway.spec.load import Loaded

ANYWAY = "to run it all the same: --anyway"


def require_planned(
    loaded: Loaded,
    on: str | None,
    nodes: int | None,
    anyway: bool,
    has_begun: Callable[[], bool] = lambda: False,
) -> None:
    """Raises if the run does not fit or breaks its budget wherever it may land, unless `anyway` or
    it has begun: a plan is of the whole run, and does not know better than one that trains. Warns
    if only some of those places do. What cannot be planned has the benefit of the doubt."""
    from headway.cli.output import hint, warn

    plan = plan_for(loaded, on, nodes)
    if plan is None:
        return
    refused = [one for one in plan.fleets if _is_refused(plan, one)]
    may_refuse = len(refused) == len(plan.fleets) and not anyway and not has_begun()
    for one in refused:
        change = "; ".join([*one.change_words[:1], ANYWAY])
        if may_refuse:
            raise CheckFailed(refusal_words(plan, one), change)
        warn(refusal_words(plan, one))
        hint(*one.change_words[:1])


def _is_refused(plan: RunPlan, one: FleetPlan) -> bool:
    if one.fits.verdict == "no":
        return _is_too_large(plan, one)
    # Nobody keeps a budget on one's own machine, or pays for its devices.
    return one.is_refused and plan.asked.place.target is not None


def _is_too_large(plan: RunPlan, one: FleetPlan) -> bool:
    """Whether it is for any board of the name that was asked for: `A100` has 40 or 80 GB. A pod is
    as large as its target says."""
    if one.host is not None and one.host.verdict == "does not fit":
        return True
    wanted = plan.asked.run.resources.accelerators
    if wanted is None or one.fleet.device is None or one.peak is None:
        return True
    kinds = [choice.kind for choice in wanted.choices if not choice.is_cpu]
    rooms = [most_memory_gib(kind) for kind in kinds if find_device(kind) == one.fleet.device]
    return one.peak.low > max((room * 2**30 for room in rooms if room is not None), default=0.0)


def plan_for(
    loaded: Loaded, on: str | None, nodes: int | None, samples: int | None = None
) -> RunPlan | None:
    """None if nothing can be said about it. `samples` of an epoch, if they are known."""
    from headway.cli.plan.asked import Asked, place_for
    from headway.cli.plan.estimate import plan_of

    if loaded.run.command is not None:
        return None
    # What is wrong with a target or a device is refused elsewhere, with its position.
    with suppress(HeadwayError):
        changed, place = place_for(loaded, on, None if nodes is None else str(nodes), None)
        if place.is_substituted:
            return None
        return plan_of(Asked(changed, replace(place, notes=()), epoch_samples=samples))
    return None


def refusal_words(plan: RunPlan, one: FleetPlan) -> str:
    if one.fits.verdict == "no":
        return f"{plan.asked.title} does not fit on {one.fleet}: {one.fits.words}"
    if one.use is not None and one.use.verdict == "no":
        return f"{plan.asked.title} leaves devices idle on {one.fleet}: {one.use.words}"
    assert one.budget is not None
    return f"{plan.asked.title} is over its budget on {one.fleet}: {one.budget.words}"


def plan_line(plan: RunPlan) -> str | None:
    """Return the answers of a plan in one line, for `headway check`."""
    from headway.cli.plan.figure_text import ranged
    from headway.cli.plan.screen import BUDGET, FITS

    one = plan.fleets[0]
    if one.fits.verdict == "unknown":
        return None
    parts = [f"{FITS[one.fits.verdict]} on {one.fleet}: {one.fits.words}"]
    parts += [ranged(one.seconds, "seconds")] if one.seconds else []
    parts += [ranged(one.usd, "usd")] if one.usd else []
    if one.budget is not None and one.budget.verdict != "yes":
        parts.append(BUDGET[one.budget.verdict])
    return "; ".join(parts)
