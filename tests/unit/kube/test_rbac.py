"""headway target rbac, and runs whose accounts an administrator has made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.errors import Exit

Object = dict[str, Any]
Render = Callable[..., list[Object]]
Headway = Callable[..., Any]
Right = tuple[str, str, str]

OWN_RIGHTS = {"ServiceAccount", "Role", "RoleBinding"}


@pytest.fixture
def choose(folder: Path) -> Callable[[str], None]:
    """Writes the target's `service_account`, and other keys."""

    def write(accounts: str, more: str = "") -> None:
        with (folder / "targets.yaml").open("a") as targets:
            targets.write(f"  service_account: {accounts}\n{more}")

    return write


def printed(headway: Headway) -> list[Object]:
    said = headway("target", "rbac", "lab")
    assert (said.exit_code, said.err) == (0, "")
    return list(yaml.safe_load_all(said.out))


def by_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def rights(role: Object) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def pods_of(objects: list[Object]) -> tuple[Object, Object]:
    owners = [*by_kind(objects, "Job"), *by_kind(objects, "ReplicaSet")]
    workers, coordinator = (owner["spec"]["template"]["spec"] for owner in owners)
    return workers, coordinator


def test_yaml_and_json_are_the_same_objects(
    headway: Headway, choose: Callable[[str], None]
) -> None:
    choose("{coordinator: headway-coordinator, name: headway-worker}")
    listed = json.loads(headway("target", "rbac", "lab", "-o", "json").out)
    assert listed["items"] == printed(headway)
    assert [(one["kind"], one["metadata"]["name"]) for one in listed["items"]] == [
        ("ServiceAccount", "headway-coordinator"),
        ("ServiceAccount", "headway-worker"),
        ("Role", "headway-coordinator"),
        ("RoleBinding", "headway-coordinator"),
    ]
    for one in listed["items"]:
        assert one["metadata"]["namespace"] == "ml"
        assert "app.kubernetes.io/instance" not in one["metadata"]["labels"], "of no run"
        assert "app.kubernetes.io/managed-by" not in one["metadata"]["labels"]


@pytest.mark.parametrize("queue", ["", "  queue: research\n"])
def test_the_shared_role_has_the_rights_of_a_runs_own_without_names(
    headway: Headway, render: Render, choose: Callable[..., None], queue: str
) -> None:
    """That each of them is needed is for a cluster to show."""
    choose("{}", queue)
    (own,) = by_kind(render(), "Role")
    assert {rule["resources"][0] for rule in own["rules"] if "resourceNames" in rule} == {
        "jobs",
        "replicasets/scale",
        "configmaps",
    }
    path = Path("targets.yaml")
    path.write_text(path.read_text().replace(": {}", ": {coordinator: headway-coordinator}"))
    shared = by_kind(printed(headway), "Role")
    given = {right for role in shared for right in rights(role)}
    assert given == rights(own)
    assert not any("resourceNames" in rule for role in shared for rule in role["rules"])
    assert (("kueue.x-k8s.io", "workloads", "patch") in given) is bool(queue)


def test_targets_with_and_without_a_queue_do_not_overwrite_each_others_role(
    headway: Headway, choose: Callable[..., None]
) -> None:
    choose("{coordinator: keeps}")
    without = printed(headway)
    with Path("targets.yaml").open("a") as targets:
        targets.write("  queue: research\n")
    with_queue = printed(headway)
    assert with_queue[: len(without)] == without
    role, binding = with_queue[len(without) :]
    assert role["metadata"]["name"] == binding["roleRef"]["name"] == "headway-coordinator-queue"
    assert rights(role) == {("kueue.x-k8s.io", "workloads", verb) for verb in ("list", "patch")}
    assert binding["metadata"]["name"] == "keeps-queue"
    assert [subject["name"] for subject in binding["subjects"]] == ["keeps"]


def test_the_role_is_bound_to_the_coordinators_account_and_no_other(
    headway: Headway, choose: Callable[[str], None]
) -> None:
    choose("{coordinator: keeps, name: trains}")
    objects = printed(headway)
    (role,), (binding,) = by_kind(objects, "Role"), by_kind(objects, "RoleBinding")
    assert binding["metadata"]["name"] == "keeps", "another target's account has another"
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == "headway-coordinator"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "keeps", "namespace": "ml"}]
    for account in by_kind(objects, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.trap(31)
@pytest.mark.parametrize(
    ("accounts", "worker", "coordinator"),
    [
        ("{}", None, "headway-wiki"),
        ("{annotations: {a: b}}", "headway-wiki", "headway-wiki"),
        ("{coordinator: keeps}", None, "keeps"),
        ("{coordinator: keeps, name: trains}", "trains", "keeps"),
        ("{coordinator: both, name: both}", "both", "both"),
    ],
)
def test_which_pods_have_which_account_and_only_one_its_token(
    render: Render,
    choose: Callable[[str], None],
    accounts: str,
    worker: str | None,
    coordinator: str,
) -> None:
    choose(accounts)
    objects = render()
    workers, coordinators = pods_of(objects)
    assert workers.get("serviceAccountName") == worker
    assert coordinators["serviceAccountName"] == coordinator
    assert workers["automountServiceAccountToken"] is False
    assert coordinators["automountServiceAccountToken"] is True
    made = OWN_RIGHTS & {one["kind"] for one in objects}
    assert made == (set() if "coordinator" in accounts else OWN_RIGHTS)


def test_one_account_for_both_is_printed_once(
    headway: Headway, choose: Callable[[str], None]
) -> None:
    choose("{coordinator: both, name: both}")
    (account,) = by_kind(printed(headway), "ServiceAccount")
    assert account["metadata"]["name"] == "both"


def test_workers_with_an_account_may_use_a_bucket_of_the_run_file(
    render: Render, choose: Callable[[str], None]
) -> None:
    choose("{coordinator: keeps, name: trains}")
    render("storage=s3://mine/runs")


def test_without_a_coordinators_account_there_is_nothing_to_apply(headway: Headway) -> None:
    said = headway("target", "rbac", "lab")
    assert (said.exit_code, said.out) == (Exit.BAD_INPUT, "")
    assert said.err == (
        "error: targets.yaml:1:1: lab.service_account.coordinator: it is missing: each run makes "
        "an account and a Role of its own, and there is nothing to apply once\n"
        "hint: service_account: {coordinator: headway-coordinator}\n"
    )


@pytest.mark.parametrize(
    ("accounts", "says"),
    [
        (
            "{name: trains}",
            "targets.yaml:7:21: lab.service_account.name: `name` needs `coordinator`: the "
            "coordinator writes to the storage as well\n"
            "hint: service_account: {name: trains, coordinator: headway-coordinator}\n",
        ),
        (
            "{coordinator: keeps, annotations: {a: b}}",
            "targets.yaml:7:41: lab.service_account.annotations: an account that an administrator "
            "makes, such as keeps, carries its own annotations\n"
            "hint: leave them out, and for each account: kubectl annotate serviceaccount keeps "
            "a=b\n",
        ),
        (
            "{coordinator: default, name: trains}",
            "targets.yaml:7:21: lab.service_account.coordinator: `default` is the account of every "
            "pod that names none\n"
            "hint: name an account that is Headway's alone, such as headway-coordinator\n",
        ),
        (
            "{coordinator: keeps, name: default}",
            "targets.yaml:7:41: lab.service_account.name: `default` is the account of every pod "
            "that names none\n"
            "hint: name an account that is Headway's alone, such as headway-coordinator\n",
        ),
        (
            "{coordinator: Keeps}",
            "targets.yaml:7:21: lab.service_account.coordinator: 'Keeps' is not a Kubernetes name: "
            "lower-case letters, digits, dashes and dots\n",
        ),
    ],
)
def test_accounts_that_are_refused(
    headway: Headway, choose: Callable[[str], None], accounts: str, says: str
) -> None:
    choose(accounts)
    for command in (("target", "rbac", "lab"), ("check", "--on", "lab")):
        said = headway(*command)
        assert (said.exit_code, said.err) == (Exit.BAD_INPUT, f"error: {says}")


def test_neither_a_cluster_nor_its_client_is_needed(
    folder: Path, choose: Callable[[str], None]
) -> None:
    choose("{coordinator: headway-coordinator}")
    code = (
        "import sys\n"
        "sys.argv = ['headway', 'target', 'rbac', 'lab']\n"
        "from headway.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "print([name for name in ('torch', 'lightkube') if name in sys.modules], file=sys.stderr)\n"
    )
    environment = os.environ | {"KUBECONFIG": str(folder / "none")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stderr.strip() == "[]"
