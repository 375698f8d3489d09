"""What a target adds to the pods of a run. Nothing is replaced: what clashes is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from posixpath import normpath
from typing import Any

from headway.errors import BadInput
from headway.kube.names import USER_VARIABLES, WHEELS, Component, Object
from headway.spec.pod_config import ARCHITECTURE, ComponentConfig, PodConfig, PrepareConfig
from headway.spec.target_file import Target

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
OUR_LABELS = "headway/"
FOR_USERS = frozenset({"HEADWAY_CACHE", "HEADWAY_CACHE_BYTES"})
"""Of ours: where sets of a bucket are cached in a pod, and how much of them."""
DO_NOT_DISRUPT = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
UNPRIVILEGED: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""What restricted pod security asks of every container; the rest is set for the pod."""
ACCELERATOR_TAINTS = frozenset(
    {
        *("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi"),
        *("aws.amazon.com/neuron", "google.com/tpu"),
    }
)
"""Keys by which clouds and administrators keep other pods off such machines."""
SIDECAR = {"restartPolicy": "Always"}
MAY_REPLACE = frozenset(USER_VARIABLES) - {"HOME"}
"""Defaults of Headway's, not settings: a cache may be on a volume that other pods share."""
SET_BY_KUBERNETES = frozenset({"JOB_COMPLETION_INDEX"})
SYSTEM_FOLDERS = frozenset(
    {
        *("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"),
        *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/sbin"),
        *("/usr/local", "/usr/local/bin", "/usr/local/lib"),
    }
)
"""Without which nothing in an image starts. Below them drivers and certificates are mounted."""


class TargetMismatch(BadInput):
    """The target does not fit, or does not fit the run. `path` is the key of it that is concerned,
    whether it is written or missing."""

    def __init__(self, message: str, path: tuple[str | int, ...], hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.path = path


def with_overrides(template: Object, target: Target, component: Component) -> Object:
    """A pod template of one container with the target's additions."""
    pod = target.pod
    own, section = _own_config(target, component)
    made = deepcopy(template)
    metadata, spec = made["metadata"], made["spec"]
    (container,) = spec["containers"]
    annotations = (DO_NOT_DISRUPT if own.do_not_disrupt else {}) | pod.annotations
    _add(metadata, "labels", pod.labels, ("pod", "labels"))
    _add(metadata, "annotations", annotations, ("pod", "annotations"))
    _add_placement(spec, own, section)
    # Workers of a higher priority would evict their own coordinator.
    if priority := own.priority_class or pod.priority_class:
        spec["priorityClassName"] = priority
    _add_containers(spec, own, section)
    _extend(spec, "imagePullSecrets", [{"name": name} for name in pod.image_pull_secrets])
    _add_environment(container, pod.env)
    _add_volumes(spec, pod.volumes)
    _add_mounts(container, pod)
    return made


def _own_config(target: Target, component: Component) -> tuple[ComponentConfig, str]:
    """What the target says of pods of this kind, and its key."""
    if component == "worker":
        return target.pod, "pod"
    if component == "data":
        return _like_workers(target.prepare, target.pod), "prepare"
    return target.coordinator, "coordinator"


def _like_workers(own: PrepareConfig, pod: PodConfig) -> PrepareConfig:
    """With what the target says of workers alone: the architecture of the image that they share,
    and tolerations, except of accelerators' machines: these stay free for those who need them."""
    inherited: dict[str, Any] = {}
    if own.image is None and own.architecture is None and ARCHITECTURE not in own.node_selector:
        inherited["architecture"] = pod.architecture or pod.node_selector.get(ARCHITECTURE)
    if "tolerations" not in own.model_fields_set:
        devices = ACCELERATOR_TAINTS | {pod.device}
        inherited["tolerations"] = [one for one in pod.tolerations if one.get("key") not in devices]
    return own.model_copy(update=inherited)


def require_restricted(pod: PodConfig) -> None:
    if pod.host_network:
        raise TargetMismatch(
            "the machine's network is not what `security: restricted` allows",
            ("pod", "host_network"),
            "security: baseline, in a namespace that lets hostNetwork through",
        )
    for index, volume in enumerate(pod.volumes):
        kind = next(key for key in volume if key != "name")
        if kind not in RESTRICTED_VOLUMES:
            raise TargetMismatch(
                f"{volume['name']} is a {kind} volume, which `security: restricted` does not allow",
                ("pod", "volumes", index),
                "mount a PersistentVolumeClaim; or security: baseline, if the namespace lets such "
                "volumes through",
            )


def _add_placement(spec: Object, own: ComponentConfig, section: str) -> None:
    architecture = {ARCHITECTURE: own.architecture} if own.architecture is not None else {}
    _add(spec, "nodeSelector", own.node_selector | architecture, (section, "node_selector"))
    _extend(spec, "tolerations", own.tolerations)
    names = {
        "schedulerName": own.scheduler,
        "runtimeClassName": own.runtime_class,
    }
    spec |= {key: name for key, name in names.items() if name is not None}


def _add_containers(spec: Object, own: ComponentConfig, section: str) -> None:
    there = {WHEELS, *(container["name"] for container in spec["containers"])}
    for key, containers in (("init_containers", own.init_containers), ("sidecars", own.sidecars)):
        for index, container in enumerate(containers):
            if container["name"] in there:
                raise TargetMismatch(
                    f"container {container['name']} exists already",
                    (section, key, index),
                    "give it another name",
                )
            there.add(container["name"])
    # Sidecars first: init containers may need them, and those wait until a sidecar has started.
    sidecars = [SIDECAR | container for container in own.sidecars]
    _extend(spec, "initContainers", [_unprivileged(one) for one in sidecars + own.init_containers])


def _unprivileged(container: Object) -> Object:
    return container | {"securityContext": UNPRIVILEGED | container.get("securityContext", {})}


def _add(into: Object, key: str, added: Mapping[str, str], path: tuple[str, ...]) -> None:
    there = into.get(key, {})
    for name in added:
        if name in there or name.startswith(OUR_LABELS):
            raise TargetMismatch(f"{name} is set by Headway", (*path, name), "leave it out")
    if added:
        into[key] = there | dict(added)


def _extend(into: Object, key: str, added: list[dict[str, Any]]) -> None:
    if added:
        into[key] = [*into.get(key, []), *added]


def _add_environment(container: Object, added: Mapping[str, str]) -> None:
    container["env"] = [
        variable
        for variable in container["env"]
        if variable["name"] not in MAY_REPLACE or variable["name"] not in added
    ]
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
    ours = {_place(mount) for mount in container["volumeMounts"]}
    there = set(ours)
    for index, mount in enumerate(pod.mounts):
        path = ("pod", "mounts", index)
        if mount["name"] not in volumes:
            known = f"pod.volumes has {', '.join(sorted(volumes))}" if volumes else None
            raise TargetMismatch(f"pod.volumes has no volume {mount['name']}", path, known)
        place = _place(mount)
        if place in there:
            raise TargetMismatch(
                f"something is mounted at {mount['mountPath']} already", path, "mount it elsewhere"
            )
        hidden = next((one for one in sorted(ours) if f"{one}/".startswith(f"{place}/")), None)
        if place in SYSTEM_FOLDERS or hidden is not None:
            raise TargetMismatch(
                f"a volume at {mount['mountPath']} would hide {hidden or 'programs of the image'}",
                path,
                "mount it elsewhere, or only what is needed of it, below that folder",
            )
        there.add(place)
    _extend(container, "volumeMounts", pod.mounts)


def _place(mount: Mapping[str, Any]) -> str:
    return normpath(f"/{mount['mountPath'].strip('/')}")
