"""Workers in an image without Headway: an init container of the coordinator's image, which has it,
copies its wheels into the pod, and the worker's container unpacks what its image lacks
(`bootstrap.py`)."""

from __future__ import annotations

from headway.kube.images import target_images
from headway.kube.names import HEADWAY_VERSION, PACKAGES, WHEELS, Object
from headway.kube.pod_overrides import OURS, UNPRIVILEGED
from headway.kube.wheels import PROGRAM
from headway.spec.target_file import Target

OF_THE_POD = "headway-home"
"""The only volume of ours that the init container has: no key, no storage, no secret."""
WHEELS_RESOURCES = {"cpu": "250m", "memory": "256Mi"}
"""Less than a worker has, so that the pod needs no more because of it."""
PACKAGES_BYTES = "1Gi"
"""Limit of the wheels, 112 MB, of what is unpacked, 100 MB and 45 MB more to reach a bucket, and of
bytecode."""


def has_own_image(target: Target) -> bool:
    """Whether the workers' image need not have Headway."""
    return target_images(target).brings_headway


def add_wheels(template: Object, target: Target) -> None:
    """To a worker's pod, which has the target's additions: in the coordinator's pod its image gets
    the same variables and mounts."""
    spec = template["spec"]
    (worker,) = spec["containers"]
    packages = {"name": "headway-packages", "mountPath": PACKAGES}
    shared = [OF_THE_POD, *(volume["name"] for volume in target.pod.volumes)]
    copying = {
        "name": WHEELS,
        "image": target_images(target).coordinator,
        "command": ["headway", "wheels", PACKAGES],
        "env": [
            one
            for one in worker["env"]
            if "value" in one and (one["name"] == HEADWAY_VERSION or OURS not in one["name"])
        ],
        "resources": {"requests": WHEELS_RESOURCES, "limits": WHEELS_RESOURCES},
        "terminationMessagePolicy": worker["terminationMessagePolicy"],
        "securityContext": {**UNPRIVILEGED, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            *(one for one in worker["volumeMounts"] if one["name"] in shared),
            packages,
        ],
    }
    worker["command"] = ["python3", f"{PACKAGES}/{PROGRAM}", "node"]
    # Writable: Python keeps bytecode there, for the pod's next process.
    worker["volumeMounts"].append(packages)
    spec["volumes"].append({"name": packages["name"], "emptyDir": {"sizeLimit": PACKAGES_BYTES}})
    spec["initContainers"] = [*spec.get("initContainers", []), copying]
