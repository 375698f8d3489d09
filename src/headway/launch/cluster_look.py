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
from headway.kube.names import Object
from headway.kube.pod_needs import namespace_finding
from headway.launch.api_answers import listed

AT_A_TIME = 4
LOOK_SECONDS = 20.0
CORE, KUEUE = "api/v1", "apis/kueue.x-k8s.io"
ASKED: Mapping[str, tuple[str, ...]] = {
    "namespace": (CORE + "/namespaces/{namespace}",),
    "nodes": (CORE + "/nodes?",),
    "claims": (CORE + "/namespaces/{namespace}/persistentvolumeclaims?",),
    # The second where the first is not known.
    "queues": (
        KUEUE + "/v1beta2/namespaces/{namespace}/localqueues?",
        KUEUE + "/v1beta1/namespaces/{namespace}/localqueues?",
    ),
}
"""Paths; those that end in `?` are lists."""


def cluster_answers(kube: KubeClient, clock: Clock) -> Answers:
    """Raises if the cluster does not answer at all, or does not let the user in."""
    until, version = clock.monotonic() + LOOK_SECONDS, None
    with suppress(Forbidden):  # everybody may see it, unless somebody has changed that
        version = kube.call("GET", "version")
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        found = list(threads.map(lambda name: _asked(kube, name, clock, until), ASKED))
    return {"version": version, **dict(zip(ASKED, found, strict=True))}


def _asked(kube: KubeClient, name: str, clock: Clock, until: float) -> Object | None:
    for path in ASKED[name]:
        path = path.format(namespace=kube.namespace)
        try:
            if not path.endswith("?"):
                return kube.call("GET", path)
            return listed(kube, path, clock, until)
        except NotFound:
            if name == "namespace":
                finding = namespace_finding(kube.namespace)
                raise BadInput(finding.words, finding.fix) from None
        except (RequestRefused, ClusterUnreachable):
            continue
    return None
