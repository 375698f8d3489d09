"""What the API server says of a target before any pod is made: login, rights, quota, policy, queue,
machines, and what pods name. What may not be asked is None; what was asked and not answered is a
failure of the line that it is for, and all else is asked all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from headway.clock import Clock
from headway.kube.api_errors import ClusterUnreachable, Forbidden, NotLoggedIn, RequestRefused
from headway.kube.check_lines import (
    COORDINATOR_RIGHTS,
    IMAGE,
    LOGIN,
    MACHINES,
    POLICY,
    QUOTA,
    STORAGE,
    YOUR_RIGHTS,
)
from headway.kube.client import KubeClient
from headway.kube.names import Object
from headway.kube.pod_needs import COORDINATOR, WORKERS, NamedObject, named_objects
from headway.kube.reviews import (
    SELF,
    Finding,
    Right,
    access_review,
    reaching_rights,
    user_name,
    user_rights,
)
from headway.launch.api_answers import (
    Answer,
    asked,
    dry_run,
    found_name,
    found_queue,
    listed,
    pod_refusal,
    queue_answer,
    who_asks,
)
from headway.launch.asked_rights import refused
from headway.spec.target_file import Target

NODES_SECONDS = 20.0
"""For all pages of machines."""
LINES = {"ServiceAccount": COORDINATOR_RIGHTS, "PersistentVolumeClaim": STORAGE}
"""By the kind of what pods name; of others, IMAGE."""

Found = TypeVar("Found")


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
    are_nodes_too_many: bool = False
    """They were not listed to the end."""
    failures: dict[str, str] = field(default_factory=dict)
    """By line: what the API server did not answer, and why."""

    @property
    def is_hopeless(self) -> bool:
        """Whether some pod cannot start, for what was seen here."""
        is_refused = any(words is not None for words in (self.refusals or {}).values())
        return is_refused or any(one.is_fatal for one in self.named)


def look_at(
    kube: KubeClient, target: Target, on: str, objects: Sequence[Object], clock: Clock
) -> TargetLook:
    """Raises HeadwayError if the API server does not answer at all, or does not know the user.
    `objects`: that are about to be made; `on`: name of the target."""
    version = kube.call("GET", "version")
    return _Look(kube, target, on, objects, clock).all(version)


class _Look:
    def __init__(
        self, kube: KubeClient, target: Target, on: str, objects: Sequence[Object], clock: Clock
    ) -> None:
        self._kube = kube
        self._target = target
        self._on = on
        self._objects = objects
        self._clock = clock
        self._failures: dict[str, str] = {}

    def all(self, version: Object) -> TargetLook:
        quotas_path = f"api/v1/namespaces/{self._kube.namespace}/resourcequotas"
        wanted = named_objects(self._objects, self._target)
        with ThreadPoolExecutor(4) as threads:
            user = threads.submit(self._ask, LOGIN, "POST", SELF, who_asks())
            missing = threads.submit(self._tried, YOUR_RIGHTS, self._missing)
            quotas = threads.submit(self._ask, QUOTA, "GET", quotas_path)
            nodes = threads.submit(self._tried, MACHINES, self._nodes)
            refusals = threads.submit(self._refusals)
            queue = threads.submit(self._queue)
            answers = list(threads.map(self._name, wanted))
        found_nodes = nodes.result()
        return TargetLook(
            version=version,
            user=user_name(user.result().content or {}),
            missing=missing.result() or [],
            quotas=_items(quotas.result().content),
            nodes=_items(found_nodes),
            refusals=refusals.result(),
            queue=queue.result(),
            named=[
                finding
                for one, answer in zip(wanted, answers, strict=True)
                if (finding := found_name(one, answer, self._target, self._on)) is not None
            ],
            claim=self._claim(wanted, answers),
            are_nodes_too_many=found_nodes is not None and "items" not in found_nodes,
            failures=self._failures,
        )

    def _ask(self, line: str, method: str, path: str, sent: Object | None = None) -> Answer:
        answer = asked(self._kube, (method, path, sent))
        if answer.failure is not None:
            self._failures.setdefault(line, answer.failure)
        return answer

    def _tried(self, line: str, look: Callable[[], Found]) -> Found | None:
        """None if it is not answered."""
        try:
            return look()
        except NotLoggedIn:
            raise
        except (ClusterUnreachable, RequestRefused) as error:
            self._failures.setdefault(line, error.message)
        return None

    def _missing(self) -> list[Right]:
        """Of two ways to reach a pod, one is enough."""
        ways = reaching_rights()
        wanted = [*user_rights(self._target), *ways]
        found = refused(self._kube, [access_review(one, self._kube.namespace) for one in wanted])
        missing = [wanted[index] for index in found]
        if not all(way in missing for way in ways):
            missing = [right for right in missing if right not in ways]
        return missing

    def _nodes(self) -> Object | None:
        """None if they may not be listed; empty: there are too many."""
        until = self._clock.monotonic() + NODES_SECONDS
        try:
            return listed(self._kube, "api/v1/nodes?", self._clock, until) or {}
        except Forbidden:
            return None

    def _refusals(self) -> dict[str, str | None] | None:
        found: dict[str, str | None] = {}
        for component, kind in (("worker", WORKERS), ("coordinator", COORDINATOR)):
            answer = self._ask(POLICY, *dry_run(self._kube.namespace, self._objects, kind))
            if answer.content is None and answer.refusal is None:
                return None
            found[component] = pod_refusal(answer)
        return found

    def _queue(self) -> Finding | None:
        answer = queue_answer(
            self._target, self._kube.namespace, lambda path: self._ask(POLICY, "GET", path)
        )
        return found_queue(answer, self._target)

    def _name(self, one: NamedObject) -> Answer:
        return self._ask(LINES.get(one.kind, IMAGE), "GET", one.path_in(self._kube.namespace))

    def _claim(self, named: Sequence[NamedObject], answers: Sequence[Answer]) -> Object | None:
        claim = self._target.storage.claim if self._target.storage is not None else None
        for one, answer in zip(named, answers, strict=True):
            if one.kind == "PersistentVolumeClaim" and one.name == claim:
                return answer.content
        return None


def _items(content: Object | None) -> list[Object] | None:
    found = None if content is None else content.get("items")
    return None if found is None else list(found)
