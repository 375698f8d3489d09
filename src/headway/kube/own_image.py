"""Workers in an image without Headway: the coordinator's image has it, and an init container of
each worker's pod fetches it from there (`bootstrap.py`).

The coordinator's pod serves the files from a container of its own, with its own share of a
processor: thousands of workers that start at once must not delay its heartbeats.
"""

from __future__ import annotations

import hashlib
import json

from headway.kube.images import target_images
from headway.kube.names import (
    BOOTSTRAP,
    BOOTSTRAP_FOLDER,
    HEADWAY_VERSION,
    PACKAGES,
    WHEELS,
    WHEELS_PORT,
    Object,
    bootstrap_object,
    wheels_address,
)
from headway.kube.pods import metadata
from headway.kube.wheels import LIST, PROGRAM, bootstrap_files
from headway.spec.resolve import Resolved
from headway.spec.target_file import Target
from headway.state.run_directory import spec_text

OURS = "HEADWAY_"
OF_THE_RUN = ("headway-key", "headway-storage", "headway-spec", "headway-shm", "headway-fetched")
BOOTSTRAP_RESOURCES = {"cpu": "250m", "memory": "256Mi"}
"""Less than a worker has, so that the pod needs no more because of it."""
WHEELS_RESOURCES = {"cpu": "250m", "memory": "128Mi"}
PACKAGES_BYTES = "1Gi"
"""Limit of what is unpacked: 100 MB, 45 MB more to reach a bucket, and bytecode."""
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes mounts it into each container that has no mount there."""
PROGRAM_FILE = f"{BOOTSTRAP_FOLDER}/{PROGRAM}"


def has_own_image(target: Target) -> bool:
    """Whether the workers' image need not have Headway."""
    return target_images(target).brings_headway


def bootstrap_config_map(resolved: Resolved, target: Target) -> Object:
    """What workers run, by SHA-256: nobody can change it."""
    files = bootstrap_files(spec_text(resolved))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(resolved.name, target.kube.namespace, _name(resolved.name, files)),
        "immutable": True,
        "data": files,
    }


def add_bootstrap(template: Object, resolved: Resolved, target: Target) -> None:
    """To a worker's pod, which has the target's additions: its image may need them, too."""
    spec = template["spec"]
    (worker,) = spec["containers"]
    name = _name(resolved.name, bootstrap_files(spec_text(resolved)))
    spec["volumes"] += [
        {"name": "headway-bootstrap", "configMap": {"name": name}},
        {"name": "headway-packages", "emptyDir": {"sizeLimit": PACKAGES_BYTES}},
    ]
    worker["volumeMounts"] += [
        {"name": "headway-bootstrap", "mountPath": BOOTSTRAP_FOLDER, "readOnly": True},
        # Writable: Python keeps bytecode there, for the pod's next process.
        {"name": "headway-packages", "mountPath": PACKAGES},
    ]
    worker["command"] = ["python3", PROGRAM_FILE, "start", PACKAGES, "node"]
    address = wheels_address(resolved.name, target.kube.namespace)
    fetching = _beside(worker, BOOTSTRAP, BOOTSTRAP_RESOURCES)
    fetching["command"] = ["python3", PROGRAM_FILE, "fetch", f"{BOOTSTRAP_FOLDER}/{LIST}"]
    fetching["command"] += [PACKAGES, address]
    # Last: a proxy or a volume that others set up may be needed.
    spec["initContainers"] = [*spec.get("initContainers", []), fetching]


def add_wheels(template: Object) -> None:
    """To the coordinator's pod. It ends with the coordinator, and is restarted if it crashes."""
    spec = template["spec"]
    (coordinator,) = spec["containers"]
    serving = _beside(coordinator, WHEELS, WHEELS_RESOURCES)
    serving["command"] = ["headway", "wheels"]
    serving["ports"] = [{"name": WHEELS, "containerPort": WHEELS_PORT, "protocol": "TCP"}]
    serving["restartPolicy"] = "Always"
    # Empty: the coordinator's token would be mounted there, and this container answers anybody.
    spec["volumes"].append({"name": "headway-no-token", "emptyDir": {}})
    serving["volumeMounts"] = [
        *(one for one in serving["volumeMounts"] if one["mountPath"].rstrip("/") != TOKEN),
        {"name": "headway-no-token", "mountPath": TOKEN, "readOnly": True},
    ]
    spec["initContainers"] = [serving, *spec.get("initContainers", [])]


def _beside(container: Object, name: str, resources: dict[str, str]) -> Object:
    """A container with the same image, and the target's variables and mounts. It gets nothing of
    the run: no key, no storage, no secret."""
    shared = ("image", "terminationMessagePolicy", "securityContext")
    return {
        "name": name,
        **{key: container[key] for key in shared},
        "env": [
            one
            for one in container["env"]
            if "value" in one and (one["name"] == HEADWAY_VERSION or OURS not in one["name"])
        ],
        "volumeMounts": [one for one in container["volumeMounts"] if one["name"] not in OF_THE_RUN],
        "resources": {"requests": resources, "limits": resources},
    }


def _name(run: str, files: dict[str, str]) -> str:
    return bootstrap_object(run, hashlib.sha256(json.dumps(files).encode()).hexdigest()[:12])
