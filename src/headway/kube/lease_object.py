"""The Lease of a run that has a standby coordinator: which of its coordinators' pods acts. It is
changed only if it still is as it was read, so of two pods that want it one succeeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from headway.clock import Clock, stamp
from headway.errors import HeadwayError
from headway.kube.api_errors import ClusterUnreachable, Conflict
from headway.kube.client import KubeClient
from headway.kube.names import LAUNCH, Object, lease_object
from headway.kube.rbac import LEASES


class NotActing(ClusterUnreachable):
    """This process does not hold the run's Lease any more: another acts in its place."""


@dataclass(frozen=True)
class FoundLease:
    """The Lease as the API server has it."""

    version: str
    """Changes with each write."""
    holder: str = ""
    """Process that acts; empty: none."""
    term: int = 0
    """Number of times that it was taken."""
    launch: str = ""
    """Launch of the run whose members its holder knows."""
    content: Object = field(default_factory=dict, compare=False, repr=False)


def process_name(pod: str, process: str) -> str:
    """Holder of a Lease: a pod whose process was started again is another one."""
    return f"{pod}_{process}"


def lease_holder(kube: KubeClient, run: str) -> str:
    """Pod that acts for a run; empty if that is not known."""
    with suppress(HeadwayError):
        return _found(kube.call("GET", _path(kube, lease_object(run)))).holder.partition("_")[0]
    return ""


def only_while(is_acting: Callable[[], bool], kube: KubeClient) -> None:
    """From now on, its calls are refused while this process does not act."""

    def check() -> None:
        if not is_acting():
            raise NotActing("another coordinator acts for this run")

    kube.check_calls(check)


class KubeLease:
    def __init__(self, kube: KubeClient, name: str, clock: Clock, duration_seconds: float) -> None:
        self._kube = kube
        self._path = _path(kube, name)
        self._clock = clock
        self._duration_seconds = duration_seconds

    def read(self) -> FoundLease:
        return _found(self._kube.call("GET", self._path))

    def write(
        self, before: FoundLease, holder: str, term: int, launch: str = ""
    ) -> FoundLease | None:
        """The Lease as it is then; None if it has changed since it was read. `holder`: empty to
        give it up."""
        metadata = before.content["metadata"]
        now = stamp(self._clock.now()).replace("Z", "000Z")  # microseconds, as Kubernetes has it
        old = before.content.get("spec") or {}
        spec: Object = {
            "leaseDurationSeconds": round(self._duration_seconds),
            "leaseTransitions": term,
            "acquireTime": old.get("acquireTime") if term == before.term else now,
            "renewTime": now,
        }
        annotations = {**(metadata.get("annotations") or {}), LAUNCH: launch}
        content = {
            **before.content,
            "metadata": {**metadata, "annotations": annotations},
            "spec": spec | ({"holderIdentity": holder} if holder else {}),
        }
        try:
            return _found(self._kube.call("PUT", self._path, content))
        except Conflict:
            return None


def _path(kube: KubeClient, name: str) -> str:
    return f"apis/{LEASES}/v1/namespaces/{kube.namespace}/leases/{name}"


def _found(content: Object) -> FoundLease:
    metadata, spec = content["metadata"], content.get("spec") or {}
    return FoundLease(
        version=str(metadata.get("resourceVersion", "")),
        holder=spec.get("holderIdentity") or "",
        term=int(spec.get("leaseTransitions") or 0),
        launch=(metadata.get("annotations") or {}).get(LAUNCH, ""),
        content=content,
    )
