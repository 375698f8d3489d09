"""A check of a target from its first call to its last line: look, start probes, ask them, and take
everything away."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from headway.clock import Clock
from headway.errors import HeadwayError
from headway.kube.check_lines import LOGIN, NAMES_IN_ORDER, CheckLine, failed, not_checked
from headway.kube.client import KubeClient
from headway.kube.probe_objects import probe_objects, probe_run
from headway.launch.probe_pods import ProbePods, ProbeStart
from headway.launch.probe_questions import ProbeAnswers, Questions
from headway.launch.target_evidence import TargetEvidence
from headway.launch.target_findings import findings
from headway.launch.target_look import look_at
from headway.member.protocol.keys import new_key
from headway.spec.target_file import Target

HOPELESS_SECONDS = 20.0
"""Wait for pods of which some cannot start: the others may still find something."""


def checked_target(
    kube: KubeClient,
    name: str,
    target: Target,
    wait_seconds: float,
    longest_seconds: float,
    clock: Clock,
    say: Callable[[str], None],
) -> list[CheckLine]:
    """Raises TargetMismatch if the target itself is wrong. `longest_seconds`: after which the pods
    end by themselves."""
    run, key = f"check-{uuid4().hex[:6]}", new_key()
    resolved = probe_run(run, target)
    objects = probe_objects(resolved, target, key, longest_seconds)
    say(f"asking the API server about namespace {kube.namespace}")
    try:
        look = look_at(kube, target, name, objects, clock)
    except HeadwayError as error:
        others = [
            not_checked(one, "the cluster was not asked") for one in NAMES_IN_ORDER if one != LOGIN
        ]
        fix = error.hint or "make this work first: kubectl get pods"
        return [failed(LOGIN, error.message, fix), *others]
    pods = ProbePods(kube, run, objects, key, clock, say)
    start, answers, refused = ProbeStart(), ProbeAnswers(), None
    say("starting two workers' pods and a coordinator's")
    try:
        try:
            pods.start()
        except HeadwayError as error:
            refused = error.message
        else:
            patience = min(wait_seconds, HOPELESS_SECONDS) if look.is_hopeless else wait_seconds
            start = pods.wait(patience)
            answers = Questions(pods, run, target, start, clock, say).ask_all()
    finally:
        pods.end()
    for problem in answers.problems:
        say(f"warning: {problem}")
    offset = None if pods.made is None else pods.made[0] - pods.made[1]
    return findings(TargetEvidence(name, target, objects, look, start, answers, refused, offset))
