"""The status of a run's pods in words: why they wait, how they ended. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from lightkube.models.batch_v1 import JobCondition
from lightkube.models.core_v1 import (
    Affinity,
    ContainerStateTerminated,
    ContainerStatus,
    PodSpec,
    PodStatus,
)
from lightkube.resources.apps_v1 import ReplicaSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Pod

from headway.errors import Exit, without_hint
from headway.kube.names import ACCELERATORS, COMPONENTS, GATE, QUEUE, WHEELS
from headway.kube.pods import SPEC_VOLUME
from headway.kube.worker_job import OWN_ERRORS
from headway.kube.wrong_architecture import ARCHITECTURE_FIX, wrong_architecture

WaitKind = Literal["image", "architecture", "container", "capacity", "preparing", "other"]
"""Kinds of reasons that a fix depends on, or a further look. `preparing`: the machine pulls the
image or mounts volumes."""
HOPELESS: Mapping[str, tuple[WaitKind, str]] = {
    "ErrImagePull": ("image", "the image cannot be pulled"),
    "ImagePullBackOff": ("image", "the image cannot be pulled"),
    "InvalidImageName": ("image", "the image name is invalid"),
    "ErrImageNeverPull": ("image", "the image is not on the node, and imagePullPolicy is Never"),
    "CreateContainerConfigError": ("container", "the container cannot be created"),
    "CreateContainerError": ("container", "the container cannot be created"),
}
"""Reasons of a waiting container that do not go away by themselves, however often Kubernetes
retries."""
HINTS: Mapping[WaitKind, str] = {
    "architecture": ARCHITECTURE_FIX,
    "image": "docker buildx imagetools inspect IMAGE says whether it is there; if it is, and its "
    "registry needs a login: pod: {image_pull_secrets: [NAME]} in the target",
    "capacity": "kubectl describe nodes says what is free; a device that no machine offers needs "
    "its device plugin, which an administrator installs; else smaller pod.resources",
}
HOPELESS_RESTARTS = 3
VOLUMES_READY = "PodReadyToStartContainers"
"""Condition of a pod whose volumes are mounted, and that has an address."""
PREPARING = {
    "True": "pulling the image",
    "False": "mounting volumes or setting up the network",
    None: "pulling the image or mounting volumes",
}
"""What a machine does that has a pod to start, by that condition."""
START_FAILURES = (
    *("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"),
    *("NetworkNotReady", "FailedCreatePodContainer", "FailedPrepareDynamicResources"),
)
"""Reasons of events of such a pod, which its status does not have."""
MOST_CHARACTERS = 300
"""Of a reason in one line."""
OUT_OF_MEMORY, EVICTED = "OOMKilled", "Evicted"
GAVE_UP = (Exit.PEER_LOST, Exit.DEVICE_LOST)
"""Exit codes of a pod that says why another one may do better."""
SIGNALLED = 128
"""Exit codes above it are those of a process that a signal ended."""
LACKS = re.compile(r"(\d+) Insufficient ([\w./-]*\w)")
NO_LABEL = "node affinity/selector"
"""The scheduler's words for nodes without the labels that a pod requires."""
QUOTA = re.compile(r"exceeded quota: ([^,]+), (.*)")
NO_ACCOUNT = re.compile(r'serviceaccount "([^"]+)" not found')
NO_SECRET = re.compile(r'secret "([^"]+)" not found')
WHICH_POD = re.compile(r'^pods "[^"]+" is forbidden: ')
"""A different pod at each attempt, with the same reason."""


@dataclass(frozen=True)
class WaitReason:
    """Why pods do not start."""

    words: str
    pods: int
    """Number of pods that wait for this reason."""
    is_hopeless: bool = False
    """Whether it will not change by itself."""
    kind: WaitKind = "other"

    @property
    def hint(self) -> str | None:
        """What to do about it, where the words do not say so."""
        if self.kind == "container" and (secret := NO_SECRET.search(self.words)):
            make = f"kubectl create secret generic {secret[1]} --from-literal=KEY=VALUE"
            return f"{make}, or name another one in the target"
        return HINTS.get(self.kind)


def pod_name(pod: Pod) -> str:
    assert pod.metadata is not None
    return pod.metadata.name or ""


def wait_reasons(
    owner: Job | ReplicaSet,
    pods: Sequence[Pod],
    events: Sequence[Event],
    num_ready: int = 0,
    of_pods: Mapping[str, Sequence[Event]] | None = None,
) -> list[WaitReason]:
    """Why pods do not run, the most frequent reason first. `pods` are those that wait, `events`
    those of their owner; `of_pods`: of some pods, by name, what `is_prepared` is explained with."""
    found = [*_of_owner(owner, len(pods) + num_ready, events)]
    known = of_pods or {}
    reasons = Counter(
        reason for pod in pods if (reason := _of_pod(pod, known.get(pod_name(pod), ()))) is not None
    )
    found += [replace(reason, pods=count) for reason, count in reasons.items()]
    return sorted(found, key=lambda one: (not one.is_hopeless, -one.pods))


def _of_owner(
    owner: Job | ReplicaSet, num_made: int, events: Sequence[Event]
) -> Iterable[WaitReason]:
    assert owner.spec is not None
    wanted = owner.spec.parallelism if isinstance(owner, Job) else owner.spec.replicas
    missing = (wanted or 0) - num_made
    if isinstance(owner, Job) and owner.spec.suspend:
        queue = ((owner.metadata.labels if owner.metadata else None) or {}).get(QUEUE)
        yield WaitReason(f"in queue {queue}" if queue else "suspended", missing)
        return
    if missing <= 0:
        return
    for event in reversed(events):
        if event.reason == "FailedCreate" and event.message:
            yield _not_made(event.message, missing)
            return


def _not_made(message: str, pods: int) -> WaitReason:
    if quota := QUOTA.search(message):
        return WaitReason(f"quota {quota[1]} is exceeded: {quota[2]}", pods)
    if account := NO_ACCOUNT.search(message):
        fix = "headway target rbac prints what an administrator applies"
        words = f"service account {account[1]} does not exist in the namespace; {fix}"
        return WaitReason(words, pods)
    _, _, why = message.partition("Error creating: ")
    is_policy = "violates PodSecurity" in message or "denied the request" in message
    words = WHICH_POD.sub("", why or message)
    return WaitReason(f"rejected by policy: {words}" if is_policy else words, pods, is_policy)


def why_not_started(pod: Pod) -> str | None:
    """Of a pod that has a machine: in a line, why our container does not run. None: it does, or one
    that has to run before it does; or the pod has no machine, or has ended."""
    status, spec = pod.status, pod.spec
    if status is None or status.phase != "Pending" or spec is None or spec.nodeName is None:
        return None
    sidecars = [one.name for one in spec.initContainers or () if one.restartPolicy == "Always"]
    before = [one for one in status.initContainerStatuses or () if one.name not in sidecars]
    ours = [one for one in status.containerStatuses or () if one.name in COMPONENTS]
    if any(map(_is_running, (*before, *ours))):
        return None
    reason = _of_pod(pod)
    return " ".join(reason.words.split())[:MOST_CHARACTERS] if reason is not None else None


def is_prepared(pod: Pod) -> bool:
    """Whether its machine pulls the image or mounts volumes. If that fails, only events say so."""
    reason = _of_pod(pod)
    return reason is not None and reason.kind == "preparing"


def _of_pod(pod: Pod, events: Sequence[Event] = ()) -> WaitReason | None:
    """Why this pod waits; None if it runs or has ended. `events`: its own."""
    status = pod.status
    if status is None or status.phase not in ("Pending", "Running"):
        return None
    assert pod.spec is not None
    if (wrong := wrong_architecture(pod)) is not None:
        return WaitReason(wrong, 1, is_hopeless=True, kind="architecture")
    if status.phase == "Running":
        return next(filter(None, map(_crashing, _containers(status))), None)
    if any(gate.name == GATE for gate in pod.spec.schedulingGates or ()):
        return WaitReason("waiting for the coordinator to place it", 1)
    for container in _containers(status):
        if reason := _of_container(container):
            return reason
    if any(map(_waits_for_machine, _containers(status))):
        return _of_machine(status, events)
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            said = condition.message or condition.reason or "not scheduled yet"
            return _unplaced(said, pod.spec)
    if pod.spec.nodeName is not None or _is_placed(status):
        return _of_machine(status, events)
    return WaitReason("not scheduled yet", 1)


def _of_machine(status: PodStatus, events: Sequence[Event]) -> WaitReason:
    """What the machine does before it starts a container, or why it cannot."""
    ready = {one.type: one.status for one in status.conditions or ()}.get(VOLUMES_READY)
    failed = [event for event in events if event.reason in START_FAILURES and event.message]
    if failed and ready != "True":  # else it has succeeded since
        return WaitReason(f"its machine cannot start it: {failed[-1].message}", 1)
    return WaitReason(PREPARING[ready if ready in PREPARING else None], 1, kind="preparing")


def _waits_for_machine(container: ContainerStatus) -> bool:
    waits = container.state.waiting if container.state is not None else None
    return waits is not None and waits.reason == "ContainerCreating"


def _is_running(container: ContainerStatus) -> bool:
    return container.state is not None and container.state.running is not None


def _crashing(container: ContainerStatus) -> WaitReason | None:
    """A container that Kubernetes keeps restarting."""
    waits = container.state.waiting if container.state is not None else None
    if waits is None or waits.reason != "CrashLoopBackOff":
        return None
    ended = container.lastState.terminated if container.lastState is not None else None
    code = f"exit code {ended.exitCode}" if ended is not None else "no reason given"
    words = f": {ended.message.strip()}" if ended is not None and ended.message else ""
    is_hopeless = container.restartCount >= HOPELESS_RESTARTS
    return WaitReason(f"it keeps crashing ({code}){words}", 1, is_hopeless)


def _containers(status: PodStatus) -> list[ContainerStatus]:
    """Also those that run before or beside ours."""
    return [*(status.initContainerStatuses or ()), *(status.containerStatuses or ())]


def _is_placed(status: PodStatus) -> bool:
    conditions = status.conditions or ()
    return any(one.type == "PodScheduled" and one.status == "True" for one in conditions)


def _of_container(container: ContainerStatus) -> WaitReason | None:
    waits = container.state.waiting if container.state is not None else None
    if waits is None or waits.reason in (None, "PodInitializing", "ContainerCreating"):
        return None
    if waits.reason in HOPELESS:
        kind, words = HOPELESS[waits.reason]
        return WaitReason(f"{words}: {waits.message or container.image}", 1, True, kind)
    return WaitReason(f"{waits.reason}: {waits.message or ''}".rstrip(": "), 1)


def _unplaced(message: str, spec: PodSpec) -> WaitReason:
    """The scheduler counts nodes by what each lacks."""
    lacks = [what for _, what in LACKS.findall(message)]
    if lacks:
        words = f"no capacity: not enough {', '.join(sorted(set(lacks)))} ({message})"
        return WaitReason(words, 1, kind="capacity")
    labels = _needed_labels(spec) if NO_LABEL in message else ""
    needed = f" (needed: {labels})" if labels else ""
    return WaitReason(f"no node fits: {message}{needed}", 1)


def _needed_labels(spec: PodSpec) -> str:
    selected = " + ".join(f"{key}={value}" for key, value in (spec.nodeSelector or {}).items())
    required = _required_labels(spec.affinity)
    return "; and ".join(filter(None, (selected, required)))


def _required_labels(affinity: Affinity | None) -> str:
    """One of these is what a node must have: `a=b|c + d=e, or f=g`."""
    nodes = affinity.nodeAffinity if affinity is not None else None
    required = nodes.requiredDuringSchedulingIgnoredDuringExecution if nodes is not None else None
    terms = required.nodeSelectorTerms if required is not None else []
    written = [
        " + ".join(
            f"{one.key}={'|'.join(one.values or ())}"
            for one in term.matchExpressions or ()
            if one.operator == "In"
        )
        for term in terms
    ]
    return ", or ".join(filter(None, written))


def end_condition(job: Job) -> JobCondition | None:
    """Complete or Failed, if it has ended."""
    assert job.status is not None
    for condition in job.status.conditions or ():
        if condition.status == "True" and condition.type in ("Complete", "Failed"):
            return condition
    return None


def creation_time(pod: Pod) -> str:
    """Creation time, to sort pods by."""
    assert pod.metadata is not None
    return str(pod.metadata.creationTimestamp)


def termination_message(pod: Pod) -> str | None:
    """Content of its termination log, or what is behind it."""
    if (wrong := wrong_architecture(pod)) is not None:
        return f"{wrong}\nhint: {ARCHITECTURE_FIX}"
    ended = _end_of(pod)
    return ended.message or None if ended is not None else None


def exit_code(pod: Pod) -> int | None:
    """Exit code of our container; None while it runs, or if it ended without one."""
    ended = _end_of(pod)
    return ended.exitCode if ended is not None else None


def ran_seconds(pod: Pod) -> float:
    """Time for which our container ran; 0 if it still runs, or never did."""
    ended = _end_of(pod)
    if ended is None or ended.startedAt is None or ended.finishedAt is None:
        return 0.0
    return (ended.finishedAt - ended.startedAt).total_seconds()


def placed_time(pod: Pod) -> datetime | None:
    """When the scheduler gave it its machine."""
    assert pod.metadata is not None
    for condition in (pod.status.conditions if pod.status else None) or ():
        if condition.type == "PodScheduled" and condition.status == "True":
            return condition.lastTransitionTime or pod.metadata.creationTimestamp
    return pod.metadata.creationTimestamp


def end_time(pod: Pod) -> datetime | None:
    """When the last of its containers ended, if all have and its machine said so. Its phase may
    not say so yet."""
    if pod.status is None:
        return None
    ours = pod.status.containerStatuses or ()
    has_ended = pod.status.phase in ("Succeeded", "Failed")
    if not has_ended and any(one.state is None or one.state.terminated is None for one in ours):
        return None
    containers = _containers(pod.status) if has_ended or ours else ()
    ends = [one.state.terminated for one in containers if one.state is not None]
    times = [end.finishedAt for end in ends if end is not None and end.finishedAt is not None]
    return max(times, default=None)


def was_killed(pod: Pod) -> bool:
    """Whether a signal ended our container, or Kubernetes ended the pod, and not because it used
    too much memory or disk: so it is, mostly, when its machine is taken away."""
    if pod.status is not None and pod.status.reason == EVICTED:
        return False
    ended = _end_of(pod)
    return ended is None or (ended.exitCode > SIGNALLED and ended.reason != OUT_OF_MEMORY)


def is_own_error(pod: Pod) -> bool:
    """Whether it ended by an error of the run itself, for which its Job fails."""
    found = _ended_container(pod)
    return found is not None and found[1].exitCode in OWN_ERRORS.get(found[0], ())


def spec_config_map_name(job: Job) -> str | None:
    """The ConfigMap with the resolved run that pods of this Job mount."""
    pod = job.spec.template.spec if job.spec is not None else None
    for volume in (pod.volumes if pod is not None else None) or ():
        if volume.name == SPEC_VOLUME and volume.configMap is not None:
            return volume.configMap.name
    return None


def accelerators_of(job: Job) -> str | None:
    """The kind that its pods have or wait for, of several."""
    assert job.metadata is not None
    return (job.metadata.annotations or {}).get(ACCELERATORS)


def is_ready(pod: Pod) -> bool:
    conditions = (pod.status.conditions if pod.status else None) or ()
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


def is_unreachable(pod: Pod) -> bool:
    """Whether Kubernetes evicts the pod because its node has been unreachable for too long."""
    found = {one.type: one for one in (pod.status.conditions if pod.status else None) or ()}
    told, ready = found.get("DisruptionTarget"), found.get("Ready")
    is_told = told is not None and told.reason == "DeletionByTaintManager"
    return is_told and ready is not None and ready.status != "True"


def describe_pod_exit(pod: Pod) -> str:
    """For a pod that has ended. With its last words, if it gave up by itself: another one may do
    better, but nobody reads the log of one that was replaced."""
    if (wrong := wrong_architecture(pod)) is not None:
        return f"did not start: {wrong}"
    ended = _end_of(pod)
    if ended is None:
        assert pod.status is not None
        for container in pod.status.initContainerStatuses or ():
            first = container.state.terminated if container.state is not None else None
            if first is not None and first.exitCode != 0:
                return f"did not start: init container {container.name} {_exit_words(first)}"
        return f"was ended: {pod.status.message or pod.status.reason or 'no reason given'}"
    words = _last_line(ended.message or "") if ended.exitCode in GAVE_UP else ""
    return f"{_exit_words(ended)}: {words}" if words else _exit_words(ended)


def _exit_words(ended: ContainerStateTerminated) -> str:
    memory = " (out of memory)" if ended.reason == OUT_OF_MEMORY else ""
    return f"ended with exit code {ended.exitCode}{memory}"


def _last_line(message: str) -> str:
    """Without a hint."""
    lines = without_hint(message)[0].strip().splitlines()
    return lines[-1].removeprefix("error: ")[:MOST_CHARACTERS] if lines else ""


def _end_of(pod: Pod) -> ContainerStateTerminated | None:
    found = _ended_container(pod)
    return found[1] if found is not None else None


def _ended_container(pod: Pod) -> tuple[str, ContainerStateTerminated] | None:
    """Name and end of our container, or of the one that should have copied its wheels: the cluster
    may have injected others."""
    for container in _containers(pod.status) if pod.status is not None else ():
        ended = container.state.terminated if container.state is not None else None
        if ended is None or container.name not in (*COMPONENTS, WHEELS):
            continue
        if container.name != WHEELS or ended.exitCode != 0:
            return container.name, ended
    return None
