"""Whether a target can take a run, asked before anything is prepared or uploaded for it: a dozen
short calls, four at a time. What may not be asked, or is not answered, is passed over: the launch
itself will tell. `headway target check` asks the same, and as many calls as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from headway.kube.check_lines import LOGIN, NAMED, POLICY, QUOTA, YOUR_RIGHTS
from headway.kube.client import KubeClient
from headway.kube.names import Object
from headway.kube.pod_needs import (
    COORDINATOR,
    WORKERS,
    named_objects,
    namespace_finding,
    pod_of,
    policy_finding,
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
from headway.launch.api_answers import (
    Answer,
    Call,
    asked,
    dry_run,
    found_name,
    found_queue,
    pod_refusal,
    queue_answer,
    who_asks,
)
from headway.spec.target_file import Target

MOST_CALLS = 12
AT_ONCE = 4
FOR_RIGHTS = 2
"""Calls that are kept for rights which no list shows."""


class LaunchGate:
    """Asks once. `nodes`: without so many, the run does not start. `before`: objects that prepare
    its data. `most_calls`: rights that no list shows are asked for as far as calls are left."""

    def __init__(
        self,
        kube: KubeClient,
        target: Target,
        on: str,
        objects: Sequence[Object],
        nodes: int,
        before: Sequence[Object] = (),
        most_calls: int = MOST_CALLS,
    ) -> None:
        self._kube = kube
        self._target = target
        self._on = on
        self._objects = objects
        self._nodes = nodes
        self._before = before
        self._calls_left = most_calls
        self.user: str | None = None
        """Name by which the API server knows the caller, once it was asked."""
        self.failures: list[str] = []
        """Reasons why calls were not answered."""

    def findings(self, is_new: bool) -> list[Finding]:
        return [one for found in self.by_line(is_new).values() for one in found]

    def by_line(self, is_new: bool) -> dict[str, list[Finding]]:
        """Findings by the line of `headway target check` that shows them. `is_new`: the run has no
        objects yet, which would count against a quota already."""
        namespace = self._kube.namespace
        named = named_objects([*self._objects, *self._before], self._target)
        worker, coordinator = (pod_of(self._objects, one) for one in (WORKERS, COORDINATOR))
        calls: list[Call] = [
            ("POST", SELF, who_asks()),
            ("POST", RULES, rules_review(namespace)),
            ("GET", "version", None),
            ("GET", f"api/v1/namespaces/{namespace}/resourcequotas", None),
            dry_run(namespace, self._objects, WORKERS),
            dry_run(namespace, self._objects, COORDINATOR),
        ]
        for_queue = 1 if self._target.queue is not None else 0
        room = self._calls_left - len(calls) - for_queue - FOR_RIGHTS
        calls += [("GET", one.path_in(namespace), None) for one in named[:room]]
        answers = self._ask(calls)
        me, rules, version, quotas, *of_pods = answers[:6]
        after = answers[6:]
        if all(answer.is_missing for answer in of_pods):
            return {LOGIN: [namespace_finding(namespace)]}
        self.user, queue = user_name(me.content or {}), self._queue()
        found: dict[str, list[Finding | None]] = {
            LOGIN: [version_finding(version.content or {})],
            YOUR_RIGHTS: [self._rights(rules.content, self.user)],
            POLICY: [*self._policy(of_pods), queue],
            NAMED: [
                found_name(one, answer, self._target, self._on)
                for one, answer in zip(named, after, strict=False)
            ],
            QUOTA: [*self._quotas(quotas.content, worker["spec"], coordinator["spec"], is_new)],
        }
        return {line: [one for one in ones if one is not None] for line, ones in found.items()}

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
        first = by_weight[: self._calls_left]
        namespace = self._kube.namespace
        answers = self._ask([("POST", ACCESS, access_review(one, namespace)) for one in first])
        return [
            right
            for right, answer in zip(first, answers, strict=True)
            if answer.content is not None and not is_allowed(answer.content)
        ]

    def _policy(self, answers: Sequence[Answer]) -> list[Finding]:
        """One for both pods, if both are refused for the same."""
        found: list[Finding] = []
        for who, answer in zip(("workers", "the coordinator"), answers, strict=True):
            refusal = pod_refusal(answer)
            # Quotas are judged by what all pods need.
            if refusal is None or "exceeded quota" in refusal:
                continue
            made = policy_finding(refusal, who, self._target)
            if not found or found[0].words.partition(": ")[2] != made.words.partition(": ")[2]:
                found.append(made)
        return found

    def _queue(self) -> Finding | None:
        def ask(path: str) -> Answer:
            return self._ask([("GET", path, None)])[0] if self._calls_left else Answer()

        answer = queue_answer(self._target, self._kube.namespace, ask)
        return found_queue(answer, self._target)

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

    def _ask(self, calls: Sequence[Call]) -> list[Answer]:
        self._calls_left -= len(calls)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            answers = list(threads.map(lambda call: asked(self._kube, call), calls))
        self.failures += [answer.failure for answer in answers if answer.failure is not None]
        return answers
