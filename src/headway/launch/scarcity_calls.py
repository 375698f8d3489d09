"""Carries out what `scarcity` decides about the workers' Job, and notes it. What fails raises, and
is not noted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lightkube.resources.batch_v1 import Job

from headway.clock import stamp
from headway.kube.client import KubeClient
from headway.kube.gave_back import patch_of_mark, start_again
from headway.kube.kinds import KindTerms
from headway.kube.pod_status import accelerators_of
from headway.launch.scarcity import GiveBack, RemoveMark, ScarcityDecision, TryAgain
from headway.state.run_directory import Journal


def carry_out(
    decision: ScarcityDecision,
    kube: KubeClient,
    job: Job,
    kinds: Mapping[str, KindTerms],
    journal: Journal,
    say: Callable[[str], None],
) -> bool:
    """`kinds`: of accelerator, by name. Returns False if the kind may not be changed."""
    assert job.metadata is not None
    name = str(job.metadata.name)
    match decision:
        case GiveBack(mark, seconds, pause_seconds):
            kube.patch_job(name, patch_of_mark(job, mark))
            say(
                f"{mark.shortage} for {seconds:.0f} s: its pods are given back; tries again "
                f"in {pause_seconds:.0f} s"
            )
            journal.note(
                "gave_back",
                held=mark.held,
                needed=mark.needed,
                shortage=mark.shortage,
                seconds=round(seconds, 3),
                attempt=mark.attempt,
                retry_at=stamp(mark.retry_at),
            )
        case TryAgain(mark, kind):
            refusal = start_again(kube, job, None if kind is None else kinds[kind])
            if refusal is not None:
                wanted, kind = kind, accelerators_of(job)
                say(
                    f"stays with {kind}, because it may not change to {wanted}: {refusal.message}\n"
                    "hint: have an administrator apply what headway target rbac prints for the "
                    "target, then stop and resume the run"
                )
            of_kind = {"accelerators": kind} if kind is not None else {}
            say(f"tries again to have {mark.needed} nodes" + (f" with {kind}" if kind else ""))
            journal.note("tries_again", attempt=mark.attempt, needed=mark.needed, **of_kind)
            return refusal is None
        case RemoveMark():
            kube.patch_job(name, patch_of_mark(job, None))
            say("took off the mark of a run that gave its pods back: it was started otherwise")
    return True
