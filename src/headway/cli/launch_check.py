"""`headway run --on` refuses what the target cannot take, before anything is prepared or uploaded
for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.cli.output import hint, warn
from headway.cli.target_render import errors_located
from headway.errors import SpecError
from headway.kube.data_job import Preparation, data_objects
from headway.kube.own_image import has_own_image
from headway.launch.launch_gate import LaunchGate
from headway.member.protocol.keys import new_key
from headway.spec.data_config import is_elsewhere
from headway.spec.run_sources import run_sources

if TYPE_CHECKING:
    from headway.cli.target_render import TargetPlan
    from headway.cli.target_run import TargetRun
    from headway.kube.names import Object
    from headway.kube.reviews import Finding
    from headway.spec.data_config import SourceConfig
    from headway.spec.load import LoadedTarget


ANY_KEY = "0" * 12


def require_room_for(run: TargetRun, plan: TargetPlan, found: LoadedTarget, is_new: bool) -> None:
    """Raises all that keeps the run from working, as one error; warns of what may. `is_new`: the
    run has no objects there yet."""
    objects, before = plan.objects(new_key()), _preparing(plan, found)
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


def _preparing(plan: TargetPlan, found: LoadedTarget) -> list[Object]:
    """Such objects as will prepare its data on the target, if any has to be prepared there."""
    target, run = found.target, plan.loaded.run
    if has_own_image(target) and target.prepare.image is None:
        return []
    if not any(_is_prepared_there(source) for _, source in run_sources(run)):
        return []
    with errors_located(found):
        return data_objects(Preparation(ANY_KEY, 1, "", run.secrets), target)


def _is_prepared_there(source: SourceConfig) -> bool:
    """As `data_on_target.why_not_there` has it."""
    is_here = source.deduplicate or source.transform is not None
    return bool(source.sources) and not is_here and all(map(is_elsewhere, source.sources or ()))


def _located(finding: Finding, found: LoadedTarget) -> SpecError:
    return SpecError(finding.words, str(found.mark(finding.path)), finding.fix)
