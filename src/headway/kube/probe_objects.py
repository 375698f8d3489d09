"""Objects of a check of a target: those of a run with two nodes, as `headway run` would make them,
whose pods run a probe. Pure.

The Job of the two workers owns all else and has a deadline. That does not count while a queue holds
the Job, so it has an owner of its own, a Job without pods that only ends: if the client is killed,
nothing is left a few minutes later.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from headway.kube.manifests import manifests
from headway.kube.names import (
    COMPONENT,
    HTTP_PORT,
    PACKAGES,
    PRIORITY,
    QUEUE,
    STORAGE,
    Object,
    run_object,
)
from headway.kube.own_image import has_own_image
from headway.kube.placement import resolve_on_target
from headway.kube.pods import metadata, queue_labels, variable
from headway.kube.storage_layout import CODE, LocalFolder, StorageLayout
from headway.spec.load import Loaded, validated
from headway.spec.located_yaml import Located
from headway.spec.resolve import Resolved
from headway.spec.run_file import RunFile
from headway.spec.target_file import Target

NUM_WORKERS = 2
KEPT_SECONDS = 60
PROBE_FOLDER, PROBE = "/headway/probe", "probe.py"
PROBE_VOLUME = "headway-probe"
GRACE_SECONDS = 5
"""Enough to remove what was written to a claim."""


def probe_run(name: str, target: Target) -> Resolved:
    """A run that stands for any on the target. Raises TargetMismatch for what is wrong with it."""
    # A script: nothing has to be known of its model.
    located = Located(
        {"version": 1, "name": name, "command": ["true"], "resources": {"nodes": NUM_WORKERS}}
    )
    loaded = Loaded(validated(RunFile, located), Path(), located)
    return resolve_on_target(
        loaded,
        target,
        nodes=NUM_WORKERS,
        parameters=None,
        layout=StorageLayout.of(loaded.run, target),
        folders=[LocalFolder(CODE, "code", Path())],
        digests={CODE: "0" * 32},
    )


def probe_objects(resolved: Resolved, target: Target, key: str, seconds: float) -> list[Object]:
    """The owner first. `seconds`: after which it ends by itself."""
    job, *others = manifests(resolved, target, key)
    program = _program()
    name = f"{run_object(resolved.name)}-probe-{hashlib.sha256(program.encode()).hexdigest()[:12]}"
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(resolved.name, target.kube.namespace, name),
        "immutable": True,
        "data": {PROBE: program},
    }
    made = metadata(resolved.name, target.kube.namespace)
    # Not that of workers: it is no run that `headway list` shows.
    made["labels"] |= {COMPONENT: "probe"} | queue_labels(target)
    pod = job["spec"]["template"]
    _make_probe(pod["spec"], resolved, target, name)
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": made,
        "spec": {
            "completionMode": "Indexed",
            "completions": NUM_WORKERS,
            "parallelism": NUM_WORKERS,
            "backoffLimit": NUM_WORKERS,
            "activeDeadlineSeconds": round(seconds),
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": pod,
        },
    }
    for one in others:
        if one["kind"] == "ReplicaSet":
            _make_coordinator(one["spec"]["template"]["spec"])
    return [owner, config_map, *others]


def timer_of(job: Object) -> Object:
    """A Job that makes no pods, needs no queue, and is deleted after the same time as `job`."""
    metadata, spec = job["metadata"], job["spec"]
    labels = {key: one for key, one in metadata["labels"].items() if key not in (QUEUE, PRIORITY)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "name": timer_name(metadata["name"]), "labels": labels},
        "spec": {
            "parallelism": 0,
            "completions": 1,
            "activeDeadlineSeconds": spec["activeDeadlineSeconds"],
            "ttlSecondsAfterFinished": 0,
            "template": spec["template"],
        },
    }


def timer_name(job: str) -> str:
    return f"{job}-timer"


def ended_by(job: Object, timer: Object, uid: str) -> Object:
    """The same Job, deleted with its timer, which got `uid` when it was created. Not as its
    controller: Kueue puts no Job into a queue that another Job controls."""
    reference = {"apiVersion": "batch/v1", "kind": "Job", "uid": uid}
    owner = {**reference, "name": timer["metadata"]["name"]}
    return job | {"metadata": job["metadata"] | {"ownerReferences": [owner]}}


def claim_folder(name: str) -> str:
    """Where probes write, below the root of a claim or a bucket."""
    return f".headway-check/{name}"


def _make_probe(spec: Object, resolved: Resolved, target: Target, config_map: str) -> None:
    """Of a worker's pod: the same image, account, rights, mounts and place."""
    (worker,) = [one for one in spec["containers"] if one["name"] == "worker"]
    worker["command"] = ["python3", f"{PROBE_FOLDER}/{PROBE}", str(HTTP_PORT)]
    service = f"{run_object(resolved.name)}.{target.kube.namespace}.svc"
    worker["env"].append(variable("HEADWAY_PROBE_SERVICE", service))
    worker["env"] += claim_variables(resolved.name, target)
    # With the network of the machine, the scheduler then keeps the two apart.
    worker["ports"] = [{"name": "probe", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    worker["volumeMounts"].append(
        {"name": PROBE_VOLUME, "mountPath": PROBE_FOLDER, "readOnly": True}
    )
    spec["volumes"].append({"name": PROBE_VOLUME, "configMap": {"name": config_map}})
    if has_own_image(target):
        worker["env"].append(variable("HEADWAY_PROBE_BOOTSTRAP", PACKAGES))
    spec.pop("schedulingGates", None)  # a run's coordinator lifts it
    spec["terminationGracePeriodSeconds"] = GRACE_SECONDS


def _make_coordinator(spec: Object) -> None:
    (coordinator,) = [one for one in spec["containers"] if one["name"] == "coordinator"]
    coordinator["command"] = ["headway", "probe"]
    coordinator["readinessProbe"]["periodSeconds"] = 1
    spec["terminationGracePeriodSeconds"] = GRACE_SECONDS


def claim_variables(name: str, target: Target) -> list[Object]:
    """What a probe removes when it ends."""
    if target.storage is None or target.storage.claim is None:
        return []
    return [
        variable("HEADWAY_PROBE_ROOT", STORAGE),
        variable("HEADWAY_PROBE_FOLDER", claim_folder(name)),
    ]


def _program() -> str:
    return Path(__file__).with_name(PROBE).read_text()
