"""What Headway makes is what Kubernetes takes: every golden manifest, as a server-side dry run."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster_tool.api import ApiError, Object
from cluster_tool.cluster import GivenCluster
from headway.errors import BadInput
from headway.kube.client import KubeClient

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

FOLDER = Path(__file__).parents[1] / "unit/kube/golden"
GOLDEN = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
APPLIED_ONCE = {path.stem: path for path in (FOLDER / "applied_once").glob("*.yaml")}
LOCKS_MEMORY = {"gpu-bucket"}
"""With `security: baseline` and an RDMA device: the capability for it is beyond what Kubernetes'
own level of that name allows."""
LEVEL = "pod-security.kubernetes.io/enforce"
STRICT = "dryRun=All&fieldValidation=Strict"
"""A misspelt key is an error and not left out."""
PATHS = {
    "Job": "/apis/batch/v1",
    "NetworkPolicy": "/apis/networking.k8s.io/v1",
    "ReplicaSet": "/apis/apps/v1",
    "Role": "/apis/rbac.authorization.k8s.io/v1",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1",
}
PLURALS = {"NetworkPolicy": "networkpolicies"}


@pytest.fixture
def classes(cluster: GivenCluster) -> Iterator[None]:
    """Those that a golden target names: without them, its pods are refused."""
    priority, runtime = (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        "/apis/node.k8s.io/v1/runtimeclasses",
    )
    made = {
        priority: [
            {"metadata": {"name": name}, "value": 1} for name in ("research", "coordinators")
        ],
        runtime: [{"metadata": {"name": "nvidia"}, "handler": "runc"}],
    }
    for path, objects in made.items():
        for one in objects:
            cluster.api.create(path, one)
    try:
        yield
    finally:
        for path, objects in made.items():
            for one in objects:
                cluster.api.delete(f"{path}/{one['metadata']['name']}")


@pytest.fixture
def kube(cluster: GivenCluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> KubeClient:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return KubeClient.from_kubeconfig(None, namespace)


def _objects(name: str, namespace: str) -> list[Object]:
    """With a key, which is not shown in what users see; what an administrator has applied comes
    first."""
    files = [files[name] for files in (APPLIED_ONCE, GOLDEN) if name in files]
    found: list[Object] = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    for one in found:
        one["metadata"]["namespace"] = namespace
        for subject in one.get("subjects", ()):
            subject["namespace"] = namespace
        if one["kind"] == "Secret":
            one["data"]["key"] = base64.b64encode(b"ab" * 32).decode()
    return found


def _path(kind: str, namespace: str) -> str:
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    return f"{PATHS.get(kind, '/api/v1')}/namespaces/{namespace}/{plural}"


def _pod_of(job: Object) -> Object:
    """As the Job's controller would make it: pod security lets every Job through, and no pod."""
    template = job["spec"]["template"]
    metadata = {
        **template.get("metadata", {}),
        "name": job["metadata"]["name"],
        "namespace": job["metadata"]["namespace"],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _refusals(kube: KubeClient, objects: list[Object]) -> dict[str, str]:
    """By the name of the Job whose pods are refused."""
    found = {}
    for job in (one for one in objects if one["kind"] == "Job"):
        try:
            kube.apply(_pod_of(job), dry_run=True)
        except BadInput as error:
            found[job["metadata"]["name"]] = error.message
    return found


GPU_PROOF = Path(__file__).parents[2] / "examples" / "gpu-proof" / "job.yaml"


def test_the_api_server_takes_the_job_that_proves_a_gpu(
    cluster: GivenCluster, namespace: str, kube: KubeClient
) -> None:
    job = yaml.safe_load(GPU_PROOF.read_text())
    job["metadata"]["namespace"] = namespace
    cluster.api.create(f"{_path('Job', namespace)}?{STRICT}", job)
    assert cluster.api.items(_path("Job", namespace)) == [], "a dry run makes nothing"
    assert _refusals(kube, [job]) == {}


@pytest.mark.trap(36)
@pytest.mark.usefixtures("classes")
@pytest.mark.parametrize("name", GOLDEN)
def test_the_api_server_takes_all_of_it(
    name: str, cluster: GivenCluster, namespace: str, kube: KubeClient
) -> None:
    objects = _objects(name, namespace)
    for one in objects:
        kube.apply(one, dry_run=True)
        cluster.api.create(f"{_path(one['kind'], namespace)}?{STRICT}", one)
    for kind in {one["kind"] for one in objects} - {"ConfigMap", "ServiceAccount"}:
        assert cluster.api.items(_path(kind, namespace)) == [], "a dry run makes nothing"

    # A pod is refused whose account is not there.
    for one in objects:
        if one["kind"] == "ServiceAccount":
            kube.apply(one)
    assert cluster.api.get(f"/api/v1/namespaces/{namespace}")["metadata"]["labels"][LEVEL] == (
        "restricted"
    )
    if name not in LOCKS_MEMORY:
        assert _refusals(kube, objects) == {}
        return
    assert list(_refusals(kube, objects)) == ["headway-wiki"]
    for level, is_refused in (("baseline", True), ("privileged", False)):
        cluster.api.patch(
            f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {LEVEL: level}}}
        )
        refusals = _refusals(kube, objects)
        assert list(refusals) == (["headway-wiki"] if is_refused else [])
        assert all("IPC_LOCK" in words for words in refusals.values()), "and nothing else"


def test_what_is_shown_cannot_be_applied(cluster: GivenCluster, namespace: str) -> None:
    shown = yaml.safe_load_all(GOLDEN["cpu-claim"].read_text())
    secret = next(one for one in shown if one["kind"] == "Secret")
    secret["metadata"]["namespace"] = namespace
    with pytest.raises(ApiError, match="illegal base64"):
        cluster.api.create(_path("Secret", namespace), secret)
