"""The coordinator's rights: they are enough, each one is needed, and there is no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from lightkube import KubeConfig
from lightkube.config.models import User

from cluster_tool.cluster import GivenCluster
from headway.errors import HeadwayError
from headway.kube.client import KubeClient, RequestRefused
from headway.kube.names import coordinator_object, labels, record_object, run_object
from headway.kube.rbac import role, role_binding, service_account
from headway.spec.target_file import Target
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

RUN = "it"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"
SETTLE_SECONDS = 10.0
EVERYBODY_MAY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}

Calls = Mapping[tuple[str, str], Callable[[], object]]


@pytest.fixture
def coordinator(cluster: GivenCluster, namespace: str) -> KubeClient:
    """Who has the run's token, and nothing else; with what a run's coordinator finds there."""
    target = Target.model_validate({"kube": {"namespace": namespace}})
    api, core = cluster.api, f"/api/v1/namespaces/{namespace}"
    api.create(f"{core}/serviceaccounts", service_account(RUN, target))
    api.create(f"{RBAC}/{namespace}/roles", role(RUN, target))
    api.create(f"{RBAC}/{namespace}/rolebindings", role_binding(RUN, target))
    api.create(f"{core}/configmaps", {"metadata": {"name": record_object(RUN)}})
    pod = {
        "metadata": {"name": "waits", "labels": labels(RUN, "worker")},
        "spec": {
            "schedulingGates": [{"name": "headway/placed"}],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "worker",
                    "image": "none",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }
    api.create(f"{core}/pods", pod)
    template = {"metadata": {}, "spec": {**pod["spec"], "restartPolicy": "Never"}}
    for name in (run_object(RUN), coordinator_object(RUN)):
        job = {"metadata": {"name": name}, "spec": {"suspend": True, "template": template}}
        api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job)
    asked = api.create(f"{core}/serviceaccounts/{run_object(RUN)}/token", {"spec": {}})
    there = KubeConfig.from_file(cluster.kubeconfig).get()
    assert there is not None
    user = User(token=asked["status"]["token"])
    return KubeClient._of(KubeConfig.from_one(cluster=there.cluster, user=user).get(), namespace)


def calls_of(kube: KubeClient) -> Calls:
    """By the right that each of them needs."""

    def update() -> object:
        # Nobody changes it between this read and the update.
        return kube.replace_config_map(_record(kube))

    return {
        ("pods", "list"): lambda: kube.pods(labels(RUN, "worker"), lambda pod: pod),
        ("pods", "watch"): lambda: next(iter(kube.watch_pods(labels(RUN, "worker"), "0"))),
        ("pods", "patch"): lambda: kube.release_pod("waits"),
        ("pods", "delete"): lambda: kube.delete_pod("nobody", grace_seconds=0),
        ("jobs", "get"): lambda: kube.job(run_object(RUN)),
        ("jobs", "patch"): lambda: kube.suspend_job(coordinator_object(RUN)),
        ("configmaps", "get"): lambda: kube.config_map(record_object(RUN)),
        ("configmaps", "update"): update,
    }


def _record(kube: KubeClient) -> Any:
    found = kube.config_map(record_object(RUN))
    assert found is not None
    return found


def refused(calls: Calls) -> set[tuple[str, str]]:
    found = set()
    for right, call in calls.items():
        try:
            call()
        except RequestRefused:
            found.add(right)
        except HeadwayError as error:
            raise AssertionError(f"{right}: {error}") from None
    return found


def test_each_right_is_needed(
    cluster: GivenCluster, namespace: str, coordinator: KubeClient
) -> None:
    calls = calls_of(coordinator)
    path = f"{RBAC}/{namespace}/roles/{run_object(RUN)}"
    rules = cluster.api.get(path)["rules"]
    wait_for("its rights", lambda: refused(calls) == set(), SETTLE_SECONDS)
    granted = {(rule["resources"][0], verb) for rule in rules for verb in rule["verbs"]}
    assert granted == calls.keys()
    for resource, verb in granted:
        fewer = [
            {**rule, "verbs": [one for one in rule["verbs"] if one != verb]}
            if resource in rule["resources"]
            else rule
            for rule in rules
        ]
        cluster.api.patch(path, {"rules": fewer})
        expected = {(resource, verb)}
        if (resource, verb) == ("configmaps", "get"):
            expected.add(("configmaps", "update"))  # it reads what it changes
        wait_for(
            f"{verb} {resource} to be refused",
            lambda wanted=expected: refused(calls) == wanted,
            SETTLE_SECONDS,
        )


def test_there_is_no_other(cluster: GivenCluster, namespace: str, coordinator: KubeClient) -> None:
    review = {"spec": {"namespace": namespace}}
    path = "apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

    def rules() -> list[dict[str, Any]]:
        answer = coordinator._http.post(path, json={**review, "kind": "SelfSubjectRulesReview"})
        found: list[dict[str, Any]] = answer.json()["status"]["resourceRules"]
        return [rule for rule in found if not EVERYBODY_MAY & set(rule["resources"])]

    expected = cluster.api.get(f"{RBAC}/{namespace}/roles/{run_object(RUN)}")["rules"]
    wait_for("its rights", lambda: len(rules()) == len(expected), SETTLE_SECONDS)

    def plain(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        keys = ("resources", "verbs", "resourceNames")
        return sorted(tuple(sorted(rule.get(key) or ()) for key in keys) for rule in found)

    assert plain(rules()) == plain(expected)
