"""What a pod of Headway mounts: its packages and its code from this machine, and a shared folder.

By claims on volumes that are made here: a restricted namespace takes no folder of the host itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cluster_tool.api import Api, Object
from cluster_tool.binaries import REPOSITORY
from cluster_tool.image_files import USER, venv

LABEL = "headway-test/namespace"
"""On volumes, which belong to no namespace: whose they are."""
SHARED = "shared"


@dataclass(frozen=True)
class PodParts:
    """What a target's pods need to run Headway."""

    volumes: list[Object]
    mounts: list[Object]
    environment: dict[str, str]
    claim: str
    """Read and written by every pod: for `storage: {claim: …}`."""


def lend(api: Api, namespace: str, shared: Path) -> PodParts:
    """Into a namespace; `shared` becomes the folder that all its pods can write."""
    shared.mkdir(parents=True, exist_ok=True)
    shared.chmod(0o770)
    os.chown(shared, USER, USER)
    # At the same paths as here: a venv has its own path in it, and one to the code.
    read_only = {"venv": venv(), "source": REPOSITORY / "src"}
    for name, path in read_only.items():
        claim_folder(api, namespace, name, path, "ReadOnlyMany")
    claim_folder(api, namespace, SHARED, shared, "ReadWriteMany")
    return PodParts(
        volumes=[
            {"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": True}}
            for name in read_only
        ],
        mounts=[
            {"name": name, "mountPath": str(path), "readOnly": True}
            for name, path in read_only.items()
        ],
        environment={"PATH": f"{venv()}/bin:/bin:/usr/bin", "HF_HUB_OFFLINE": "1"},
        claim=SHARED,
    )


def take_back(api: Api, namespace: str) -> None:
    """After the namespace and its claims are gone."""
    api.delete("/api/v1/persistentvolumes", labelSelector=f"{LABEL}={namespace}")


def claim_folder(api: Api, namespace: str, name: str, path: Path, access: str) -> None:
    volume = f"{namespace}-{name}"
    size = {"storage": "1Ti"}
    both: Object = {"accessModes": [access], "storageClassName": ""}
    api.create(
        "/api/v1/persistentvolumes",
        {
            "metadata": {"name": volume, "labels": {LABEL: namespace}},
            "spec": {
                **both,
                "capacity": size,
                "claimRef": {"namespace": namespace, "name": name},
                "hostPath": {"path": str(path), "type": "Directory"},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
    )
    api.create(
        f"/api/v1/namespaces/{namespace}/persistentvolumeclaims",
        {
            "metadata": {"name": name},
            "spec": {**both, "volumeName": volume, "resources": {"requests": size}},
        },
    )
