"""The target file: where runs go. Beside the run file, then in the user's config folder."""

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

from headway.spec.run import (
    NAME_PATTERN,
    VARIABLE_PATTERN,
    Budget,
    Resources,
    RunFile,
    Section,
    Shorthand,
)

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


class Kube(Section):
    """Which cluster."""

    context: str | None = None
    """Context of the kubeconfig; left out: the current one."""
    namespace: str = Field(default="default", pattern=NAMESPACE_PATTERN)
    """Where the run's objects live."""


class Storage(Section):
    """Where run directories and prepared data live there: a URL, or `{claim: shared-fs}`. Runs are
    in `runs/NAME` below it; what is brought there is beside them, by its content."""

    url: str | None = Field(default=None, pattern=r"^(s3|gs)://")
    """s3:// or gs://; a bare string means this."""
    claim: ObjectName | None = None
    """A PersistentVolumeClaim that every pod of a run mounts."""
    secret: ObjectName | None = None
    """With a URL: a Secret whose keys are the variables that open the bucket, such as
    `AWS_ACCESS_KEY_ID`. Left out: the pods' own identity does (`service_account`)."""

    @model_validator(mode="after")
    def _one(self) -> Storage:
        if (self.url is None) == (self.claim is None):
            raise ValueError("give a URL (s3://, gs://) or {claim: NAME}")
        if self.secret is not None and self.url is None:
            raise ValueError("`secret` goes with a URL: a claim asks for no credentials")
        return self


class Pod(Section):
    """Merged into the pods, the workers' and the coordinator's. What clashes with what Headway puts
    there is refused."""

    resources: dict[str, AmountField] = {}
    """What a worker's pod gets, as request and as limit: `cpu`, `memory`, and whatever else its
    machines have, such as `ephemeral-storage` or `vpc.amazonaws.com/efa`. Accelerators are added
    by their number."""
    device: str = "nvidia.com/gpu"
    """What Kubernetes calls one accelerator."""
    shared_memory: AmountField = "1Gi"
    """Size of /dev/shm; what is in it counts as the pod's `memory`."""
    tolerations: list[dict[str, Any]] = []
    """Kubernetes tolerations, added to ours."""
    node_selector: dict[str, str] = {}
    """Labels of machines for workers."""
    volumes: list[dict[str, Any]] = []
    """Further volumes, as Kubernetes writes them."""
    mounts: list[dict[str, Any]] = []
    """Where they are mounted, as Kubernetes writes it: `{name: models, mountPath: /models}`."""
    env: dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], str] = {}
    """Further variables. Everybody who may see pods sees them: no secrets here."""
    labels: dict[str, str] = {}
    """Further labels."""
    annotations: dict[str, str] = {}
    """Further annotations."""
    image_pull_secrets: list[ObjectName] = []
    """Names of pull secrets."""
    user: int = Field(default=1000, ge=1)
    """Who pods run as. Never root."""
    group: int = Field(default=1000, ge=1)
    """Their group, and that of the files in their volumes."""

    @field_validator("volumes")
    @classmethod
    def _one_kind_each(cls, volumes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for volume in volumes:
            if not isinstance(volume.get("name"), str) or len(volume) != 2:
                raise ValueError(
                    f"{volume} is no volume: a name and one kind, as in "
                    "{name: models, persistentVolumeClaim: {claimName: models}}"
                )
        return volumes

    @field_validator("mounts")
    @classmethod
    def _name_and_path(cls, mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for mount in mounts:
            if not all(isinstance(mount.get(key), str) for key in ("name", "mountPath")):
                raise ValueError(f"{mount} is no mount: {{name: models, mountPath: /models}}")
        return mounts


class Coordinator(Section):
    """The small pod that says who is in a run. It never goes to a spot machine that
    `spot_label` tells."""

    node_selector: dict[str, str] = {}
    """Labels of its machine; those of `pod.node_selector` are for workers."""
    resources: dict[str, AmountField] = {"cpu": "500m", "memory": "512Mi"}
    """What it gets, as request and as limit. Runs of more than 150,000 steps need more memory: 3Gi
    for a million."""


class ServiceAccount(Section):
    """What a run's pods are to the cloud."""

    annotations: dict[str, str] = {}
    """Of the run's service account, by which clouds give its pods an identity:
    `eks.amazonaws.com/role-arn`, `iam.gke.io/gcp-service-account`."""


class Target(Section):
    """One place to run, with its defaults; the run file may override them."""

    kube: Kube = Kube()
    """Which cluster."""
    image: str | None = Field(default=None, pattern=IMAGE_PATTERN)
    """Image of the pods, by digest: a tag can change under a run."""
    storage: Annotated[Storage, Shorthand("url")] | None = None
    """Where run directories and data live."""
    secret: ObjectName | None = None
    """The Secret that has the values of what the run file lists under `secrets`."""
    resources: Resources | None = None
    """Default devices and nodes."""
    budget: Budget | None = None
    """Default budget."""
    queue: ObjectName | None = None
    """Kueue LocalQueue."""
    prices: dict[str, float] = {}
    """Dollars a device hour, by device."""
    spot_label: dict[str, str] = {}
    """The label that tells spot machines, as in `{karpenter.sh/capacity-type: spot}`."""
    pod: Pod = Pod()
    """Merged into the pods."""
    coordinator: Coordinator = Coordinator()
    """The coordinator's pod."""
    service_account: ServiceAccount = ServiceAccount()
    """What a run's pods are to the cloud."""
    egress: list[str] = []
    """Ranges of addresses that pods may reach besides each other and name servers, such as
    `10.0.0.0/8`: the storage, the hub, and the API server, without which lost pods are not
    replaced. Left out: all."""
    security: Literal["restricted", "baseline"] = "restricted"
    """Pod security. `baseline` lets volumes of any kind through, and adds the capability IPC_LOCK
    where `pod.resources` has an RDMA device. Kubernetes' own level of that name allows neither
    IPC_LOCK nor hostPath: the namespace must."""

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
    """The run with the target's resources and budget where it says nothing itself."""
    resources = _written(target.resources) | _written(run.resources)
    budget = _written(target.budget) | _written(run.budget)
    return run.model_copy(update={"resources": Resources(**resources), "budget": Budget(**budget)})


def _written(section: Section | None) -> dict[str, Any]:
    if section is None:
        return {}
    return {name: getattr(section, name) for name in section.model_fields_set}
