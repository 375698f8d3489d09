"""Plain pods for tests, as a restricted namespace wants them."""

from __future__ import annotations

from collections.abc import Sequence

from cluster_tool.api import Api, ApiError, Object
from cluster_tool.volumes import PodParts
from support.waiting import wait_for

PATIENCE_SECONDS = 90.0
ENDED = ("Succeeded", "Failed")


def start(
    api: Api,
    namespace: str,
    name: str,
    image: str,
    command: Sequence[str],
    node: str | None = None,
    parts: PodParts | None = None,
) -> None:
    """On that node, or where there is room. `/scratch` is on the node's disk; with `parts` it has
    Headway, and the shared folder at `/shared`. The label `app` is its name up to a dash."""
    container: Object = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    spec: Object = {
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    if parts:
        shared = {"name": "shared", "persistentVolumeClaim": {"claimName": parts.claim}}
        container["env"] = [
            {"name": key, "value": value} for key, value in parts.environment.items()
        ]
        container["volumeMounts"] += [*parts.mounts, {"name": "shared", "mountPath": "/shared"}]
        spec["volumes"] += [*parts.volumes, shared]
    metadata = {"name": name, "labels": {"app": name.partition("-")[0]}}
    api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": metadata, "spec": spec})


def state(api: Api, namespace: str, name: str) -> Object:
    return api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")


def phase(api: Api, namespace: str, name: str) -> str:
    found: str = state(api, namespace, name)["status"]["phase"]
    return found


def wait_running(api: Api, namespace: str, name: str) -> str:
    """Its address."""

    def runs() -> str | None:
        status = state(api, namespace, name)["status"]
        assert status["phase"] not in ENDED, f"{name}: {log(api, namespace, name)}\n{status}"
        return status.get("podIP") if status["phase"] == "Running" else None

    address = wait_for(f"pod {name} to run", runs, PATIENCE_SECONDS)
    assert address
    return address


def wait_done(api: Api, namespace: str, name: str) -> str:
    """What it printed; it must end well."""
    wait_for(f"pod {name} to end", lambda: phase(api, namespace, name) in ENDED, PATIENCE_SECONDS)
    printed = log(api, namespace, name)
    assert phase(api, namespace, name) == "Succeeded", f"{name}: {printed}"
    return printed


def log(api: Api, namespace: str, name: str) -> str:
    try:
        return api.text(f"/api/v1/namespaces/{namespace}/pods/{name}/log")
    except ApiError as error:
        return str(error)
