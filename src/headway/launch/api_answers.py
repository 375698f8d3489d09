"""Short questions to the API server about a namespace, and what its answers mean. The gate of
`headway run --on` and `headway target check` ask by this one way; `headway target add` lists by
it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from headway.clock import Clock
from headway.errors import NotFound
from headway.kube.api_errors import ClusterUnreachable, Forbidden, NotLoggedIn, RequestRefused
from headway.kube.client import KubeClient
from headway.kube.kueue import local_queue_paths
from headway.kube.names import Object
from headway.kube.pod_needs import (
    NO_DRY_RUN,
    NamedObject,
    content_finding,
    missing_finding,
    pod_of,
    queue_finding,
)
from headway.kube.reviews import Finding
from headway.spec.target_file import Target

PAGE = 500
MOST_PAGES = 40
ELSEWHERE = (NO_DRY_RUN, "error looking up service account")
"""Words of a refused dry run that says nothing of policy: accounts are judged by their names."""
WHICH_POD = re.compile(r'^pods "[^"]*" is forbidden: ')

Call = tuple[str, str, Object | None]
"""Method, path, content."""


@dataclass(frozen=True)
class Answer:
    """Without any of these, the user has no right to ask."""

    content: Object | None = None
    refusal: str | None = None
    """The API server's words, if it refused for another reason than the user's rights."""
    is_missing: bool = False
    failure: str | None = None
    """Why there is no answer."""


def answer_to(call: Callable[[], Object]) -> Answer:
    """Raises NotLoggedIn: nothing else can be asked then."""
    try:
        return Answer(call())
    except NotFound:
        return Answer(is_missing=True)
    except Forbidden:
        return Answer()
    except ClusterUnreachable as error:
        return Answer(failure=error.message)
    except NotLoggedIn:
        raise
    except RequestRefused as error:
        # Without the path, and the name that the pod would have had.
        return Answer(refusal=WHICH_POD.sub("", error.message.partition(": ")[2]))


def asked(kube: KubeClient, call: Call) -> Answer:
    return answer_to(lambda: kube.call(*call))


def who_asks() -> Object:
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


def dry_run(namespace: str, objects: Sequence[Object], kind: str) -> Call:
    """Of a pod of `WORKERS` or `COORDINATOR`: a Job whose pods are refused is not."""
    return "POST", f"api/v1/namespaces/{namespace}/pods?dryRun=All", pod_of(objects, kind)


def pod_refusal(answer: Answer) -> str | None:
    """Why a pod would be refused, of a dry run: by a policy or a quota."""
    words = answer.refusal
    return None if words is None or any(one in words for one in ELSEWHERE) else words


def queue_answer(target: Target, namespace: str, ask: Callable[[str], Answer]) -> Answer | None:
    """Of Kueue's LocalQueue, by the newest version of its API that is there; None: the target names
    no queue."""
    if target.queue is None:
        return None
    answer = Answer(is_missing=True)
    for path in local_queue_paths(namespace, target.queue):
        if answer.is_missing:
            answer = ask(path)
    return answer


def found_queue(answer: Answer | None, target: Target) -> Finding | None:
    if answer is None or (answer.content is None and not answer.is_missing):
        return None
    return queue_finding(answer.content, target)


def found_name(one: NamedObject, answer: Answer, target: Target, on: str) -> Finding | None:
    """`on`: name of the target."""
    if answer.is_missing:
        return missing_finding(one, target, on)
    return content_finding(one, answer.content, target) if answer.content else None


def listed(kube: KubeClient, path: str, clock: Clock, until: float) -> Object | None:
    """All pages; None if there are too many, or they take too long. `path` ends in `?` or `&`."""
    items: list[Object] = []
    query = {"limit": str(PAGE)}
    for _ in range(MOST_PAGES):
        found = kube.call("GET", f"{path}{urlencode(query)}")
        items += found.get("items") or ()
        token = found.get("metadata", {}).get("continue")
        if not token:
            return {"items": items}
        if clock.monotonic() > until:
            return None
        query["continue"] = token
    return None
