"""Looks at a cluster for `headway target add`: reads only, a few calls at a time, with a deadline.
What may not be seen is left out: `kube.cluster_facts` says what follows from the rest."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headway.clock import Clock
from headway.errors import BadInput, NotFound
from headway.kube.api_errors import ClusterUnreachable, Forbidden, RequestRefused
from headway.kube.client import KubeClient
from headway.kube.cluster_facts import Answers
from headway.kube.names import MANAGED_BY, Object
from headway.kube.pod_needs import namespace_finding
from headway.kube.rbac import RBAC
from headway.kube.reviews import ACCESS, SELF, Right, access_review, is_allowed
from headway.launch.api_answers import listed, who_asks

AT_A_TIME = 4
LOOK_SECONDS = 20.0
CORE, KUEUE = "api/v1", "apis/kueue.x-k8s.io"
ASKED: Mapping[str, tuple[str, ...]] = {
    "version": ("version",),
    "namespace": (CORE + "/namespaces/{namespace}",),
    "nodes": (CORE + "/nodes?",),
    "pods": (CORE + "/pods?",),
    "own_pods": (CORE + "/namespaces/{namespace}/pods?",),
    "claims": (CORE + "/namespaces/{namespace}/persistentvolumeclaims?",),
    "quotas": (CORE + "/namespaces/{namespace}/resourcequotas?",),
    "limit_ranges": (CORE + "/namespaces/{namespace}/limitranges?",),
    "accounts": (CORE + "/namespaces/{namespace}/serviceaccounts?",),
    "jobs": (f"apis/batch/v1/namespaces/{{namespace}}/jobs?labelSelector={MANAGED_BY}%3Dheadway&",),
    # Those of coordinators: their pods are gone once a run has ended.
    "replica_sets": (
        f"apis/apps/v1/namespaces/{{namespace}}/replicasets?labelSelector={MANAGED_BY}%3Dheadway&",
    ),
    "classes": ("apis/storage.k8s.io/v1/storageclasses?",),
    "node_pools": ("apis/karpenter.sh/v1/nodepools?",),
    # The second where the first is not known.
    "queues": (
        KUEUE + "/v1beta2/namespaces/{namespace}/localqueues?",
        KUEUE + "/v1beta1/namespaces/{namespace}/localqueues?",
    ),
}
"""Paths; those that end in `?` or `&` are lists. A cluster with too many pods for the time is not
counted out: free devices are then not said."""
RIGHTS: Mapping[str, Right] = {
    f"{one.verb} {one.resource}": one
    for one in (
        Right("create", "jobs", "batch"),
        Right("create", "replicasets", "apps"),
        Right("create", "configmaps"),
        Right("create", "secrets"),
        Right("create", "services"),
        Right("create", "networkpolicies", "networking.k8s.io"),
        Right("create", "serviceaccounts"),
        Right("create", "roles", RBAC),
        Right("create", "rolebindings", RBAC),
        Right("get", "pods/portforward"),
    )
}
"""What a target depends on, and the first that a run needs; a launch asks for all of them."""


def cluster_answers(kube: KubeClient, clock: Clock) -> Answers:
    """Raises if the cluster does not answer at all, or does not let the user in."""
    until = clock.monotonic() + LOOK_SECONDS
    version = _version(kube)
    user = _who(kube)
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        rights = threads.map(lambda right: _is_allowed(kube, right), RIGHTS.values())
        names = [name for name in ASKED if name != "version"]
        found = list(threads.map(lambda name: _asked(kube, name, clock, until), names))
    allowed = {name: may for name, may in zip(RIGHTS, rights, strict=True) if may is not None}
    return {
        "version": version,
        "user": user,
        "rights": allowed,
        **dict(zip(names, found, strict=True)),
    }


def _version(kube: KubeClient) -> Object | None:
    with suppress(Forbidden):  # everybody may see it, unless somebody has changed that
        return kube.call("GET", "version")
    return None


def _who(kube: KubeClient) -> Object | None:
    """An expired login is said at once; that the API is not there (before 1.28) is not."""
    with suppress(NotFound, Forbidden):
        return kube.call("POST", SELF, who_asks())
    return None


def _is_allowed(kube: KubeClient, right: Right) -> bool | None:
    try:
        return is_allowed(kube.call("POST", ACCESS, access_review(right, kube.namespace)))
    except (NotFound, RequestRefused):
        return None


def _asked(kube: KubeClient, name: str, clock: Clock, until: float) -> Object | None:
    for path in ASKED[name]:
        path = path.format(namespace=kube.namespace)
        try:
            if not path.endswith(("?", "&")):
                return kube.call("GET", path)
            return listed(kube, path, clock, until)
        except NotFound:
            if name == "namespace":
                finding = namespace_finding(kube.namespace)
                raise BadInput(finding.words, finding.fix) from None
        except (RequestRefused, ClusterUnreachable):
            continue
    return None
