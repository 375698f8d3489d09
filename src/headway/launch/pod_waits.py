"""Why pods do not run, by what Kubernetes says of them, of their owner, and in events."""

from __future__ import annotations

from collections.abc import Sequence

from lightkube.resources.apps_v1 import ReplicaSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from headway.kube.client import KubeClient
from headway.kube.pod_status import WaitReason, is_prepared, pod_name, wait_reasons

EXPLAINED = 3
"""Pods whose own events are asked for at a look: of thousands, the others wait for the same."""


def pod_waits(
    kube: KubeClient, owner: Job | ReplicaSet, pods: Sequence[Pod], num_ready: int = 0
) -> list[WaitReason]:
    """The most frequent reason first. `pods` are those that wait; `num_ready`: others of this owner
    that do not."""
    assert owner.metadata is not None
    assert owner.metadata.uid is not None
    of_pods = {
        pod_name(pod): kube.events_of(pod.metadata.uid)
        for pod in [pod for pod in pods if is_prepared(pod)][:EXPLAINED]
        if pod.metadata is not None and pod.metadata.uid is not None
    }
    return wait_reasons(owner, pods, kube.events_of(owner.metadata.uid), num_ready, of_pods)
