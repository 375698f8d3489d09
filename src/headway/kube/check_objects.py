"""What `headway target check` changes in the objects of its run: an init container of the
coordinator's pod finds what no run says, and all is deleted after some minutes, even if the client
is killed. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headway.kube.names import COMPONENT, PRIORITY, QUEUE, Object, run_object
from headway.kube.pods import variable
from headway.kube.rbac import coordinator_rules
from headway.kube.reviews import Right, access_review
from headway.spec.target_file import Target

FACTS = "facts"
"""Init container of the coordinator's pod."""
REVIEWS = "HEADWAY_REVIEWS"
"""Its variable: the rights that it asks for, as SelfSubjectAccessReviews."""
GRACE_SECONDS = 15
"""Time from SIGTERM to SIGKILL: workers that never met have nothing to save."""
SHARED = (
    *("image", "env", "envFrom", "resources", "securityContext", "volumeMounts"),
    "terminationMessagePolicy",
)
"""Keys of the coordinator's container that the init container has, too."""


def check_objects(
    objects: Sequence[Object], run: str, target: Target, timer_uid: str
) -> list[Object]:
    """Return the objects of a run as the check makes them. They are deleted with the object that
    `timer_of` describes, which has `timer_uid`."""
    job, *others = objects
    # Not as its controller: Kueue puts no Job into a queue that another Job controls.
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": timer_name(run), "uid": timer_uid}
    template = job["spec"]["template"]
    spec = template["spec"] | {"terminationGracePeriodSeconds": GRACE_SECONDS}
    owned = job | {
        "metadata": job["metadata"] | {"ownerReferences": [owner]},
        "spec": job["spec"] | {"template": template | {"spec": spec}},
    }
    reviews = [_review(*asked, target) for asked in asked_rights(run, target)]
    return [
        owned,
        *(_with_facts(one, reviews) if one["kind"] == "ReplicaSet" else one for one in others),
    ]


def timer_of(job: Object, run: str, seconds: float) -> Object:
    """Return a Job that makes no pods, needs no queue, and is deleted after that time. A deadline
    of the run's own Job would not count while a queue holds that."""
    metadata = job["metadata"]
    labels = {key: one for key, one in metadata["labels"].items() if key not in (QUEUE, PRIORITY)}
    # No run that `headway list` shows.
    labels |= {COMPONENT: "timer"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": timer_name(run),
            "namespace": metadata["namespace"],
            "labels": labels,
        },
        "spec": {
            "parallelism": 0,
            "completions": 1,
            "activeDeadlineSeconds": round(seconds),
            "ttlSecondsAfterFinished": 0,
            "template": job["spec"]["template"],
        },
    }


def timer_name(run: str) -> str:
    return f"{run_object(run)}-timer"


def asked_rights(run: str, target: Target) -> list[tuple[Right, str | None]]:
    """Rights of the coordinator's account, each with the one object that it is for, if it is for
    one."""
    return [
        (Right(verb, resource, rule["apiGroups"][0]), name)
        for rule in coordinator_rules(run, target)
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [None])
    ]


def _review(right: Right, name: str | None, target: Target) -> Object:
    review = access_review(right, target.kube.namespace)
    if name is not None:
        review["spec"]["resourceAttributes"]["name"] = name
    return review


def _with_facts(replica_set: Object, reviews: Sequence[Object]) -> Object:
    spec = replica_set["spec"]
    pod = spec["template"]["spec"]
    (coordinator,) = [one for one in pod["containers"] if one["name"] == "coordinator"]
    facts = {key: coordinator[key] for key in SHARED if key in coordinator}
    facts |= {"name": FACTS, "command": ["headway", "facts"]}
    facts["env"] = [*facts["env"], variable(REVIEWS, json.dumps(reviews))]
    # Last: a proxy or a volume that others set up may be needed.
    containers = [*pod.get("initContainers", []), facts]
    template = spec["template"] | {"spec": pod | {"initContainers": containers}}
    return replica_set | {"spec": spec | {"template": template}}
