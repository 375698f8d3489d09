"""headway prove --on TARGET: the proof on nodes of a cluster."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway import __version__
from headway.cli.delete import delete_saved
from headway.cli.output import say
from headway.cli.target_run import TargetRun, end_claim_pods, note_started_on
from headway.clock import stamp
from headway.errors import HeadwayError, NotFound, RunFailed
from headway.kube.names import INDEX, labels
from headway.spec.load import TARGET_FILE, load_target

if TYPE_CHECKING:
    from lightkube.resources.core_v1 import Pod

    from headway.clock import Clock
    from headway.prove.report import CheckResult, ProofReport
    from headway.prove.target_checks import TargetChecks, TargetNodes
    from headway.spec.target_file import Target
    from headway.state.run_directory import RunDirectory

MOST_PODS = 500


class ClusterTarget:
    """A target as a proof sees it; run files are in `folder`, with its copy of the target file."""

    def __init__(self, name: str, target: Target, folder: Path) -> None:
        self.name = name
        self.target = target
        self.folder = folder
        self._runs: dict[str, TargetRun] = {}
        """Each keeps its connection."""

    def run(self, name: str) -> TargetRun:
        if name not in self._runs:
            self._runs[name] = TargetRun(name, self.name, self.target, self.folder)
        return self._runs[name]

    def directory(self, run: str) -> RunDirectory:
        return self.run(run).directory()

    def status(self, run: str) -> dict[str, Any] | None:
        known = self.run(run).cluster.known()
        return None if known is None else known["status"]

    def has_finished(self, run: str) -> bool:
        cluster = self.run(run).cluster
        shape = cluster.job_status(cluster.require_job())
        if shape.state == "failed":
            raise RunFailed(f"run {run} has failed: {shape.why}")
        return shape.state == "finished"

    def num_machines(self, run: str) -> int:
        pods = self.run(run).kube.first_pods(labels(run, "worker"), MOST_PODS)
        names = {pod.spec.nodeName for pod in pods if pod.spec is not None}
        return len(names - {None})

    def delete_last_pod(self, run: str) -> None:
        kube, is_running = self.run(run).kube, {"status.phase": "Running"}
        pods = sorted(kube.first_pods(labels(run, "worker"), MOST_PODS, is_running), key=_index)
        if not pods:
            raise NotFound(f"run {run} has no running pod")
        metadata = pods[-1].metadata
        assert metadata is not None
        assert metadata.name is not None
        kube.delete_pod(metadata.name, grace_seconds=0)

    def remove(self, run: str) -> None:
        there = self.run(run)
        there.cluster.delete(say)
        delete_saved(there)
        note_started_on(self.folder, run, None)

    def version(self) -> str | None:
        """Of Kubernetes, if the user may ask."""
        try:
            return str(self.run("").kube.call("GET", "version")["gitVersion"])
        except (HeadwayError, KeyError):
            return None


def _index(pod: Pod) -> int:
    assert pod.metadata is not None
    return int((pod.metadata.labels or {}).get(INDEX, 0))


def prove_on(on: str, nodes: int, into: Path, clock: Clock, seconds: float) -> ProofReport:
    from headway.prove.program import Program
    from headway.prove.report import ProofReport
    from headway.prove.target_checks import TargetChecks, TargetNodes

    target = load_target(on, Path.cwd()).target
    into.mkdir(parents=True, exist_ok=True)
    into = into.resolve()
    _copy_targets(into)
    accelerators = target.resources.accelerators if target.resources is not None else None
    chosen = TargetNodes(nodes, accelerators)
    if chosen.is_cpu:
        say(f"target {on} names no GPU: a rehearsal on the CPU")
    started, began = stamp(clock.now()), clock.monotonic()
    cluster = ClusterTarget(on, target, into)
    checks = TargetChecks(Program(into, clock, seconds), cluster, chosen)
    results: list[CheckResult] = []
    try:
        for result in checks.results():
            results.append(result)
            say(result.line)
    finally:
        end_claim_pods()
    return ProofReport(
        headway=__version__,
        started=started,
        seconds=round(clock.monotonic() - began, 1),
        device=checks.started.get("device") or "unknown device",
        num_devices=chosen.num_workers,
        nodes=nodes,
        is_rehearsal=chosen.is_cpu,
        tolerance=chosen.tolerance,
        machine=target_facts(checks, chosen, target, cluster.version()),
        checks=results,
        rates=checks.rates,
    )


def target_facts(
    checks: TargetChecks, nodes: TargetNodes, target: Target, kubernetes: str | None
) -> dict[str, str]:
    """By name, in the order in which they are shown; nothing by which a cluster could be found."""
    resources = target.pod.resources
    facts = {
        "devices": f"{nodes.accelerators} per node",
        "topology": f"{nodes.nodes} pods on {checks.num_machines} machines",
        "pod": ", ".join(f"{name} {amount}" for name, amount in sorted(resources.items())),
        "Kubernetes": kubernetes or "",
        **checks.started.get("versions", {}),
    }
    if nodes.is_cpu:
        facts["devices"] = "none: a rehearsal on the CPU"
    if not checks.num_machines:
        del facts["topology"]
    return {name: value for name, value in facts.items() if value}


def _copy_targets(into: Path) -> None:
    """Targets are looked up beside the run file."""
    beside = Path.cwd() / TARGET_FILE
    if beside.is_file():
        shutil.copy(beside, into / TARGET_FILE)
