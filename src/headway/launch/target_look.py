"""What the API server says of a target before any pod is made: login, rights, quota, policy, queue,
machines, and what pods name. What may not be asked is None."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from headway.errors import HeadwayError, NotFound
from headway.kube.client import Forbidden, KubeClient
from headway.kube.kueue import local_queue_paths
from headway.kube.names import Object
from headway.kube.pod_needs import (
    COORDINATOR,
    WORKERS,
    NamedObject,
    content_finding,
    missing_finding,
    named_objects,
    pod_of,
    queue_finding,
)
from headway.kube.reviews import (
    SELF,
    Finding,
    Right,
    access_review,
    reaching_rights,
    user_name,
    user_rights,
)
from headway.launch.asked_rights import refused
from headway.spec.target_file import Target

Found = TypeVar("Found")
NO_RIGHT = re.compile(r"cannot \w+ resource")
"""The API server's words for a right that is missing; policies and quotas refuse in others."""
WHICH_POD = re.compile(r'^.*?pods "[^"]*" is forbidden: ')


@dataclass(frozen=True)
class TargetLook:
    version: Object
    """Of Kubernetes."""
    user: str | None
    missing: list[Right]
    """Of the rights that a user of runs needs."""
    quotas: list[Object] | None
    nodes: list[Object] | None
    refusals: dict[str, str | None] | None
    """By component: why its pod would be refused; None: you may not make pods yourself, only
    Jobs."""
    queue: Finding | None
    named: list[Finding]
    """What is wrong with claims, Secrets and accounts that the target names."""
    claim: Object | None
    """The target's PersistentVolumeClaim."""

    @property
    def is_hopeless(self) -> bool:
        """Whether some pod cannot start, for what was seen here."""
        is_refused = any(words is not None for words in (self.refusals or {}).values())
        return is_refused or any(one.is_fatal for one in self.named)


def look_at(kube: KubeClient, target: Target, on: str, objects: Sequence[Object]) -> TargetLook:
    """Raises HeadwayError if the API server does not answer, or does not know the user. `objects`:
    that are about to be made; `on`: name of the target."""
    version = kube.call("GET", "version")
    namespace = f"api/v1/namespaces/{kube.namespace}"
    claim = target.storage.claim if target.storage is not None else None
    with ThreadPoolExecutor(4) as threads:
        user = threads.submit(_user, kube)
        missing = threads.submit(_missing, kube, target)
        quotas = threads.submit(_items, kube, f"{namespace}/resourcequotas")
        nodes = threads.submit(_items, kube, "api/v1/nodes?limit=500")
        refusals = threads.submit(_refusals, kube, objects)
        queue = threads.submit(_queue, kube, target)
        volume = threads.submit(
            _allowed, lambda: kube.call("GET", f"{namespace}/persistentvolumeclaims/{claim}")
        )
        named = threads.map(
            lambda one: _named(kube, one, target, on), named_objects(objects, target)
        )
        return TargetLook(
            version=version,
            user=user.result(),
            missing=missing.result(),
            quotas=quotas.result(),
            nodes=nodes.result(),
            refusals=refusals.result(),
            queue=queue.result(),
            named=[finding for finding in named if finding is not None],
            claim=volume.result() if claim is not None else None,
        )


def _user(kube: KubeClient) -> str | None:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    return user_name(_allowed(lambda: kube.call("POST", SELF, review)) or {})


def _missing(kube: KubeClient, target: Target) -> list[Right]:
    """Of two ways to reach a pod, one is enough."""
    ways = reaching_rights()
    wanted = [*user_rights(target), *ways]
    found = refused(kube, [access_review(right, kube.namespace) for right in wanted])
    missing = [wanted[index] for index in found]
    if not all(way in missing for way in ways):
        missing = [right for right in missing if right not in ways]
    return missing


def _allowed(asked: Callable[[], Found]) -> Found | None:
    """None if it may not be asked, or is not there."""
    try:
        return asked()
    except (Forbidden, NotFound):
        return None


def _items(kube: KubeClient, path: str) -> list[Object] | None:
    found = _allowed(lambda: kube.call("GET", path))
    return None if found is None else list(found["items"])


def _refusals(kube: KubeClient, objects: Sequence[Object]) -> dict[str, str | None] | None:
    """By dry runs: a Job whose pods are refused is not."""
    path = f"api/v1/namespaces/{kube.namespace}/pods?dryRun=All"
    found: dict[str, str | None] = {}
    for component, kind in (("worker", WORKERS), ("coordinator", COORDINATOR)):
        try:
            kube.call("POST", path, pod_of(objects, kind))
            found[component] = None
        except HeadwayError as error:
            if NO_RIGHT.search(error.message):
                return None
            found[component] = WHICH_POD.sub("", error.message)
    return found


def _queue(kube: KubeClient, target: Target) -> Finding | None:
    if target.queue is None:
        return None
    for path in local_queue_paths(kube.namespace, target.queue):
        try:
            return queue_finding(kube.call("GET", path), target)
        except NotFound:
            continue
        except Forbidden:
            return None
    return queue_finding(None, target)


def _named(kube: KubeClient, one: NamedObject, target: Target, on: str) -> Finding | None:
    try:
        content = kube.call("GET", one.path_in(kube.namespace))
    except NotFound:
        return missing_finding(one, target, on)
    except Forbidden:
        return None
    return content_finding(one, content, target)
