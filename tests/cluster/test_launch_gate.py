"""`headway run --on` refuses what the cluster cannot take, before it prepares or uploads anything;
and after the fix that it names, it does not."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from support.guide_rights import RBAC, users_kubeconfig
from support.lab import Lab
from support.stolen_time import Stopwatch

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.long("the same answers are given by a fake API server in tests/unit/launch"),
]
REFUSED_SECONDS = 60.0
"""It takes two, most of them for imports; pods that cannot start take longer to be given up."""


def refused(lab: Lab) -> str:
    """What is said within seconds; nothing was prepared, uploaded or made."""
    watch = Stopwatch()
    said = lab.headway("run", "--on", "lab", "--nodes", "1", expect=2).stderr
    assert watch.seconds < REFUSED_SECONDS, said
    assert lab.objects() == []
    assert not (lab.folder / "prepared").exists()
    assert not lab.shared.exists() or list(lab.shared.iterdir()) == []
    return said


def taken(lab: Lab) -> None:
    """The gate lets it through: it prepares, uploads and waits for pods."""
    with lab.typed("run", "--on", "lab", "--nodes", "1") as command:
        command.wait_for("prepared train", 60)
        command.interrupt()
    lab.headway("delete", "it", "--yes", expect=None)


def kubectl(lab: Lab, command: str) -> None:
    """By an administrator, as the hint says."""
    assert command.startswith("kubectl ")
    environment = {**os.environ, "KUBECONFIG": str(lab.cluster.kubeconfig)}
    subprocess.run(command, shell=True, env=environment, check=True, timeout=60)


def hint_of(said: str, begins: str) -> str:
    (found,) = re.findall(rf"^hint: .*?({re.escape(begins)}.*)$", said, re.MULTILINE)
    return str(found)


def test_a_missing_right(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = users_kubeconfig(lab.cluster, lab.namespace, lab.folder)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    path = f"/apis/{RBAC}/v1/namespaces/{lab.namespace}/roles/headway-user"
    role = lab.cluster.api.get(path)
    for rule in role["rules"]:
        if rule["resources"] == ["jobs"]:
            rule["verbs"].remove("create")
    lab.cluster.api.patch(path, {"rules": role["rules"]})
    said = refused(lab)
    who = f"system:serviceaccount:{lab.namespace}:user"
    assert f"{who} is not allowed to create jobs.batch in namespace {lab.namespace}" in said
    kubectl(lab, hint_of(said, "kubectl create rolebinding"))
    taken(lab)


def test_a_quota(lab: Lab) -> None:
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"requests.cpu": "800m"}}}
    lab.cluster.api.create(f"/api/v1/namespaces/{lab.namespace}/resourcequotas", quota)
    said = refused(lab)
    assert "allows 800m requests.cpu, and the coordinator and 1 node need 950m" in said
    kubectl(lab, hint_of(said, "kubectl patch resourcequota"))
    taken(lab)


def test_a_missing_secret_and_then_a_missing_key(lab: Lab) -> None:
    run_file = (lab.folder / "run.yaml").read_text()
    (lab.folder / "run.yaml").write_text(f"{run_file}secrets: [WANDB_API_KEY, HF_TOKEN]\n")
    lab.change_target(secret="team")
    said = refused(lab)
    assert f"Secret team is not in namespace {lab.namespace}" in said
    kubectl(
        lab, hint_of(said, "kubectl create secret").replace(" --from-literal=HF_TOKEN=VALUE", "")
    )
    said = refused(lab)
    assert f"Secret team of namespace {lab.namespace} has no HF_TOKEN" in said
    kubectl(lab, hint_of(said, "kubectl patch secret"))
    taken(lab)


def test_a_missing_claim(lab: Lab) -> None:
    lab.change_target(storage={"claim": "nowhere"})
    said = refused(lab)
    assert f"PersistentVolumeClaim nowhere is not in namespace {lab.namespace}" in said


def test_a_restricted_namespace(lab: Lab) -> None:
    added = {
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        "mounts": [{"name": "host", "mountPath": "/host"}],
    }
    target = lab.target()["pod"]
    added = {key: [*target.get(key, ()), *value] for key, value in added.items()}
    lab.change_target(added, security="baseline")
    said = refused(lab)
    assert 'refuses the pods of workers: violates PodSecurity "restricted:latest"' in said
    assert "hostPath" in said
    kubectl(lab, hint_of(said, "kubectl label namespace"))
    taken(lab)


def test_a_namespace_that_is_not_there(lab: Lab) -> None:
    lab.change_target(kube={"namespace": f"{lab.namespace}-x"})
    said = refused(lab)
    assert f"there is no namespace {lab.namespace}-x\n" in said


def test_all_that_is_wrong_is_said_at_once(lab: Lab) -> None:
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"pods": "1"}}}
    lab.cluster.api.create(f"/api/v1/namespaces/{lab.namespace}/resourcequotas", quota)
    lab.change_target(
        storage={"claim": "nowhere"}, service_account={"coordinator": "keeps", "name": "works"}
    )
    said = refused(lab)
    for words in ("ServiceAccount keeps", "ServiceAccount works", "Claim nowhere", "quota team"):
        assert words in said
