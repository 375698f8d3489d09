"""What all pods of a run share: restricted security, the key, the storage, a home folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from headway import __version__
from headway.kube.images import target_images
from headway.kube.names import (
    HEADWAY_VERSION,
    HOME,
    KEY_FOLDER,
    PRIORITY,
    QUEUE,
    SPEC_FOLDER,
    STORAGE,
    SUSPECT,
    USER_VARIABLES,
    VERSION,
    Component,
    Object,
    labels,
    run_object,
    spec_object,
    version_label,
)
from headway.spec.resolve import Resolved
from headway.spec.target_file import Target
from headway.state.run_directory import spec_text

SPEC_VOLUME = "headway-spec"
KEYED: tuple[Component, ...] = ("worker", "coordinator", "storage")
"""Pods that have a key: others talk to nobody."""
KEY_MOUNT = {"name": "headway-key", "mountPath": KEY_FOLDER, "readOnly": True}
READ_BY_GROUP = 0o440
"""Mode of the key's file, whose group is the pod's; written in decimal, since JSON has no octal."""


def metadata(
    run: str, namespace: str, name: str | None = None, component: Component | None = None
) -> Object:
    return {
        "name": name or run_object(run),
        "namespace": namespace,
        "labels": labels(run, component) | {VERSION: version_label(__version__)},
    }


def template(
    run: str,
    component: Component,
    target: Target,
    container: Object,
    volumes: Sequence[Object],
    spec: Mapping[str, Any],
) -> Object:
    """A pod with only this container; `spec` holds the fields specific to this kind of pod."""
    key = {"secretName": run_object(run), "defaultMode": READ_BY_GROUP}
    return {
        "metadata": {"labels": labels(run, component)},
        "spec": {
            **spec,
            # Environment variables for each Service of the namespace: unused, and possibly many.
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": target.pod.user,
                "runAsGroup": target.pod.group,
                "fsGroup": target.pod.group,
                # Otherwise the kubelet changes every file of a claim before each start of a pod.
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "headway-home", "emptyDir": {}},
                *([{"name": "headway-key", "secret": key}] if component in KEYED else []),
                *_claim(target),
                *volumes,
            ],
        },
    }


def container(
    component: Component,
    target: Target,
    command: Sequence[str],
    environment: Sequence[Object],
    mounts: Sequence[Object],
    resources: Mapping[str, str],
    capabilities: Sequence[str] = (),
) -> Object:
    """A container with requests = limits: pods that get exactly what they request are the last to
    be evicted, and do not slow down others."""
    dropped: Object = {"drop": ["ALL"]}
    return {
        "name": component,
        "image": _image(component, target),
        "command": list(command),
        **_credentials(target),
        "env": [
            *(variable(name, value) for name, value in USER_VARIABLES.items()),
            variable(HEADWAY_VERSION, __version__),
            *environment,
        ],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        # So that the reason for a crash loop is known after the log is gone.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": dropped | ({"add": list(capabilities)} if capabilities else {}),
        },
        "volumeMounts": [
            {"name": "headway-home", "mountPath": HOME},
            *([KEY_MOUNT] if component in KEYED else []),
            *([{"name": "headway-storage", "mountPath": STORAGE}] if _claim(target) else []),
            *mounts,
        ],
    }


def _image(component: Component, target: Target) -> str | None:
    images = target_images(target)
    if component == "data":
        return target.prepare.image or images.worker
    return images.worker if component == "worker" else images.coordinator


def queue_labels(target: Target) -> dict[str, str]:
    """Labels of a Job that waits in the target's queue."""
    labelled = {QUEUE: target.queue, PRIORITY: target.priority}
    return {label: value for label, value in labelled.items() if value is not None}


def spec_config_map(resolved: Resolved, target: Target) -> Object:
    """The resolved run. It says what code runs, by digest: so nobody can change it, not even
    whoever has the coordinator's token."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(resolved.name, target.kube.namespace, _spec_name(resolved)),
        "immutable": True,
        "data": {"spec.json": spec_text(resolved)},
    }


def spec_volume(resolved: Resolved) -> Object:
    """Pods read the run from here, since others may write to the storage."""
    return {"name": SPEC_VOLUME, "configMap": {"name": _spec_name(resolved)}}


def _spec_name(resolved: Resolved) -> str:
    digest = hashlib.sha256(spec_text(resolved).encode()).hexdigest()
    return spec_object(resolved.name, digest[:12])


def spec_mount() -> Object:
    return {"name": SPEC_VOLUME, "mountPath": SPEC_FOLDER, "readOnly": True}


def variable(name: str, value: str) -> Object:
    return {"name": name, "value": value}


def variable_from_field(name: str, field: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def affinity(
    target: Target, is_off_spot: bool, alternatives: Sequence[Sequence[Object]] = ((),)
) -> Object:
    """Node affinity: one term for each alternative, of which a machine has to fulfil one. The
    coordinator extends them when it lifts the gate of a worker's pod: Kubernetes allows no other
    change. So there is a term even if nothing else is required.

    No term may name a machine: Karpenter makes no machine for a pod that does."""
    required = {"nodeSelectorTerms": node_terms(target, is_off_spot, alternatives)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def node_terms(
    target: Target, is_off_spot: bool, alternatives: Sequence[Sequence[Object]]
) -> list[Object]:
    expressions = [{"key": "kubernetes.io/os", "operator": "NotIn", "values": ["windows"]}]
    if is_off_spot:
        expressions += [
            {"key": key, "operator": "NotIn", "values": [value]}
            for key, value in target.spot_label.items()
        ]
    return [{"matchExpressions": [*expressions, *alternative]} for alternative in alternatives]


def off_suspects() -> Object:
    """Term of anti-affinity to machines that lost a pod a moment ago, also one of another run. The
    affinity of a pod is fixed once it exists, so what says `not there` is a label of the lost
    pod."""
    return {
        "labelSelector": {"matchExpressions": [{"key": SUSPECT, "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }


def short_node_tolerations() -> list[Object]:
    """For a pod that exists only once: if its node is lost, a replacement starts at once.
    Kubernetes' default is five minutes."""
    return [
        {
            "key": f"node.kubernetes.io/{trouble}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 0,
        }
        for trouble in ("not-ready", "unreachable")
    ]


def _credentials(target: Target) -> Object:
    if target.storage is None or target.storage.secret is None:
        return {}
    return {"envFrom": [{"secretRef": {"name": target.storage.secret}}]}


def _claim(target: Target) -> list[Object]:
    if target.storage is None or target.storage.claim is None:
        return []
    claim = {"claimName": target.storage.claim}
    return [{"name": "headway-storage", "persistentVolumeClaim": claim}]
