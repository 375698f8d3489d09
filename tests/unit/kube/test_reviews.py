"""What a launch needs, against the API server's answers."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.kube.reviews import (
    Right,
    access_review,
    amount,
    amount_text,
    binding_command,
    is_complete,
    not_shown,
    quota_finding,
    quota_gaps,
    rights_finding,
    user_rights,
    version_finding,
)
from headway.spec.target_file import Target

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "first-cluster-run.md"
OWN_ACCOUNTS = Target.model_validate({"kube": {"namespace": "ml"}})
FIXED_ACCOUNTS = Target.model_validate(
    {"kube": {"namespace": "ml"}, "service_account": {"coordinator": "headway-coordinator"}}
)


def review(*rules: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"status": {"resourceRules": list(rules), "incomplete": False, **status}}


def rule(group: str, resources: list[str], verbs: list[str], **more: Any) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs, **more}


def pod(cpu: str = "4", memory: str = "8Gi", **spec: Any) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory}
    return {"containers": [{"resources": {"requests": amounts, "limits": amounts}}], **spec}


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    status = {"hard": hard, "used": used or {}}
    return {"metadata": {"name": "team"}, "spec": {"hard": hard, **spec}, "status": status}


def test_the_guides_role_is_enough_for_a_launch() -> None:
    (written,) = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", GUIDE.read_text(), re.DOTALL)
    assert not_shown(review(*yaml.safe_load(written)["rules"]), user_rights(OWN_ACCOUNTS)) == []


def test_with_accounts_of_an_administrators_no_role_is_made() -> None:
    rights = user_rights(FIXED_ACCOUNTS)
    assert Right("create", "roles", "rbac.authorization.k8s.io") not in rights
    assert Right("create", "roles", "rbac.authorization.k8s.io") in user_rights(OWN_ACCOUNTS)
    assert Right("watch", "pods") in user_rights(OWN_ACCOUNTS), "the coordinator's Role has it"
    assert Right("watch", "pods") not in rights


@pytest.mark.parametrize(
    ("given", "is_shown"),
    [
        (rule("apps", ["replicasets/scale"], ["patch"]), True),
        (rule("*", ["*"], ["*"]), True),
        (rule("apps", ["*/scale"], ["patch", "get"]), True),
        (rule("apps", ["replicasets"], ["patch"]), False),
        (rule("", ["replicasets/scale"], ["patch"]), False),
        (rule("apps", ["replicasets/scale"], ["get"]), False),
        (rule("apps", ["replicasets/scale"], ["patch"], resourceNames=["mine"]), False),
    ],
)
def test_which_rules_give_a_right(given: dict[str, Any], is_shown: bool) -> None:
    right = Right("patch", "replicasets/scale", "apps")
    assert (not_shown(review(given), [right]) == []) == is_shown


def test_a_list_of_rights_by_more_than_rbac_is_not_complete() -> None:
    assert is_complete(review())
    assert not is_complete(review(incomplete=True))
    assert not is_complete(review(evaluationError="webhook does not support user rules"))
    assert not is_complete({})


def test_a_right_is_asked_for_by_its_parts() -> None:
    asked = access_review(Right("patch", "replicasets/scale", "apps"), "ml")
    assert asked["spec"]["resourceAttributes"] == {
        "namespace": "ml",
        "verb": "patch",
        "group": "apps",
        "resource": "replicasets",
        "subresource": "scale",
    }


def test_missing_rights_are_named_with_the_command_that_gives_them() -> None:
    found = rights_finding([Right("create", "jobs", "batch")], FIXED_ACCOUNTS, "lab", "jane")
    assert found is not None
    assert found.words == "jane is not allowed to create jobs.batch in namespace ml"
    assert found.fix == (
        "an administrator gives these rights: kubectl create rolebinding headway-user-45922753 -n "
        "ml --clusterrole=edit --user=jane --dry-run=client -o yaml | kubectl apply -f -"
    )
    assert rights_finding([], FIXED_ACCOUNTS, "lab") is None


def test_a_right_that_only_ending_a_run_needs_is_worth_a_warning() -> None:
    ends = [Right("delete", "jobs", "batch"), Right("delete", "pods")]
    fatal = {
        (name, len(missing)): found.is_fatal
        for name, target in (("fixed", FIXED_ACCOUNTS), ("own", OWN_ACCOUNTS))
        for missing in (ends[:1], ends, [*ends, Right("create", "secrets")])
        if (found := rights_finding(missing, target, "lab")) is not None
    }
    assert fatal == {
        ("fixed", 1): False,
        ("fixed", 2): False,
        ("fixed", 3): True,
        ("own", 1): False,
        ("own", 2): True,  # the Role that each run makes has it
        ("own", 3): True,
    }


def test_who_may_not_create_roles_is_told_of_the_other_way() -> None:
    missing = [Right("create", "roles", "rbac.authorization.k8s.io")]
    found = rights_finding(missing, OWN_ACCOUNTS, "lab", "system:serviceaccount:ci:bot")
    assert found is not None
    assert "--clusterrole=admin --serviceaccount=ci:bot --dry-run=client" in found.fix
    assert "kubectl apply -f -; or without them: " in found.fix
    assert found.fix.endswith("headway target rbac lab | kubectl apply -f -")


def test_rights_that_no_usual_role_has_get_a_role_of_their_own() -> None:
    missing = [
        Right("list", "workloads", "kueue.x-k8s.io"),
        Right("patch", "replicasets/scale", "apps"),
    ]
    found = rights_finding(missing, FIXED_ACCOUNTS, "lab", "jane")
    assert found is not None
    name = re.findall(r"kubectl create role (\S+) ", found.fix)[0]
    assert found.fix.partition(": ")[2] == (
        f"kubectl create role {name} -n ml --verb=list,patch "
        "--resource=workloads.kueue.x-k8s.io,replicasets.apps/scale --dry-run=client -o yaml | "
        f"kubectl apply -f - && kubectl create rolebinding {name} -n ml --role={name} --user=jane "
        "--dry-run=client -o yaml | kubectl apply -f -"
    )


def test_the_command_takes_nothing_from_other_users() -> None:
    """Whoever has been given rights before keeps them, whatever they were."""
    names: set[str] = set()
    for user in ("jane", "joe", "arn:aws:iam::1:user/jane", "system:serviceaccount:ci:bot"):
        for resource in ("jobs", "workloads"):
            group = "batch" if resource == "jobs" else "kueue.x-k8s.io"
            command = binding_command([Right("list", resource, group)], FIXED_ACCOUNTS, user)
            names |= set(re.findall(r"create rolebinding (\S+) ", command))
            assert "apply -f -" in command, "it may be there already"
    assert len(names) == 8
    assert all(re.fullmatch("[a-z0-9-]{1,63}", name) for name in names)
    spaced = binding_command([Right("list", "jobs", "batch")], FIXED_ACCOUNTS, "Jane Doe #1")
    assert "'--user=Jane Doe #1'" in spaced


@pytest.mark.parametrize(
    ("version", "is_refused"),
    [
        ({"major": "1", "minor": "30"}, True),
        ({"major": "1", "minor": "31"}, False),
        ({"major": "1", "minor": "30+"}, True),
        ({"major": "1", "minor": "34+"}, False),
        ({}, False),
    ],
)
def test_versions(version: dict[str, str], is_refused: bool) -> None:
    assert (version_finding(version) is not None) == is_refused


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("500m", Fraction(1, 2)),
        ("2Gi", 2**31),
        ("1k", 1000),
        ("1e3", 1000),
        ("1E", 10**18),
    ],
)
def test_amounts(text: str, value: Fraction) -> None:
    assert amount(text) == value


def test_amounts_are_written_as_people_write_them() -> None:
    assert [amount_text(amount(one)) for one in ("1100m", "2", "2048Mi", "1536Mi", "0")] == [
        "1100m",
        "2",
        "2Gi",
        "1536Mi",
        "0",
    ]


def test_a_quota_that_is_too_small_for_the_least_of_a_run() -> None:
    (gap,) = quota_gaps(
        [quota({"requests.cpu": "8", "pods": "10"})], [(pod(), 2), (pod("500m"), 1)]
    )
    assert gap.is_hopeless
    found = quota_finding(gap, "ml", "the coordinator and 2 nodes")
    assert found.is_fatal
    assert found.words == (
        "quota team of namespace ml allows 8 requests.cpu, and the coordinator and 2 nodes need "
        "8500m"
    )
    assert found.fix.endswith(
        "kubectl patch resourcequota team -n ml --type merge -p "
        '\'{"spec": {"hard": {"requests.cpu": "8500m"}}}\''
    )


def test_a_quota_that_others_use_is_worth_a_warning() -> None:
    (gap,) = quota_gaps([quota({"limits.memory": "32Gi"}, {"limits.memory": "20Gi"})], [(pod(), 2)])
    found = quota_finding(gap, "ml", "the coordinator and 2 nodes")
    assert not found.is_fatal
    assert "has 12Gi of 32Gi limits.memory left" in found.words


def test_what_a_quota_does_not_count_is_not_needed() -> None:
    hard = {"requests.cpu": "1"}
    of_priority = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
    selector = {"scopeSelector": {"matchExpressions": [of_priority]}}
    assert quota_gaps([quota(hard, scopes=["BestEffort"])], [(pod(), 1)]) == []
    assert quota_gaps([quota(hard, **selector)], [(pod(), 1)]) == []
    assert quota_gaps([quota(hard, **selector)], [(pod(priorityClassName="high"), 1)]) != []
    assert quota_gaps([quota(hard, scopes=["NotBestEffort"])], [(pod(), 1)]) != []


def test_init_containers_need_room_only_where_they_need_more() -> None:
    big = {"resources": {"requests": {"cpu": "6"}}}
    sidecar = {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    (gap,) = quota_gaps([quota({"cpu": "1"})], [(pod(initContainers=[big, sidecar]), 1)])
    assert gap.needed == 6
    (gap,) = quota_gaps([quota({"cpu": "1"})], [(pod(initContainers=[sidecar]), 1)])
    assert gap.needed == 5


def test_objects_are_counted() -> None:
    made = [
        {"apiVersion": "batch/v1", "kind": "Job"},
        {"apiVersion": "v1", "kind": "ConfigMap"},
        {"apiVersion": "v1", "kind": "ConfigMap"},
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"},
    ]
    hard = {
        "count/jobs.batch": "0",
        "configmaps": "1",
        "count/networkpolicies.networking.k8s.io": "0",
    }
    assert {gap.resource for gap in quota_gaps([quota(hard)], [], made)} == set(hard)
