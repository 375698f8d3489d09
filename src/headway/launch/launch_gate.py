"""Whether a target can take a run, asked before anything is prepared or uploaded for it: a dozen
short calls, four at a time. What may not be asked, or is not answered, is passed over: the launch
itself will tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headway.errors import NotFound
from headway.kube.client import ClusterUnreachable, Forbidden, KubeClient, RequestRefused
from headway.kube.kueue import local_queue_paths
from headway.kube.names import Object
from headway.kube.pod_needs import (
    COORDINATOR,
    NO_DRY_RUN,
    WORKERS,
    NamedObject,
    content_finding,
    missing_finding,
    named_objects,
    namespace_finding,
    pod_of,
    policy_finding,
    queue_finding,
)
from headway.kube.reviews import (
    ACCESS,
    RULES,
    SELF,
    Finding,
    Right,
    access_review,
    is_allowed,
    is_complete,
    not_shown,
    quota_finding,
    quota_gaps,
    reaching_rights,
    rights_finding,
    rules_review,
    user_name,
    user_rights,
    version_finding,
)
from headway.spec.target_file import Target

MOST_CALLS = 12
AT_ONCE = 4
FOR_RIGHTS = 2
"""Calls that are kept for rights which no list shows."""
ELSEWHERE = (NO_DRY_RUN, "exceeded quota", "error looking up service account")
"""Words of a refused dry run that says nothing of policy."""


@dataclass(frozen=True)
class _Answer:
    content: Object | None = None
    refusal: str | None = None
    """The API server's words, if it refused for another reason than the user's rights."""
    is_missing: bool = False


class LaunchGate:
    """Asks once. `nodes`: without so many, the run does not start."""

    def __init__(
        self, kube: KubeClient, target: Target, on: str, objects: Sequence[Object], nodes: int
    ) -> None:
        self._kube = kube
        self._target = target
        self._on = on
        self._objects = objects
        self._nodes = nodes
        self._calls_left = MOST_CALLS

    def findings(self, is_new: bool) -> list[Finding]:
        """`is_new`: the run has no objects yet, which would count against a quota already."""
        namespace = self._kube.namespace
        pods = f"api/v1/namespaces/{namespace}/pods?dryRun=All"
        named = named_objects(self._objects, self._target)
        worker, coordinator = (pod_of(self._objects, one) for one in (WORKERS, COORDINATOR))
        asked: list[tuple[str, str, Object | None]] = [
            ("POST", SELF, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
            ("POST", RULES, rules_review(namespace)),
            ("GET", "version", None),
            ("GET", f"api/v1/namespaces/{namespace}/resourcequotas", None),
            ("POST", pods, worker),
            ("POST", pods, coordinator),
            *(("GET", path, None) for path in self._queue_paths()[:1]),
        ]
        room = MOST_CALLS - len(asked) - FOR_RIGHTS
        asked += [("GET", one.path_in(namespace), None) for one in named[:room]]
        answers = self._ask(asked)
        me, rules, version, quotas, *of_pods = answers[:6]
        after = answers[6:]
        if all(answer.is_missing for answer in of_pods):
            return [namespace_finding(namespace)]
        found: list[Finding | None] = [version_finding(version.content or {})]
        found += [self._rights(rules.content, user_name(me.content or {}))]
        found += self._policy(of_pods)
        if self._target.queue is not None:
            found += [self._queue(after.pop(0))]
        for one, answer in zip(named, after, strict=False):
            found += [self._name(one, answer)]
        found += self._quotas(quotas.content, worker["spec"], coordinator["spec"], is_new)
        return [one for one in found if one is not None]

    def _rights(self, rules: Object | None, user: str | None) -> Finding | None:
        """Those that the list of rights does not show are missing, or, if the list is incomplete,
        are asked for one by one, as far as calls are left."""
        if rules is None:
            return None
        wanted = user_rights(self._target)
        storage = self._target.storage
        if storage is not None and storage.claim is not None:
            ways = reaching_rights()
            wanted += ways[:1] if len(not_shown(rules, ways)) == len(ways) else []
        missing = not_shown(rules, wanted)
        if not is_complete(rules):
            missing = self._refused(missing)
        return rights_finding(missing, self._target, self._on, user)

    def _refused(self, rights: Sequence[Right]) -> list[Right]:
        """Creating comes first: who may not do that often may look."""
        by_weight = sorted(rights, key=lambda one: one.verb != "create")
        asked = by_weight[: self._calls_left]
        namespace = self._kube.namespace
        answers = self._ask([("POST", ACCESS, access_review(one, namespace)) for one in asked])
        return [
            right
            for right, answer in zip(asked, answers, strict=True)
            if answer.content is not None and not is_allowed(answer.content)
        ]

    def _policy(self, answers: Sequence[_Answer]) -> list[Finding]:
        """One for both pods, if both are refused for the same."""
        found: list[Finding] = []
        for who, answer in zip(("workers", "the coordinator"), answers, strict=True):
            refusal = answer.refusal
            # Quotas are judged by what all pods need, and accounts by their names.
            if refusal is None or any(words in refusal for words in ELSEWHERE):
                continue
            made = policy_finding(refusal, who, self._target)
            if not found or found[0].words.partition(": ")[2] != made.words.partition(": ")[2]:
                found.append(made)
        return found

    def _queue_paths(self) -> list[str]:
        queue = self._target.queue
        return [] if queue is None else local_queue_paths(self._kube.namespace, queue)

    def _queue(self, answer: _Answer) -> Finding | None:
        for path in self._queue_paths()[1:]:
            if answer.is_missing and self._calls_left:
                (answer,) = self._ask([("GET", path, None)])
        if answer.content is None and not answer.is_missing:
            return None
        return queue_finding(answer.content, self._target)

    def _name(self, one: NamedObject, answer: _Answer) -> Finding | None:
        if answer.is_missing:
            return missing_finding(one, self._target, self._on)
        return content_finding(one, answer.content, self._target) if answer.content else None

    def _quotas(
        self, quotas: Object | None, worker: Object, coordinator: Object, is_new: bool
    ) -> list[Finding]:
        if quotas is None:
            return []
        what = f"the coordinator and {self._nodes} node{'' if self._nodes == 1 else 's'}"
        gaps = quota_gaps(
            quotas.get("items") or (),
            [(worker, self._nodes), (coordinator, 1)],
            self._objects if is_new else (),
        )
        return [quota_finding(gap, self._kube.namespace, what) for gap in gaps]

    def _ask(self, calls: Sequence[tuple[str, str, Object | None]]) -> list[_Answer]:
        self._calls_left -= len(calls)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(lambda call: _answer(lambda: self._kube.call(*call)), calls))


def _answer(call: Callable[[], Object]) -> _Answer:
    try:
        return _Answer(call())
    except NotFound:
        return _Answer(is_missing=True)
    except (Forbidden, ClusterUnreachable):
        return _Answer()
    except RequestRefused as error:
        # Without the path, and the name that the pod would have had.
        said = error.message.partition(": ")[2]
        return _Answer(refusal=re.sub(r'^pods "[^"]*" is forbidden: ', "", said))
