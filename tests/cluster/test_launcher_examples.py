"""The examples of operators, as a real API server takes them with the operators' own schemas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster_tool.api import Api, ApiError, Object
from cluster_tool.binaries import module_folder
from cluster_tool.cluster import Cluster
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long("downloads three operators with Go, for their schemas"),
]

EXAMPLES = Path(__file__).parents[2] / "examples" / "launchers"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SCHEMAS = (
    (
        ("sigs.k8s.io/jobset", "v0.10.1", "h1:u8QKifNsrWVrlRFe6w2ofYTqFT9ma2DRHxfeB2m9xyU="),
        ("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",),
    ),
    (
        (
            "github.com/kubeflow/trainer/v2",
            "v2.2.0",
            "h1:whChZckEtycLo1UKH/M0hiNaCUozbLvf9JrgmMv+TAg=",
        ),
        (
            "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
        ),
    ),
    (
        (
            "github.com/kubeflow/training-operator",
            "v1.9.3",
            "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
        ),
        ("manifests/base/crds/kubeflow.org_pytorchjobs.yaml",),
    ),
)
"""Modules, and files in them."""


@pytest.fixture
def api(own_cluster: Cluster) -> Iterator[Api]:
    """An API server that knows the kinds."""
    texts = [
        (module_folder(*module) / file).read_text() for module, files in SCHEMAS for file in files
    ]
    crds = [yaml.safe_load(text) for text in texts]
    paths = [f"{CRDS}/{crd['metadata']['name']}" for crd in crds]
    api = own_cluster.api
    try:
        for crd in crds:
            api.create(CRDS, crd)
        for path in paths:
            wait_for(path, lambda path=path: _is_served(api.get(path)))  # type: ignore[misc]
        yield api
    finally:
        for path in paths:
            api.delete(path)
        wait_for("the kinds to be gone", lambda: not any(api.find(path) for path in paths))


def test_an_api_server_takes_them_by_their_schemas(api: Api, namespace: str) -> None:
    taken = []
    for name in ("jobset.yaml", "trainjob.yaml", "pytorchjob.yaml"):
        for made in yaml.safe_load_all((EXAMPLES / name).read_text()):
            create(api, namespace, made)
            taken.append(made["kind"])
            with pytest.raises(ApiError, match=r"unknown field .*spec\.nope"):
                create(api, namespace, {**made, "spec": {**made["spec"], "nope": 1}})
    assert taken == ["JobSet", "TrainingRuntime", "TrainJob", "PyTorchJob"]


def create(api: Api, namespace: str, made: Object) -> None:
    """Only tried: nobody here acts on it."""
    kinds = f"/apis/{made['apiVersion']}/namespaces/{namespace}/{made['kind'].lower()}s"
    api.create(f"{kinds}?fieldValidation=Strict&dryRun=All", made)


def _is_served(found: Object) -> bool:
    conditions = found.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
