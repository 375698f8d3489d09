"""The workers' Job: each pod is a node of the run. It owns all other objects."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headway.errors import Exit
from headway.kube.names import (
    ACCELERATORS,
    CONTROLLER_UIDS,
    ELASTIC,
    FETCHED,
    GATE,
    KEEP_FAILED,
    KEEP_STOPPED,
    KEY,
    NODE_FOLDER,
    SHARED_MEMORY,
    SPEC,
    WHEELS,
    Object,
    coordinator_address,
    labels,
)
from headway.kube.own_image import add_wheels, has_own_image
from headway.kube.pod_overrides import TargetMismatch, with_overrides
from headway.kube.pods import (
    affinity,
    container,
    metadata,
    off_suspects,
    queue_labels,
    spec_mount,
    spec_volume,
    template,
    variable,
    variable_from_field,
)
from headway.kube.rbac import worker_account
from headway.kube.storage_layout import StorageLayout, folders_to_fetch
from headway.kube.worker_devices import (
    HOST_NETWORK,
    add_claims,
    close_together,
    later_choices,
    machine_alternatives,
    request_cache,
    worker_resources,
)
from headway.spec.resolve import Resolved
from headway.spec.target_file import Target

NO_LIMIT = 2**31 - 1
"""Limit of failures. Lost machines are not failures, and a run of several months loses many."""
GRACE_SECONDS = 120
"""Time from SIGTERM to SIGKILL: what spot machines allow, and more than a step takes."""
OWN_ERRORS = {
    "worker": (
        Exit.RUN_FAILED,
        Exit.BAD_INPUT,
        Exit.NOT_FOUND,
        Exit.CHECK_FAILED,
        Exit.STILL_RUNNING,
    ),
    WHEELS: (Exit.BAD_INPUT,),
}
"""By container, exit codes of a pod that would fail the same way again. In the order that
Kubernetes requires."""
FABRIC = re.compile(r"(^|[^a-z])(rdma|infiniband|hca)([^a-z]|$)")
"""Matches device names whose users need to lock memory. (AWS' EFA works without that right.)"""


def worker_job(resolved: Resolved, target: Target) -> Object:
    made = metadata(resolved.name, target.kube.namespace, component="worker")
    made["labels"] |= queue_labels(target)
    made["annotations"] = {
        KEEP_FAILED: f"{target.keep.failed.amount:.0f}",
        KEEP_STOPPED: f"{target.keep.stopped.amount:.0f}",
    }
    if target.queue is not None:
        made["annotations"][ELASTIC] = "true"
    if kinds := later_choices(resolved, target):
        made["annotations"][ACCELERATORS] = kinds[0].name
    containers = ["worker", *([WHEELS] if has_own_image(target) else [])]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": made,
        "spec": {
            "completionMode": "Indexed",
            # Equal, so that both can be changed: that is how a run is scaled.
            "completions": resolved.nodes,
            "parallelism": resolved.nodes,
            # Per index: a failed pod is then kept until it is replaced, and if it is removed from
            # the Job before it was counted, it is replaced at once. The keeper does that.
            "backoffLimitPerIndex": NO_LIMIT,
            # Not while the previous pod may still write.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _failure_rules(containers)},
            # A rule by index would not let the run scale below that index. All workers wait for the
            # last checkpoint before any succeeds, so one is enough; others may never have started.
            "successPolicy": {"rules": [{"succeededCount": 1}]},
            # The keeper makes it longer if the run fails.
            "ttlSecondsAfterFinished": round(target.keep.finished.amount),
            "template": _pod(resolved, target),
        },
    }


def _pod(resolved: Resolved, target: Target) -> Object:
    made = with_overrides(_template(resolved, target), target, "worker")
    if has_own_image(target):
        add_wheels(made, target)
    return made


def _failure_rules(containers: Sequence[str]) -> list[Object]:
    """The failure rules; the first that matches applies."""
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    rules: list[Object] = [{"action": "Ignore", "onPodConditions": disrupted}]
    for name in containers:
        errors = [int(code) for code in OWN_ERRORS[name]]
        own_error = {"containerName": name, "operator": "In", "values": errors}
        anything = {"containerName": name, "operator": "NotIn", "values": [0]}
        rules += [
            {"action": "FailJob", "onExitCodes": own_error},
            {"action": "Ignore", "onExitCodes": anything},
        ]
    return rules


def _template(resolved: Resolved, target: Target) -> Object:
    run = resolved.name
    mounts = [spec_mount(), {"name": "headway-shm", "mountPath": SHARED_MEMORY}]
    shared = {"medium": "Memory", "sizeLimit": target.pod.shared_memory}
    volumes: list[Object] = [spec_volume(resolved), {"name": "headway-shm", "emptyDir": shared}]
    if folders_to_fetch(resolved):
        mounts.append({"name": "headway-fetched", "mountPath": FETCHED})
        volumes.append({"name": "headway-fetched", "emptyDir": {}})
    if resolved.is_script:
        # Without a limit: a pod above it is evicted, and it is the machine's disk that is full. How
        # much a script needs is requested by the target, as `ephemeral-storage` of its pod.
        mounts.append({"name": "headway-node", "mountPath": NODE_FOLDER})
        volumes.append({"name": "headway-node", "emptyDir": {}})
    spot = resolved.run.resources.spot
    # Required: a machine that lost its power a moment ago is Ready, and the emptiest there is.
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [off_suspects()]}
    spec: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        # Autoscalers do not see pods that wait at a gate, so there is one only where affinity
        # depends on the pod's index.
        **({"schedulingGates": [{"name": GATE}]} if spot == "above_min" else {}),
        "affinity": {
            **affinity(target, spot == "none", alternatives=machine_alternatives(resolved, target)),
            "podAntiAffinity": apart,
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels(run, "worker")},
            }
        ],
    }
    if (account := worker_account(run, target)) is not None:
        spec["serviceAccountName"] = account
    worker = container(
        "worker",
        target,
        ["headway", "node"],
        _environment(resolved, target),
        mounts,
        worker_resources(resolved, target),
        _capabilities(target),
    )
    request_cache(worker, resolved, target)
    add_claims(spec, worker, target)
    if target.pod.topology is not None:
        spec["affinity"]["podAffinity"] = close_together(run, target.pod.topology)
    if target.pod.host_network:
        spec |= HOST_NETWORK
    return template(run, "worker", target, worker, volumes, spec)


def _environment(resolved: Resolved, target: Target) -> list[Object]:
    """The contract with `headway node`. Kubernetes sets JOB_COMPLETION_INDEX."""
    run = resolved.name
    storage = StorageLayout.of(resolved.run, target).root
    serves_store = resolved.is_script or resolved.device != "cpu"
    return [
        variable("HEADWAY_SPEC", SPEC),
        variable("HEADWAY_RUN_DIRECTORY", resolved.run_directory),
        variable("HEADWAY_COORDINATOR", coordinator_address(run, target.kube.namespace)),
        variable("HEADWAY_KEY", KEY),
        variable_from_field("HEADWAY_POD", "metadata.name"),
        variable_from_field("HEADWAY_POD_UID", "metadata.uid"),
        variable_from_field("HEADWAY_LAUNCH", f"metadata.labels['{CONTROLLER_UIDS[0]}']"),
        # Names of pods do not resolve; and on the host's network the address is the machine's.
        *([variable_from_field("HEADWAY_ADDRESS", "status.podIP")] if serves_store else []),
        *([variable("HEADWAY_STORAGE", storage)] if folders_to_fetch(resolved) else []),
        *(secret_variable(name, target) for name in resolved.run.secrets),
    ]


def secret_variable(name: str, target: Target) -> Object:
    if target.secret is None:
        raise TargetMismatch(
            f"the run needs {name}, and nothing says which Secret has it",
            ("secret",),
            "secret: NAME, of a Secret with that key: kubectl create secret generic NAME "
            f"--from-literal={name}=...",
        )
    return {
        "name": name,
        "valueFrom": {"secretKeyRef": {"name": target.secret, "key": name}},
    }


def _capabilities(target: Target) -> list[str]:
    fabric = next((name for name in target.pod.resources if FABRIC.search(name)), None)
    if fabric is None:
        return []
    if target.security == "restricted":
        raise TargetMismatch(
            f"{fabric} is used by locking memory, which `security: restricted` does not allow",
            ("pod", "resources", fabric),
            "security: baseline, in a namespace that lets the capability IPC_LOCK through",
        )
    return ["IPC_LOCK"]
