"""The target file: where to run. Read beside the run file, then in the user's config folder."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PlainValidator,
    RootModel,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from headway.spec.run_file import BudgetConfig, ResourcesConfig, RunFile
from headway.spec.section import NAME_PATTERN, VARIABLE_PATTERN, Section, Shorthand

OBJECT_PATTERN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
NAMESPACE_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
IMAGE_PATTERN = r"@sha256:[0-9a-f]{64}$"
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


class KubeConfig(Section):
    """Cluster and namespace."""

    context: str | None = None
    """Context of the kubeconfig. Left out: the current one."""
    namespace: str = Field(default="default", pattern=NAMESPACE_PATTERN)
    """Namespace of the run's objects."""


class StorageConfig(Section):
    """Storage of run directories and data: a URL, or `{claim: shared-fs}`. Runs are in `runs/NAME`
    below it; uploaded data and code are beside them, named by their content."""

    url: str | None = Field(default=None, pattern=r"^(s3|gs)://")
    """URL of a bucket, s3:// or gs://. A bare string means this."""
    claim: ObjectName | None = None
    """PersistentVolumeClaim that every pod of a run mounts."""
    secret: ObjectName | None = None
    """With a URL: Secret with the environment variables for the bucket, such as
    `AWS_ACCESS_KEY_ID`. Left out: the pods' own identity is used (`service_account`)."""

    @model_validator(mode="after")
    def _one(self) -> StorageConfig:
        if (self.url is None) == (self.claim is None):
            raise ValueError("give a URL (s3://, gs://) or {claim: NAME}")
        if self.secret is not None and self.url is None:
            raise ValueError("`secret` needs a URL: a claim takes no credentials")
        return self


class PodConfig(Section):
    """Additions to the pods of workers and coordinator. Values that conflict with Headway's own are
    refused."""

    resources: dict[str, AmountField] = {}
    """Resources of a worker's pod, as request and as limit: `cpu`, `memory`, and others such as
    `ephemeral-storage` or `vpc.amazonaws.com/efa`. Accelerators are added automatically."""
    device: str = "nvidia.com/gpu"
    """Resource name of one accelerator in Kubernetes."""
    shared_memory: AmountField = "1Gi"
    """Size of /dev/shm; its content counts towards the pod's `memory`."""
    tolerations: list[dict[str, Any]] = []
    """Kubernetes tolerations, added to Headway's own."""
    node_selector: dict[str, str] = {}
    """Labels of the machines that workers may run on."""
    volumes: list[dict[str, Any]] = []
    """More volumes, as in a pod spec."""
    mounts: list[dict[str, Any]] = []
    """Mounts of these volumes, as in a pod spec: `{name: models, mountPath: /models}`."""
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


class CoordinatorConfig(Section):
    """The pod of the membership coordinator. It never runs on a spot machine that `spot_label`
    identifies."""

    node_selector: dict[str, str] = {}
    """Labels of the machine it may run on; `pod.node_selector` is for workers only."""
    resources: dict[str, AmountField] = {"cpu": "500m", "memory": "512Mi"}
    """Resources of its pod, as request and as limit. Runs of more than 150,000 steps need more
    memory: 3Gi for a million."""


class ServiceAccountConfig(Section):
    """Identity of a run's pods in the cloud."""

    annotations: dict[str, str] = {}
    """Annotations of the run's service account, which give its pods a cloud identity:
    `eks.amazonaws.com/role-arn`, `iam.gke.io/gcp-service-account`."""


class Target(Section):
    """One target, with its defaults; the run file can override them."""

    kube: KubeConfig = KubeConfig()
    """Cluster and namespace."""
    image: str | None = Field(default=None, pattern=IMAGE_PATTERN)
    """Image of the pods, by digest: a tag can change during a run."""
    storage: Annotated[StorageConfig, Shorthand("url")] | None = None
    """Storage of run directories and data."""
    secret: ObjectName | None = None
    """Secret with the values of the variables that the run file lists under `secrets`."""
    resources: ResourcesConfig | None = None
    """Default devices and nodes."""
    budget: BudgetConfig | None = None
    """Default budget."""
    queue: ObjectName | None = None
    """Kueue LocalQueue."""
    prices: dict[str, float] = {}
    """Dollars per device hour, by device."""
    spot_label: dict[str, str] = {}
    """Label of spot machines, as in `{karpenter.sh/capacity-type: spot}`."""
    pod: PodConfig = PodConfig()
    """Additions to the pods."""
    coordinator: CoordinatorConfig = CoordinatorConfig()
    """Pod of the coordinator."""
    service_account: ServiceAccountConfig = ServiceAccountConfig()
    """Identity of the run's pods in the cloud."""
    egress: list[str] = []
    """Address ranges that pods may reach besides each other and name servers, such as
    `10.0.0.0/8`. They must include the storage, the hub, and the API server: without it, lost pods
    are not replaced. Left out: all addresses."""
    security: Literal["restricted", "baseline"] = "restricted"
    """Pod security level. `baseline` allows volumes of any kind, and adds the capability IPC_LOCK
    if `pod.resources` has an RDMA device. Kubernetes' own `baseline` allows neither IPC_LOCK nor
    hostPath: the namespace must allow them."""

    @field_validator("spot_label")
    @classmethod
    def _one_label(cls, label: dict[str, str]) -> dict[str, str]:
        if len(label) > 1:
            raise ValueError(f"give one label (found {', '.join(label)})")
        return label

    @field_validator("egress")
    @classmethod
    def _ranges(cls, ranges: list[str]) -> list[str]:
        for text in ranges:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise ValueError(f"{error}; write for example 10.0.0.0/8") from None
        return ranges


class TargetFile(RootModel[dict[Annotated[str, Field(pattern=NAME_PATTERN)], Target]]):
    """Targets by name."""


def with_defaults(run: RunFile, target: Target) -> RunFile:
    """The run, with the target's resources and budget where it has none of its own."""
    resources = _written(target.resources) | _written(run.resources)
    budget = _written(target.budget) | _written(run.budget)
    return run.model_copy(
        update={"resources": ResourcesConfig(**resources), "budget": BudgetConfig(**budget)}
    )


def _written(section: Section | None) -> dict[str, Any]:
    if section is None:
        return {}
    return {name: getattr(section, name) for name in section.model_fields_set}
