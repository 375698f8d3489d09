"""The pods of a target, as the target file describes them: placement, resources, additions."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, WithJsonSchema, field_validator, model_validator

from headway.spec.section import VARIABLE_PATTERN, Flag, Section

OBJECT_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
IMAGE_PATTERN = r"@sha256:[0-9a-f]{64}$"
ARCHITECTURE = "kubernetes.io/arch"
AMOUNT = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")

ObjectName = Annotated[str, Field(pattern=OBJECT_PATTERN)]


def parse_amount(value: Any) -> str:
    text = str(value).strip()
    if AMOUNT.fullmatch(text) is None:
        raise ValueError(f"{value!r} is not an amount such as 8, 500m or 32Gi")
    return text


AmountField = Annotated[
    str,
    PlainValidator(parse_amount),
    WithJsonSchema(
        {
            "type": ["string", "number"],
            "description": "an amount as Kubernetes writes it",
            "examples": [8, "500m", "32Gi"],
        }
    ),
]


class ComponentConfig(Section):
    """How pods of one kind are placed, and what runs beside them."""

    node_selector: dict[str, str] = {}
    """Labels of the machines that they may run on."""
    architecture: Literal["amd64", "arm64"] | None = None
    """Processor architecture of these machines. Needed if the cluster has both, unless the image is
    for both."""
    tolerations: list[dict[str, Any]] = []
    """Kubernetes tolerations, added to Headway's own."""
    priority_class: ObjectName | None = None
    """Name of a PriorityClass. The coordinator has that of the workers, unless it is given one."""
    scheduler: str | None = None
    """Name of the scheduler. Left out: the cluster's own."""
    runtime_class: ObjectName | None = None
    """Name of a RuntimeClass, such as `nvidia`."""
    init_containers: list[dict[str, Any]] = []
    """Containers that run to their end before Headway's starts, as in a pod spec. They drop all
    capabilities, unless they say otherwise."""
    sidecars: list[dict[str, Any]] = []
    """Containers that run beside Headway's, and end with it; written like `init_containers`.
    Without `resources` of their own, the pod is among the first to be evicted."""
    do_not_disrupt: Flag = True
    """Whether Karpenter and the cluster autoscaler leave their machine alone, instead of moving
    pods to save machines. Karpenter then moves them for nothing else either: not when it drains the
    machine, and not when a spot machine is about to be taken."""

    @field_validator("init_containers", "sidecars")
    @classmethod
    def _name_and_image(cls, containers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for container in containers:
            if not all(isinstance(container.get(key), str) for key in ("name", "image")):
                raise ValueError(
                    f"{container} is not a container: write {{name: warm-up, image: ADDRESS, "
                    "command: [...]}"
                )
        return containers

    @model_validator(mode="after")
    def _one_architecture(self) -> Self:
        if self.architecture is not None and ARCHITECTURE in self.node_selector:
            raise ValueError(f"architecture and node_selector both set {ARCHITECTURE}")
        return self


class PrepareConfig(ComponentConfig):
    """The pods that prepare data on the target: `headway data prepare --on`, and `run --on` where
    all sources are addresses, `hub:` or `claim:`. Their volumes, variables and so on are those of
    `pod`."""

    nodes: int = Field(default=4, ge=1, le=1000)
    """Number of pods at a time. A long preparation has twenty parts for each."""
    image: str | None = Field(default=None, pattern=IMAGE_PATTERN)
    """Image of these pods, by digest, with Headway and its extra `train`. Left out: `image` of the
    target. Needed where that has no Headway, for data that cannot be prepared on your machine."""
    resources: dict[str, AmountField] | None = None
    """Resources of each pod, as request and as limit. As many processes as `cpu` has tokenise.
    Left out: `cpu` and `memory` of `pod.resources`, at most 8 and 32Gi."""
    architecture: Literal["amd64", "arm64"] | None = None
    """Processor architecture of their machines. Left out: that of `pod`, unless `image` is given.
    """
    tolerations: list[dict[str, Any]] = []
    """Kubernetes tolerations, added to Headway's own. Left out: those of `pod`, except for taints
    of accelerators (`nvidia.com/gpu`): repeat these if the cluster has no other machines."""
    secrets: list[Annotated[str, Field(pattern=VARIABLE_PATTERN)]] = []
    """Variables that these pods get from `secret` of the target, such as `HF_TOKEN`; with `run
    --on`, besides those that the run file lists."""
    do_not_disrupt: Flag = False
    """As for workers: what a lost pod had finished is kept, and another takes its place."""


class DeviceClaim(Section):
    """Devices of a pod by Kubernetes' dynamic resource allocation (DRA)."""

    name: ObjectName
    """Name of the claim in the pod."""
    template: ObjectName
    """Name of the ResourceClaimTemplate in the namespace."""


class PodConfig(ComponentConfig):
    """The pods of workers. Volumes, mounts, variables, labels, annotations, pull secrets, user and
    group are those of all pods. Values that conflict with Headway's own are refused."""

    resources: dict[str, AmountField] = {}
    """Resources of a worker's pod, as request and as limit: `cpu`, `memory`, and others such as
    `vpc.amazonaws.com/efa`. Accelerators are added automatically. `ephemeral-storage` left out:
    `HEADWAY_CACHE_BYTES` of `env`, if data is in a bucket, as request only."""
    do_not_disrupt: Flag = False
    """As for the coordinator. On spot machines leave it off: workers would lose the notice, and
    with it the save before the end."""
    device: str | None = "nvidia.com/gpu"
    """Resource name of one accelerator in Kubernetes. `null`: `device_claims` has them."""
    device_claims: list[DeviceClaim] = []
    """Claims of devices, such as `{name: gpus, template: eight-h100}`."""
    shared_memory: AmountField = "1Gi"
    """Size of /dev/shm; its content counts towards the pod's `memory`."""
    topology: str | None = None
    """Label of machines: workers are placed where its value is the same, as far as there is room.
    For example `topology.kubernetes.io/zone`, or the label of a rack or network block."""
    host_network: Flag = False
    """Whether workers use the machine's network: no NetworkPolicy applies to them. Not with
    `security: restricted`."""
    volumes: list[dict[str, Any]] = []
    """More volumes, as in a pod spec."""
    mounts: list[dict[str, Any]] = []
    """Mounts of these volumes, as in a pod spec: `{name: models, mountPath: /models}`. Places that
    would hide the image's system (/usr, /etc) or what Headway mounts are refused."""
    env: dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], str] = {}
    """More environment variables. Everyone who can read pods can read them: no secrets here."""
    labels: dict[str, str] = {}
    """More labels."""
    annotations: dict[str, str] = {}
    """More annotations."""
    image_pull_secrets: list[ObjectName] = []
    """Names of the image pull secrets."""
    user: int = Field(default=1000, ge=1)
    """User id of the pods. Never root."""
    group: int = Field(default=1000, ge=1)
    """Group id of the pods, and of the files in their volumes."""

    @field_validator("volumes")
    @classmethod
    def _one_kind_each(cls, volumes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for volume in volumes:
            if not isinstance(volume.get("name"), str) or len(volume) != 2:
                raise ValueError(
                    f"{volume} is not a volume: give a name and one kind, as in "
                    "{name: models, persistentVolumeClaim: {claimName: models}}"
                )
        return volumes

    @field_validator("mounts")
    @classmethod
    def _name_and_path(cls, mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for mount in mounts:
            if not all(isinstance(mount.get(key), str) for key in ("name", "mountPath")):
                raise ValueError(
                    f"{mount} is not a mount: write {{name: models, mountPath: /models}}"
                )
        return mounts


class CoordinatorConfig(ComponentConfig):
    """The pod of the membership coordinator, and those that serve a claim to your machine. They
    never run on a spot machine that `spot_label` identifies."""

    image: str | None = Field(default=None, pattern=IMAGE_PATTERN)
    """Image of these pods, by digest, with Headway and its wheels, without torch. Given, `image` of
    the workers can be any with Python 3.11 to 3.14 and torch: an init container of this image
    brings Headway, unless it is there. Left out: `image`, which has Headway."""
    resources: dict[str, AmountField] = {"cpu": "500m", "memory": "512Mi"}
    """Resources of the coordinator's pod, as request and as limit. A script with more than 150,000
    heartbeats needs more memory: 3Gi for a million."""
