"""The coordinator's rights: they are enough, each one is needed, and there is no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import yaml
from lightkube.resources.core_v1 import ConfigMap

from cluster_tool.api import Object
from cluster_tool.cluster import GivenCluster
from headway.errors import HeadwayError
from headway.kube.api_errors import RequestRefused
from headway.kube.client import KubeClient
from headway.kube.names import coordinator_object, labels, record_object, run_object, spec_object
from headway.kube.rbac import run_rights, shared_rights
from headway.spec.target_file import Target
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

RUN = "it"
SPEC = {
    "metadata": {"name": spec_object(RUN, "0")},
    "immutable": True,
    "data": {"spec.json": "its code"},
}
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"
SETTLE_SECONDS = 10.0
EVERYBODY_MAY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}

Calls = Mapping[tuple[str, str], Callable[[], object]]


@pytest.fixture(params=["of the run", "of all runs"])
def rights(request: pytest.FixtureRequest, namespace: str) -> list[Object]:
    """Account, Role and RoleBinding."""
    written = {} if request.param == "of the run" else {"coordinator": "keeps"}
    content = {"kube": {"namespace": namespace}, "service_account": written}
    target = Target.model_validate(content)
    return shared_rights(target) if written else run_rights(RUN, target)


@pytest.fixture
def role(rights: list[Object], namespace: str) -> str:
    """Its path."""
    return f"{RBAC}/{namespace}/roles/{rights[1]['metadata']['name']}"


@pytest.fixture
def coordinator(
    cluster: GivenCluster,
    namespace: str,
    rights: list[Object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> KubeClient:
    """Who has the coordinator's token, and nothing else; with what a run's coordinator finds."""
    api, core = cluster.api, f"/api/v1/namespaces/{namespace}"
    account, role, role_binding = rights
    api.create(f"{core}/serviceaccounts", account)
    api.create(f"{RBAC}/{namespace}/roles", role)
    api.create(f"{RBAC}/{namespace}/rolebindings", role_binding)
    api.create(f"{core}/configmaps", SPEC)
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
    job = {"metadata": {"name": run_object(RUN)}, "spec": {"suspend": True, "template": template}}
    api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job)
    its = labels(RUN, "coordinator")
    template = {"metadata": {"labels": its}, "spec": pod["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": its}, "template": template}
    owner = {"metadata": {"name": coordinator_object(RUN)}, "spec": spec}
    api.create(f"/apis/apps/v1/namespaces/{namespace}/replicasets", owner)
    asked = api.create(f"{core}/serviceaccounts/{account['metadata']['name']}/token", {"spec": {}})
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for one in config["users"]:
        one["user"] = {"token": asked["status"]["token"]}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return KubeClient.from_kubeconfig(None, namespace)


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
        ("jobs", "patch"): lambda: kube.suspend_job(run_object(RUN)),
        ("replicasets/scale", "patch"): lambda: kube.scale_replica_set(coordinator_object(RUN), 0),
        ("configmaps", "get"): lambda: kube.config_map(record_object(RUN)),
        ("configmaps", "update"): update,
        ("events", "create"): lambda: kube.create(_event(kube)),
    }


def _event(kube: KubeClient) -> Object:
    about = {"kind": "Job", "name": run_object(RUN), "namespace": kube.namespace}
    metadata = {"name": f"it.{token_hex(6)}", "namespace": kube.namespace}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about}


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


def test_each_right_is_needed(cluster: GivenCluster, role: str, coordinator: KubeClient) -> None:
    calls = calls_of(coordinator)
    rules = cluster.api.get(role)["rules"]
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
        # Kubernetes takes no rule without verbs.
        cluster.api.patch(role, {"rules": [rule for rule in fewer if rule["verbs"]]})
        expected = {(resource, verb)}
        if (resource, verb) == ("configmaps", "get"):
            expected.add(("configmaps", "update"))  # it reads what it changes
        wait_for(
            f"{verb} {resource} to be refused",
            lambda wanted=expected: refused(calls) == wanted,
            SETTLE_SECONDS,
        )


@pytest.mark.trap(39)
def test_there_is_no_other(
    cluster: GivenCluster, namespace: str, role: str, coordinator: KubeClient
) -> None:
    review = {"spec": {"namespace": namespace}}
    path = "apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

    def rules() -> list[dict[str, Any]]:
        answer = coordinator._http.post(path, json={**review, "kind": "SelfSubjectRulesReview"})
        found: list[dict[str, Any]] = answer.json()["status"]["resourceRules"]
        return [rule for rule in found if not EVERYBODY_MAY & set(rule["resources"])]

    expected = cluster.api.get(role)["rules"]
    wait_for("its rights", lambda: len(rules()) == len(expected), SETTLE_SECONDS)

    def plain(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        keys = ("resources", "verbs", "resourceNames")
        return sorted(tuple(sorted(rule.get(key) or ()) for key in keys) for rule in found)

    assert plain(rules()) == plain(expected)


def test_what_a_run_is_cannot_be_changed(
    cluster: GivenCluster, namespace: str, role: str, coordinator: KubeClient
) -> None:
    """By no coordinator, also not by one that may change the ConfigMaps of all runs."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/{SPEC['metadata']['name']}"
    spec = ConfigMap.from_dict(cluster.api.get(path))
    spec.data = {"spec.json": "other code"}
    may_change = not any("resourceNames" in rule for rule in cluster.api.get(role)["rules"])
    why = "immutable" if may_change else "cannot update resource"

    def refusal() -> str:
        with pytest.raises(RequestRefused) as caught:
            coordinator.replace_config_map(spec)
        return caught.value.message

    wait_for(why, lambda: why in refusal(), SETTLE_SECONDS)
    assert cluster.api.get(path)["data"] == SPEC["data"]
