"""What `headway run --on` refuses before it prepares or uploads anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import Exit
from headway.launch.launch_gate import MOST_CALLS
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway, Said
from support.kept_run import JOBS
from support.launchable import RUN, TARGET, write_launchable

QUOTAS = "/api/v1/namespaces/ml/resourcequotas"


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_launchable(folder, monkeypatch)
    return folder


@pytest.fixture
def kube(folder: Path) -> Iterator[FakeKube]:
    with fake_kube(folder) as kube:
        kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}
        yield kube


def add_to_target(folder: Path, *lines: str) -> None:
    added = "".join(f"  {line}\n" for line in lines)
    (folder / "targets.yaml").write_text(TARGET + added)


def refused(headway: Headway, kube: FakeKube) -> str:
    """What is said; nothing was made, not even a pod for an upload."""
    said = headway("run", "--on", "lab", "--nodes", "1")
    assert said.exit_code == Exit.BAD_INPUT, said.err
    assert kube.objects == {}
    return said.err


def launched(headway: Headway) -> Said:
    said = headway("run", "--on", "lab", "--nodes", "1")
    assert said.exit_code == 0, said.err
    return said


def asked(kube: FakeKube) -> list[str]:
    """Before anything is made."""
    first = next(i for i, call in enumerate(kube.calls) if "headway-storage-" in call)
    return kube.calls[1:first]


def test_a_dozen_calls_at_most(headway: Headway, kube: FakeKube, folder: Path) -> None:
    names = ", ".join(f"pull-{number}" for number in range(9))
    add_to_target(
        folder,
        "queue: research",
        "service_account: {coordinator: keeps, name: works}",
    )
    text = (folder / "targets.yaml").read_text()
    (folder / "targets.yaml").write_text(
        text.replace("pod: {", f"pod: {{image_pull_secrets: [{names}], ")
    )
    kube.reviews.rules, kube.reviews.is_incomplete = [], True
    refused(headway, kube)
    assert len(kube.calls) - 1 == MOST_CALLS


def test_a_target_that_is_well_is_asked_and_nothing_is_said(
    headway: Headway, kube: FakeKube
) -> None:
    said = launched(headway)
    assert "warning" not in said.err
    assert len(asked(kube)) == 8
    assert f"POST {JOBS}" in kube.calls


@pytest.mark.trap(8)
def test_a_missing_right(headway: Headway, kube: FakeKube) -> None:
    everything = ["create", "get", "list", "watch", "patch", "update", "delete"]
    kube.reviews.rules = [
        {"verbs": everything, "apiGroups": ["", "apps", "networking.k8s.io"], "resources": ["*"]},
        {"verbs": everything, "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"]},
        {"verbs": ["get", "patch", "delete"], "apiGroups": ["batch"], "resources": ["jobs"]},
    ]
    said = refused(headway, kube)
    assert (
        "error: targets.yaml:2:24: jane is not allowed to create jobs.batch in namespace ml\n"
        "hint: an administrator gives these rights: kubectl create rolebinding headway-user-"
    ) in said


def test_rights_that_others_than_rbac_give_are_asked_for(headway: Headway, kube: FakeKube) -> None:
    kube.reviews.rules, kube.reviews.is_incomplete = [], True
    kube.reviews.allowed = {
        f"create {kind}" for kind in ("jobs", "replicasets", "secrets", "services", "configmaps")
    }
    launched(headway)
    kube.objects.clear()
    kube.reviews.allowed.remove("create replicasets")
    assert "jane is not allowed to create replicasets.apps in namespace ml" in refused(
        headway, kube
    )


def test_a_claim_can_be_filled_by_one_of_two_ways(headway: Headway, kube: FakeKube) -> None:
    all_but_subresources = {
        "verbs": ["create", "get", "list", "watch", "patch", "update", "delete"],
        "apiGroups": ["", "batch", "apps", "networking.k8s.io", "rbac.authorization.k8s.io"],
        "resources": [
            "jobs",
            "replicasets",
            "secrets",
            "services",
            "configmaps",
            "networkpolicies",
            "pods",
            "events",
            "serviceaccounts",
            "roles",
            "rolebindings",
            "replicasets/scale",
        ],
    }
    kube.reviews.rules = [all_but_subresources]
    assert "not allowed to get pods/portforward in namespace ml" in refused(headway, kube)
    proxy = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods/proxy"]}
    kube.reviews.rules = [all_but_subresources, proxy]
    launched(headway)


@pytest.mark.parametrize(
    ("lines", "name", "words"),
    [
        ((), "shared-fs", "4:13: PersistentVolumeClaim shared-fs is not in namespace ml\n"
         "hint: kubectl get persistentvolumeclaims -n ml lists those that are there"),
        (("service_account: {coordinator: keeps}",), "keeps",
         "6:21: ServiceAccount keeps is not in namespace ml\n"
         "hint: an administrator runs: headway target rbac lab | kubectl apply -f -"),
        (("service_account: {coordinator: keeps, name: works}",), "works",
         "6:41: ServiceAccount works is not in namespace ml\n"),
        (("queue: research",), "research", "6:3: Kueue has no LocalQueue research in namespace "
         "ml\nhint: kubectl get localqueues -n ml lists those that are there"),
    ],
)  # fmt: skip
def test_an_object_that_is_not_there(
    headway: Headway, kube: FakeKube, folder: Path, lines: tuple[str, ...], name: str, words: str
) -> None:
    add_to_target(folder, *lines)
    kube.reviews.missing = {name}
    assert f"error: targets.yaml:{words}" in refused(headway, kube)


def test_a_secret_that_is_not_there_or_lacks_a_key(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    (folder / "run.yaml").write_text(f"{RUN}secrets: [WANDB_API_KEY, HF_TOKEN]\n")
    add_to_target(folder, "secret: team")
    assert (
        "error: targets.yaml:6:3: Secret team of namespace ml has no HF_TOKEN\n"
        'hint: kubectl patch secret team -n ml -p \'{"stringData": {"HF_TOKEN": "VALUE"}}\'\n'
    ) in refused(headway, kube)
    kube.reviews.missing = {"team"}
    assert (
        "error: targets.yaml:6:3: Secret team is not in namespace ml\n"
        "hint: kubectl create secret generic team -n ml --from-literal=WANDB_API_KEY=VALUE "
        "--from-literal=HF_TOKEN=VALUE\n"
    ) in refused(headway, kube)


def test_keys_that_only_the_preparation_of_data_reads(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    add_to_target(folder, "secret: team", "prepare: {secrets: [HF_TOKEN]}")
    launched(headway)  # its set is prepared already
    kube.objects.clear()
    train = '{sources: ["s3://bucket/a.jsonl"], tokenizer: gpt2}'
    (folder / "run.yaml").write_text(RUN.replace("train: train", f"train: {train}"))
    assert "Secret team of namespace ml has no HF_TOKEN\n" in refused(headway, kube)


def test_a_pull_secret_that_is_not_there_is_worth_a_warning(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    """Kubernetes starts such pods, and images may be there already."""
    text = TARGET.replace("pod: {", "pod: {image_pull_secrets: [registry], ")
    (folder / "targets.yaml").write_text(text)
    kube.reviews.missing = {"registry"}
    said = launched(headway).err
    assert "Secret registry is not in namespace ml: images are pulled without it\n" in said
    assert "--docker-server=registry.example --docker-username=NAME" in said


def test_a_quota(headway: Headway, kube: FakeKube) -> None:
    hard = {"requests.cpu": "4"}
    quota = {"metadata": {"name": "team"}, "spec": {"hard": hard}, "status": {"hard": hard}}
    kube.objects[QUOTAS] = {"metadata": {"name": ""}, "items": [quota]}
    said = headway("run", "--on", "lab", "--nodes", "1")
    assert said.exit_code == Exit.BAD_INPUT
    assert (
        "quota team of namespace ml allows 4 requests.cpu, and the coordinator and 1 node need "
        "4500m\n"
    ) in said.err
    assert list(kube.objects) == [QUOTAS]
    hard["requests.cpu"] = "5"
    quota["status"]["used"] = {"requests.cpu": "1"}
    assert "team of namespace ml has 4 of 5 requests.cpu left" in launched(headway).err


def test_pods_that_policy_refuses(headway: Headway, kube: FakeKube) -> None:
    refusal = 'violates PodSecurity "restricted:latest": hostPath volumes (volume "host")'
    for component in ("worker", "coordinator"):
        name = f"headway-it-{component}-x2k9v"
        kube.reviews.refused_pods[component] = 403, f'pods "{name}" is forbidden: {refusal}'
    said = refused(headway, kube)
    assert f"namespace ml refuses the pods of workers: {refusal}\n" in said
    assert "kubectl label namespace ml pod-security.kubernetes.io/enforce=privileged" in said
    assert said.count("hostPath") == 1, "said once for both"


@pytest.mark.parametrize(
    "message",
    [
        'pods is forbidden: User "jane" cannot create resource "pods" in API group ""',
        'admission webhook "scan.example" does not support dry run',
        'pods "it" is forbidden: exceeded quota: team, requested: pods=1, used: pods=9',
    ],
)
def test_a_dry_run_that_says_nothing_of_policy_is_passed_over(
    headway: Headway, kube: FakeKube, message: str
) -> None:
    kube.reviews.refused_pods["worker"] = 403, message
    launched(headway)


@pytest.mark.parametrize(
    "message",
    [
        'pods "it" is forbidden: maximum cpu usage per Container is 2, but limit is 4',
        'pods "it" is forbidden: no PriorityClass with name urgent was found',
    ],
)
def test_what_else_refuses_pods_is_said_in_its_words(
    headway: Headway, kube: FakeKube, message: str
) -> None:
    kube.reviews.refused_pods["worker"] = 403, message
    words = message.removeprefix('pods "it" is forbidden: ')
    assert f"namespace ml refuses the pods of workers: {words}\n" in refused(headway, kube)


def test_a_policy_that_may_judge_by_who_creates_a_pod_is_a_warning(
    headway: Headway, kube: FakeKube
) -> None:
    """In a run it is a controller."""
    message = 'admission webhook "validate.kyverno.svc" denied the request: no bare pods'
    kube.reviews.refused_pods["worker"] = 403, message
    said = launched(headway).err
    assert f"warning: targets.yaml:5:3: namespace ml refuses the pods of workers: {message}" in said


def test_a_namespace_that_is_not_there(headway: Headway, kube: FakeKube) -> None:
    for component in ("worker", "coordinator"):
        kube.reviews.refused_pods[component] = 404, 'namespaces "ml" not found'
    said = refused(headway, kube)
    assert (
        "error: targets.yaml:2:24: there is no namespace ml\n"
        "hint: kubectl create namespace ml, or name another one\n"
    ) in said
    assert said.count("error") == 1


def test_an_old_cluster(headway: Headway, kube: FakeKube) -> None:
    kube.reviews.version = {"major": "1", "minor": "29+"}
    assert "the cluster has Kubernetes 1.29, and runs need 1.31 or later" in refused(headway, kube)


def test_all_that_is_wrong_is_said_at_once(headway: Headway, kube: FakeKube) -> None:
    kube.reviews.rules = []
    kube.reviews.missing = {"shared-fs"}
    said = refused(headway, kube)
    assert "jane is not allowed to create jobs.batch" in said
    assert "PersistentVolumeClaim shared-fs is not in namespace ml" in said


def test_what_may_not_be_asked_is_passed_over(headway: Headway, kube: FakeKube) -> None:
    kube.reviews.missing = {"shared-fs"}
    kube.forbidden |= {
        "/version",
        "/apis/auth",
        QUOTAS,
        "/api/v1/namespaces/ml/persistentvolumeclaims",
    }
    kube.reviews.refused_pods["worker"] = 500, "a webhook does not answer"
    assert "warning" not in launched(headway).err
