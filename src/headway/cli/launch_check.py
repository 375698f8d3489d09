"""`headway run --on` refuses what the target cannot take, before anything is prepared or uploaded
for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.cli.output import hint, warn
from headway.cli.target_sets import preparing_objects
from headway.errors import SpecError
from headway.launch.launch_gate import LaunchGate
from headway.member.protocol.keys import new_key

if TYPE_CHECKING:
    from headway.cli.target_render import TargetPlan
    from headway.cli.target_run import TargetRun
    from headway.kube.reviews import Finding
    from headway.spec.load import LoadedTarget


def require_room_for(run: TargetRun, plan: TargetPlan, found: LoadedTarget, is_new: bool) -> None:
    """Raises all that keeps the run from working, as one error; warns of what may. `is_new`: the
    run has no objects there yet."""
    objects, before = plan.objects(new_key()), preparing_objects(plan.loaded.run, found.target)
    gate = LaunchGate(run.kube, found.target, run.on, objects, plan.least_nodes, before)
    findings = gate.findings(is_new)
    for one in findings:
        if not one.is_fatal:
            warn(f"{found.mark(one.path)}: {one.words}")
            hint(one.fix)
    fatal = [_located(one, found) for one in findings if one.is_fatal]
    if fatal:
        first, *others = fatal
        raise SpecError(first.problem, first.where, first.hint, others)


def _located(finding: Finding, found: LoadedTarget) -> SpecError:
    return SpecError(finding.words, str(found.mark(finding.path)), finding.fix)
