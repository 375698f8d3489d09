"""The target file: where to run. Read beside the run file, then in the user's config folder."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PlainValidator,
    RootModel,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from headway.spec.interruption_rate import InterruptionsConfig
from headway.spec.pod_config import (
    IMAGE_PATTERN,
    CoordinatorConfig,
    ObjectName,
    PodConfig,
    PrepareConfig,
)
from headway.spec.price_config import PricesField
from headway.spec.quantities import Interval, IntervalField
from headway.spec.run_file import BudgetConfig, ResourcesConfig, RunFile
from headway.spec.section import (
    NAME_PATTERN,
    Section,
    Shorthand,
    Suggesting,
)

NAMESPACE_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
KIND = re.compile(r"[A-Za-z][\w.-]*")
PYTHON = re.compile(r"3\.\d\d")
TORCH_PATTERN = r"^\d+\.\d+\.\d+[\w.+]*$"


def parse_python(value: Any) -> str:
    text = str(value).strip()
    if PYTHON.fullmatch(text) is None:
        raise ValueError(f"{value!r} is not a version of Python such as 3.12")
    return text


PythonVersionField = Annotated[
    str,
    PlainValidator(parse_python),
    WithJsonSchema(
        {"type": ["string", "number"], "description": "major and minor", "examples": [3.12]}
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


class ServiceAccountConfig(Section):
    """Identity of a run's pods, in Kubernetes and in the cloud. Left out: each run makes an account
    of its own, for which you need the right to create Roles."""

    coordinator: ObjectName | None = None
    """Service account of the coordinators of all runs. An administrator makes it once, with the
    rights that `headway target rbac` prints; you need no more than the ClusterRole `edit`."""
    name: ObjectName | None = None
    """Service account of all workers, which an administrator makes: clouds know it by this name
    (EKS Pod Identity, GKE). Workers do not get its token for Kubernetes. Needs `coordinator`."""
    annotations: dict[str, str] = {}
    """Annotations of the account that each run makes, which give its pods a cloud identity:
    `eks.amazonaws.com/role-arn`, `iam.gke.io/gcp-service-account`."""

    @field_validator("coordinator", "name")
    @classmethod
    def _not_everyones(cls, name: str | None) -> str | None:
        if name == "default":
            raise Suggesting(
                "`default` is the account of every pod that names none",
                "name an account that is Headway's alone, such as headway-coordinator",
            )
        return name

    @field_validator("name")
    @classmethod
    def _with_coordinator(cls, name: str | None, info: ValidationInfo) -> str | None:
        # It is not in the data if it was refused itself.
        if name is not None and info.data.get("coordinator", "refused") is None:
            raise Suggesting(
                "`name` needs `coordinator`: the coordinator writes to the storage as well",
                f"service_account: {{name: {name}, coordinator: headway-coordinator}}",
            )
        return name

    @field_validator("annotations")
    @classmethod
    def _of_own_account(cls, annotations: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        account = info.data.get("coordinator")
        if annotations and account is not None:
            raise Suggesting(
                f"an account that an administrator makes, such as {account}, carries its own "
                "annotations",
                f"leave them out, and for each account: kubectl annotate serviceaccount {account} "
                + " ".join(f"{key}={value}" for key, value in annotations.items()),
            )
        return annotations


class ScarcityConfig(Section):
    """What a run does that has fewer nodes than the least of its range, or than a copy of its model
    takes, or whose pods do not start there: it cannot train, and another run may wait for what it
    holds."""

    give_back_after: IntervalField = Interval(900, "seconds")
    """Time after which it gives its nodes back, also those whose pods do not start. Longer than a
    new machine takes to start, and than its image takes to be pulled."""
    try_again_after: IntervalField = Interval(300, "seconds")
    """Pause until it tries again, on average. It doubles each time, up to an hour, and is between
    half and one and a half times as long, by chance."""

    @field_validator("give_back_after", "try_again_after")
    @classmethod
    def _is_time(cls, interval: Interval) -> Interval:
        return _required_time(interval)

    @field_validator("try_again_after")
    @classmethod
    def _is_at_most_the_longest(cls, interval: Interval) -> Interval:
        if interval.amount > 3600:
            raise ValueError(f"{interval} is longer than 1h, the longest pause")
        return interval


class KeepObjectsConfig(Section):
    """How long the objects of a run that is over stay in the namespace. What it saved is not
    touched."""

    finished: IntervalField = Interval(3600, "seconds")
    """After its last step."""
    failed: IntervalField = Interval(3 * 86400, "seconds")
    """After a failure: its pods can be looked at, and their logs."""
    stopped: IntervalField = Interval(14 * 86400, "seconds")
    """After it was stopped: then `headway target cleanup` deletes them, and `headway run --on`
    resumes the run."""

    @field_validator("finished", "failed", "stopped")
    @classmethod
    def _is_time(cls, interval: Interval) -> Interval:
        return _required_time(interval)


def _required_time(interval: Interval) -> Interval:
    if interval.unit != "seconds":
        raise ValueError(f"{interval} is not a time such as 15min")
    return interval


class Target(Section):
    """One target, with its defaults; the run file can override them."""

    kube: KubeConfig = KubeConfig()
    """Cluster and namespace."""
    image: str | None = Field(default=None, pattern=IMAGE_PATTERN)
    """Image of the pods, by digest: a tag can change during a run. It has Headway, unless
    `coordinator.image` is given. Left out: PyTorch's own image for workers, and Headway's for the
    coordinator."""
    python: PythonVersionField | None = None
    """Version of Python in the image of the workers, such as 3.12: what `code.requirements` are
    resolved for. Left out: that of the machine that launches. A pod that has another is refused."""
    torch: Annotated[str, Field(pattern=TORCH_PATTERN)] | None = None
    """Version of torch there, such as 2.15.0; in the same way, if a package needs torch."""
    storage: Annotated[StorageConfig, Shorthand("url")] | None = None
    """Storage of run directories and data."""
    secret: ObjectName | None = None
    """Secret with the values of the variables that the run file lists under `secrets`."""
    machine: str | None = None
    """Machine type of the workers' nodes, such as `p5.48xlarge`, `hgx-h100` or `cpu`. A run that
    asks for another kind of accelerator than it has, or for more, is refused. Nothing else follows
    from it: `headway target add` writes it beside the resources and variables that fit it."""
    resources: ResourcesConfig | None = None
    """Default devices and nodes."""
    budget: BudgetConfig | None = None
    """Default budget."""
    queue: ObjectName | None = None
    """Kueue LocalQueue of the run's workers, and of the pods that serve a claim to your machine.
    The coordinator, a small pod, is in no queue."""
    priority: ObjectName | None = None
    """Kueue WorkloadPriorityClass in that queue. Needs `queue`; Kubernetes' own PriorityClass is
    `pod.priority_class`."""
    scarcity: ScarcityConfig | Literal["off"] = ScarcityConfig()
    """What a run does that cannot get the nodes it needs. `off`: it waits with those that it has.
    In a `queue` it is off: Kueue starts a run when there is room for it."""
    keep: KeepObjectsConfig = KeepObjectsConfig()
    """How long objects stay of runs that are over."""
    accelerators: dict[str, list[dict[str, str]]] = {}
    """Labels of the machines that have a kind of accelerator, in place of those that Headway knows:
    `{H100: [{example.com/gpu: h100}, {example.com/gpu: h100-nvl}]}`. A machine has to have all
    labels of one entry; `[]`: no label is needed."""
    prices: PricesField = {}
    """What you pay: dollars per device hour by kind, `{H100: {on_demand: 4, spot: 2}}` or
    `{H100: 4}`. A name alone, such as A100, is for all boards of that name, `gpu` for all
    accelerators without a price of their own. `cpu`: per hour of a node without accelerators.
    `storage`: per GB and month. `budget.usd` and the money spent in `headway status` need it."""
    interruptions: InterruptionsConfig = InterruptionsConfig()
    """How often nodes are interrupted: `{spot: 20% per hour, on_demand: 0.5% per day}`."""
    spot_label: dict[str, str] = {}
    """Label of spot machines, as in `{karpenter.sh/capacity-type: spot}`."""
    pod: PodConfig = PodConfig()
    """Additions to the pods."""
    coordinator: CoordinatorConfig = CoordinatorConfig()
    """Pod of the coordinator."""
    prepare: PrepareConfig = PrepareConfig()
    """Pods that prepare data."""
    service_account: ServiceAccountConfig = ServiceAccountConfig()
    """Identity of the run's pods, in Kubernetes and in the cloud."""
    egress: list[str] = []
    """Address ranges that pods may reach besides each other and name servers, such as
    `10.0.0.0/8`. They must include the storage, the hub, and the API server: without it, lost pods
    are not replaced. Left out: all addresses."""
    metrics: Literal["annotations", "off"] = "annotations"
    """How Prometheus finds the metrics of a run. `annotations`: the coordinator's pod has
    `prometheus.io/scrape`, `prometheus.io/port` and `prometheus.io/path`. `off`: it has none, as
    for a PodMonitor; the metrics are served all the same."""
    security: Literal["restricted", "baseline"] = "restricted"
    """Pod security level. `baseline` allows volumes of any kind, and adds the capability IPC_LOCK
    if `pod.resources` has an RDMA device. Kubernetes' own `baseline` allows neither IPC_LOCK nor
    hostPath: the namespace must allow them."""

    @property
    def scarcity_seconds(self) -> tuple[float, float] | None:
        """Times after which pods are given back, and tried for again; None: never."""
        if isinstance(self.scarcity, str) or self.queue is not None:
            return None
        return self.scarcity.give_back_after.amount, self.scarcity.try_again_after.amount

    @property
    def has_choice(self) -> bool:
        """Whether runs may have one of several kinds of accelerator by default."""
        wanted = self.resources.accelerators if self.resources is not None else None
        return wanted is not None and bool(wanted.others)

    @model_validator(mode="after")
    def _queue_or_scarcity(self) -> Self:
        is_written = "scarcity" in self.model_fields_set and self.scarcity != "off"
        if self.queue is not None and is_written:
            raise ValueError(
                "queue and scarcity cannot both be given: Kueue starts a run when there is room "
                "for it, and evicts one that does not start (waitForPodsReady)"
            )
        return self

    @field_validator("priority")
    @classmethod
    def _in_a_queue(cls, priority: str | None, info: ValidationInfo) -> str | None:
        # It is not in the data if it was refused itself.
        if priority is not None and info.data.get("queue", "refused") is None:
            raise Suggesting(
                "`priority` is that of a Kueue queue, and needs `queue`",
                f"queue: NAME beside it; or, without Kueue: pod: {{priority_class: {priority}}}",
            )
        return priority

    @field_validator("spot_label")
    @classmethod
    def _one_label(cls, label: dict[str, str]) -> dict[str, str]:
        if len(label) > 1:
            raise ValueError(f"give one label (found {', '.join(label)})")
        return label

    @field_validator("accelerators")
    @classmethod
    def _kinds_with_labels(
        cls, labels: dict[str, list[dict[str, str]]]
    ) -> dict[str, list[dict[str, str]]]:
        for kind, entries in labels.items():
            if KIND.fullmatch(kind) is None:
                raise ValueError(f"{kind!r} is not a kind of accelerator such as H100")
            if not all(entries):
                raise ValueError(
                    f"{kind} has an entry without labels: write {kind}: [{{LABEL: VALUE}}]; or "
                    f"{kind}: [] if no label is needed"
                )
        return labels

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
