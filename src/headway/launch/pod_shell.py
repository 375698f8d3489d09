"""A command in the pod of a node: which pod that is, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightkube.resources.core_v1 import Pod

from headway.errors import BadInput, NotFound
from headway.kube.api_errors import ClusterUnreachable
from headway.kube.names import INDEX, SUSPECT, labels
from headway.kube.pod_exec import CommandLost, CommandNotRun, LocalEnds
from headway.kube.pod_status import creation_time
from headway.launch.cluster_run import LOOKED_AT, ClusterRun

AWAY_SECONDS = 60.0
"""How long the API server may be away while the command is silent."""


def exit_code_in(run: ClusterRun, node: int, command: Sequence[str], ends: LocalEnds) -> int:
    """That of the command, once it has ended."""
    pod = running_pod(run, node)
    words = f"{' '.join(command)!r} in pod {pod} of node {node}"
    opened = run.kube.exec_in_pod(pod, "worker", command, has_terminal=ends.size is not None)
    try:
        return opened.exit_code(ends, required_pod(run, pod))
    except CommandNotRun as error:
        raise CommandNotRun(f"{words} did not start: {error.message}") from None
    except CommandLost as error:
        raise CommandLost(f"{words}: {error.message}", _status_hint(run)) from None


def running_pod(run: ClusterRun, node: int) -> str:
    """Its name. Raises NotFound with what the node is doing instead."""
    shape = run.job_status(run.require_job())
    if shape.state != "active":
        why = f" ({shape.why})" if shape.why else ""
        raise NotFound(
            f"run {run.name} is {shape.state}{why}: it has no pod to run a command in",
            _status_hint(run),
        )
    if node >= shape.nodes:
        last = shape.nodes - 1
        raise BadInput(
            f"run {run.name} has no node {node}: its last one is node {last}",
            f"headway exec {run.name} --node {last} --on {run.on} -- COMMAND",
        )
    found = run.kube.first_pods({**labels(run.name, "worker"), INDEX: str(node)}, LOOKED_AT)
    there = sorted(found, key=creation_time, reverse=True)
    for pod in there:
        if _is_running(pod):
            assert pod.metadata is not None
            return str(pod.metadata.name)
    what = f"pod {_words(there[0])}" if there else "there is no pod yet"
    raise NotFound(f"node {node} of run {run.name} is not running: {what}", _status_hint(run))


def required_pod(run: ClusterRun, name: str) -> Callable[[], None]:
    """Raises CommandLost if the pod is gone or its machine is lost, and ClusterUnreachable if
    that cannot be known for long."""
    away_since: float | None = None

    def require() -> None:
        nonlocal away_since
        try:
            pod = run.kube.pod(name)
        except ClusterUnreachable:
            now = run.clock.monotonic()
            away_since = now if away_since is None else away_since
            if now - away_since > AWAY_SECONDS:
                raise
            return
        away_since = None
        if pod is None or pod.metadata is None:
            raise CommandLost("the pod is gone")
        if SUSPECT in (pod.metadata.labels or {}):
            raise CommandLost("its machine was lost")

    return require


def _is_running(pod: Pod) -> bool:
    assert pod.metadata is not None
    if pod.metadata.deletionTimestamp is not None or pod.status is None:
        return False
    return any(
        one.name == "worker" and one.state is not None and one.state.running is not None
        for one in pod.status.containerStatuses or ()
    )


def _words(pod: Pod) -> str:
    assert pod.metadata is not None
    phase = pod.status.phase if pod.status is not None else None
    is_ending = pod.metadata.deletionTimestamp is not None
    return f"{pod.metadata.name} is {'terminating' if is_ending else (phase or 'Pending').lower()}"


def _status_hint(run: ClusterRun) -> str:
    return f"headway status {run.name} --on {run.on}"
