"""What all pods of a run share: restricted security, the key, the storage, a home folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.kube.names import (
    HOME,
    KEY_FOLDER,
    SPEC_FOLDER,
    STORAGE,
    Component,
    Object,
    labels,
    run_object,
)
from headway.spec.target_file import Target

READ_BY_GROUP = 0o440
"""Mode of the key's file, whose group is the pod's; written in decimal, since JSON has no octal."""


def metadata(
    run: str, namespace: str, name: str | None = None, component: Component | None = None
) -> Object:
    return {
        "name": name or run_object(run),
        "namespace": namespace,
        "labels": labels(run, component),
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
                {
                    "name": "headway-key",
                    "secret": {"secretName": run_object(run), "defaultMode": READ_BY_GROUP},
                },
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
        "image": target.image,
        "command": list(command),
        **_credentials(target),
        "env": [{"name": "HOME", "value": HOME}, *environment],
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
            {"name": "headway-key", "mountPath": KEY_FOLDER, "readOnly": True},
            *([{"name": "headway-storage", "mountPath": STORAGE}] if _claim(target) else []),
            *mounts,
        ],
    }


def spec_volume(run: str) -> Object:
    """The resolved run. Pods read it from here, since others may write to the storage."""
    return {"name": "headway-spec", "configMap": {"name": run_object(run)}}


def spec_mount() -> Object:
    return {"name": "headway-spec", "mountPath": SPEC_FOLDER, "readOnly": True}


def variable(name: str, value: str) -> Object:
    return {"name": name, "value": value}


def variable_from_field(name: str, field: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def affinity(target: Target, is_off_spot: bool) -> Object:
    """A single term, which the coordinator extends before a worker's pod is placed: Kubernetes
    allows no other change to the affinity. So the term exists even if nothing else is required."""
    expressions = [{"key": "kubernetes.io/os", "operator": "NotIn", "values": ["windows"]}]
    if is_off_spot:
        expressions += [
            {"key": key, "operator": "NotIn", "values": [value]}
            for key, value in target.spot_label.items()
        ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


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
