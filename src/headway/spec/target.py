"""The target file: where runs go. Beside the run file, then in the user's config folder."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel, model_validator

from headway.spec.run import NAME_PATTERN, Budget, Resources, Section, Shorthand


class Kube(Section):
    """Which cluster."""

    context: str | None = None
    """Context of the kubeconfig; left out: the current one."""
    namespace: str = "default"
    """Where the run's objects live."""


class Storage(Section):
    """Where run directories and prepared data live there: a URL, or `{claim: shared-fs}`."""

    url: str | None = Field(default=None, pattern=r"^(s3|gs)://")
    """s3:// or gs://; a bare string means this."""
    claim: str | None = None
    """A PersistentVolumeClaim that every worker mounts."""

    @model_validator(mode="after")
    def _one(self) -> Storage:
        if (self.url is None) == (self.claim is None):
            raise ValueError("give a URL (s3://, gs://) or {claim: NAME}")
        return self


class Pod(Section):
    """Merged into the pods as they are."""

    tolerations: list[dict[str, Any]] = []
    """Kubernetes tolerations."""
    node_selector: dict[str, str] = {}
    """Node labels to ask for."""
    volumes: list[dict[str, Any]] = []
    """Further volumes."""
    image_pull_secrets: list[str] = []
    """Names of pull secrets."""


class Target(Section):
    """One place to run, with its defaults; the run file may override them."""

    kube: Kube = Kube()
    """Which cluster."""
    image: str | None = Field(default=None, pattern=r"@sha256:[0-9a-f]{64}$")
    """Image of the workers, by digest: a tag can change under a run."""
    storage: Annotated[Storage, Shorthand("url")] | None = None
    """Where run directories and data live."""
    resources: Resources | None = None
    """Default devices and nodes."""
    budget: Budget | None = None
    """Default budget."""
    queue: str | None = None
    """Kueue LocalQueue."""
    prices: dict[str, float] = {}
    """Dollars a device hour, by device."""
    pod: Pod = Pod()
    """Merged into the pods."""
    security: Literal["restricted", "baseline"] = "restricted"
    """Pod security level; RDMA needs `baseline`."""


class TargetFile(RootModel[dict[Annotated[str, Field(pattern=NAME_PATTERN)], Target]]):
    """Targets by name."""
