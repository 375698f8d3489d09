"""Objects of a check: those of a run, which a Job that needs no pods ends with, and whose
coordinator's pod first says what no run does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.kube.check_objects import (
    FACTS,
    REVIEWS,
    asked_rights,
    check_objects,
    timer_name,
    timer_of,
)
from headway.kube.manifests import manifests
from headway.kube.names import COMPONENT, QUEUE, Object, labels
from headway.kube.placement import resolve_on_target
from headway.kube.storage_layout import CODE, LocalFolder, StorageLayout
from headway.spec.load import Loaded, validated
from headway.spec.located_yaml import Located
from headway.spec.run_file import RunFile
from headway.spec.target_file import Target

RUN, UID = "check-1", "uid-of-the-timer"
IMAGE = f"registry/headway@sha256:{'0' * 64}"
CONTENT: dict[str, Any] = {
    "kube": {"namespace": "ml"},
    "image": IMAGE,
    "storage": {"claim": "shared"},
    "pod": {"resources": {"cpu": "2", "memory": "4Gi"}},
}
TARGETS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bucket": {"storage": {"url": "s3://bucket/team", "secret": "keys"}},
    "own image": {"coordinator": {"image": IMAGE}},
    "sidecar": {"coordinator": {"sidecars": [{"name": "proxy", "image": IMAGE}]}},
    "shared account": {"service_account": {"coordinator": "keeps", "name": "works"}},
    "queue": {"queue": "gpus", "priority": "high"},
}


def of_a_run(target: Target) -> list[Object]:
    located = Located({"version": 1, "name": RUN, "command": ["true"], "resources": {"nodes": 2}})
    loaded = Loaded(validated(RunFile, located), Path(), located)
    resolved = resolve_on_target(
        loaded,
        target,
        nodes=2,
        parameters=None,
        layout=StorageLayout.of(loaded.run, target),
        folders=[LocalFolder(CODE, "code", Path())],
        digests={CODE: "0" * 32},
    )
    return manifests(resolved, target, "key")


def made(**changed: Any) -> tuple[list[Object], list[Object], Target]:
    """Those of a check, and those of a run with the same name."""
    target = Target.model_validate({**CONTENT, **changed})
    theirs = of_a_run(target)
    return check_objects(theirs, RUN, target, UID), theirs, target


def replica_set(objects: list[Object]) -> Object:
    (found,) = [one for one in objects if one["kind"] == "ReplicaSet"]
    return found


@pytest.mark.parametrize("changed", TARGETS.values(), ids=TARGETS)
def test_all_but_the_coordinators_pod_is_as_in_a_run(changed: dict[str, Any]) -> None:
    (job, *others), (their_job, *theirs), _ = made(**changed)
    for mine, its in zip(others, theirs, strict=True):
        assert mine == its or mine["kind"] == "ReplicaSet"
    pod, its = (one["spec"]["template"]["spec"] for one in (job, their_job))
    assert {**pod, "terminationGracePeriodSeconds": 120} == its
    assert job["metadata"]["labels"] == their_job["metadata"]["labels"]


@pytest.mark.parametrize("changed", TARGETS.values(), ids=TARGETS)
def test_a_container_before_the_coordinator_has_all_that_it_has(changed: dict[str, Any]) -> None:
    objects, theirs, target = made(**changed)
    pod, its = (one["spec"]["template"]["spec"] for one in map(replica_set, (objects, theirs)))
    *before, facts = pod["initContainers"]
    assert before == its.get("initContainers", [])
    assert {**pod, "initContainers": before} == {**its, "initContainers": before}
    coordinator = next(one for one in its["containers"] if one["name"] == "coordinator")
    assert (facts["name"], facts["command"]) == (FACTS, ["headway", "facts"])
    for key in ("image", "envFrom", "volumeMounts", "resources", "securityContext"):
        assert facts.get(key) == coordinator.get(key), key
    *environment, reviews = facts["env"]
    assert environment == coordinator["env"]
    assert reviews["name"] == REVIEWS
    asked = [one["spec"]["resourceAttributes"] for one in json.loads(reviews["value"])]
    wanted = [
        (right.verb, right.resource.partition("/")[0], name)
        for right, name in asked_rights(RUN, target)
    ]
    assert [(one["verb"], one["resource"], one.get("name")) for one in asked] == wanted


def test_a_killed_check_in_a_full_queue_is_removed_by_a_job_that_needs_none() -> None:
    """A deadline does not count while a queue holds the Job."""
    (job, *_), (their_job, *_), _ = made(**TARGETS["queue"])
    timer = timer_of(their_job, RUN, 300.0)
    assert job["metadata"]["labels"][QUEUE] == "gpus"
    assert QUEUE not in timer["metadata"]["labels"]
    # Deleted with all of the run, and no run that is listed.
    assert labels(RUN).items() <= timer["metadata"]["labels"].items()
    assert timer["metadata"]["labels"][COMPONENT] == "timer"
    spec = timer["spec"]
    assert (spec["parallelism"], spec["activeDeadlineSeconds"]) == (0, 300)
    assert spec["ttlSecondsAfterFinished"] == 0
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["name"], owner["uid"]) == (timer_name(RUN), UID)
    assert timer["metadata"]["name"] == timer_name(RUN)
    assert "controller" not in owner, "else Kueue would let it pass"
