"""What a target adds to the pods of a run. Nothing is replaced: what clashes is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from headway.errors import BadInput
from headway.kube.names import Object
from headway.spec.target_file import PodConfig

RESTRICTED_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
"""Kinds that Kubernetes' own restricted pod security lets through."""
OURS = "HEADWAY_"
FOR_USERS = frozenset({"HEADWAY_CACHE", "HEADWAY_CACHE_BYTES"})
"""Of ours: where sets of a bucket are cached in a pod, and how much of them."""
SET_BY_KUBERNETES = frozenset({"JOB_COMPLETION_INDEX"})


class TargetMismatch(BadInput):
    """The target does not fit, or does not fit the run. `path` is the key of it that is concerned,
    whether it is written or missing."""

    def __init__(self, message: str, path: tuple[str | int, ...], hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.path = path


def with_overrides(template: Object, pod: PodConfig, node_selector: Mapping[str, str]) -> Object:
    """A pod template of one container with the target's additions."""
    made = deepcopy(template)
    metadata, spec = made["metadata"], made["spec"]
    (container,) = spec["containers"]
    _add(metadata, "labels", pod.labels, ("pod", "labels"))
    _add(metadata, "annotations", pod.annotations, ("pod", "annotations"))
    _add(spec, "nodeSelector", node_selector, ("pod", "node_selector"))
    _extend(spec, "tolerations", pod.tolerations)
    _extend(spec, "imagePullSecrets", [{"name": name} for name in pod.image_pull_secrets])
    _add_environment(container, pod.env)
    _add_volumes(spec, pod.volumes)
    _add_mounts(container, pod)
    return made


def require_restricted(pod: PodConfig) -> None:
    for index, volume in enumerate(pod.volumes):
        kind = next(key for key in volume if key != "name")
        if kind not in RESTRICTED_VOLUMES:
            raise TargetMismatch(
                f"{volume['name']} is a {kind} volume, which `security: restricted` does not allow",
                ("pod", "volumes", index),
                "mount a PersistentVolumeClaim; or security: baseline, if the namespace lets such "
                "volumes through",
            )


def _add(into: Object, key: str, added: Mapping[str, str], path: tuple[str, ...]) -> None:
    there = into.get(key, {})
    for name in added:
        if name in there:
            raise TargetMismatch(f"{name} is set by Headway", (*path, name), "leave it out")
    if added:
        into[key] = there | dict(added)


def _extend(into: Object, key: str, added: list[dict[str, Any]]) -> None:
    if added:
        into[key] = [*into.get(key, []), *added]


def _add_environment(container: Object, added: Mapping[str, str]) -> None:
    there = {variable["name"] for variable in container["env"]} | SET_BY_KUBERNETES
    for name in added:
        if name in there or (name.startswith(OURS) and name not in FOR_USERS):
            raise TargetMismatch(f"{name} is set by Headway", ("pod", "env", name), "leave it out")
    _extend(container, "env", [{"name": name, "value": value} for name, value in added.items()])


def _add_volumes(spec: Object, added: list[dict[str, Any]]) -> None:
    there = {volume["name"] for volume in spec["volumes"]}
    for index, volume in enumerate(added):
        if volume["name"] in there:
            raise TargetMismatch(
                f"volume {volume['name']} exists already",
                ("pod", "volumes", index),
                "give it another name",
            )
        there.add(volume["name"])
    _extend(spec, "volumes", added)


def _add_mounts(container: Object, pod: PodConfig) -> None:
    volumes = {volume["name"] for volume in pod.volumes}
    there = {mount["mountPath"].rstrip("/") for mount in container["volumeMounts"]}
    for index, mount in enumerate(pod.mounts):
        path = ("pod", "mounts", index)
        if mount["name"] not in volumes:
            known = f"pod.volumes has {', '.join(sorted(volumes))}" if volumes else None
            raise TargetMismatch(f"pod.volumes has no volume {mount['name']}", path, known)
        if mount["mountPath"].rstrip("/") in there:
            raise TargetMismatch(
                f"something is mounted at {mount['mountPath']} already", path, "mount it elsewhere"
            )
        there.add(mount["mountPath"].rstrip("/"))
    _extend(container, "volumeMounts", pod.mounts)
