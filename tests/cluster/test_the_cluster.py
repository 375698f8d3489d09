"""The test cluster is a real one: its nodes are ready, and pods on them find each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_tool import pods
from cluster_tool.api import ApiError
from cluster_tool.binaries import KUBE_VERSION
from cluster_tool.cluster import Cluster
from cluster_tool.image_files import venv

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.long("tests the test cluster itself"),
]

PYTHON = str((venv() / "bin" / "python").resolve())
SERVE = ("sh", "-c", "cd /scratch; hostname > index.html; exec httpd -f -p 8080")
ASK = """
import sys, time, urllib.request
for name in sys.argv[1:]:
    for attempt in range(20):
        try:
            print(urllib.request.urlopen(f"http://{name}:8080", timeout=3).read().decode().strip())
            break
        except OSError as error:
            print(error, file=sys.stderr)
            time.sleep(0.5)
    else:
        sys.exit(f"{name} was not reached")
"""
TRAIN = """
import os, headway, torch
open("/shared/seen", "a").write(f"{os.getuid()} {torch.ones(3).sum().item()} {headway.__file__}")
"""


def test_three_nodes_are_ready(own_cluster: Cluster) -> None:
    own_cluster.wait_ready()
    found = own_cluster.api.items("/api/v1/nodes")
    versions = {
        node["metadata"]["name"]: node["status"]["nodeInfo"]["kubeletVersion"] for node in found
    }
    assert versions == {f"node{number}": KUBE_VERSION for number in (1, 2, 3)}


def test_pods_of_all_nodes_reach_each_other(own_cluster: Cluster, namespace: str) -> None:
    api, image = own_cluster.api, own_cluster.image
    assert image
    ports = [{"port": 8080}]
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}}
    api.create(f"/api/v1/namespaces/{namespace}/services", service)
    nodes = [node.name for node in own_cluster.nodes]
    for node in nodes:
        pods.start(api, namespace, f"web-{node}", image, SERVE, node)
    addresses = [pods.wait_running(api, namespace, f"web-{node}") for node in nodes]
    for node in nodes:
        asked = (*addresses, "web", f"web.{namespace}.svc.cluster.local")
        command = (PYTHON, "-c", ASK, *asked)
        pods.start(api, namespace, f"ask-{node}", image, command, node)
    for node in nodes:
        *by_address, by_name, by_full_name = pods.wait_done(api, namespace, f"ask-{node}").split()
        assert by_address == [f"web-{node}" for node in nodes]
        assert {by_name, by_full_name} <= set(by_address)


def test_headway_and_torch_come_by_claims(own_cluster: Cluster, namespace: str) -> None:
    api, image = own_cluster.api, own_cluster.image
    assert image
    assert "sha256:" in image
    parts = own_cluster.lend(namespace)
    pods.start(api, namespace, "train", image, ("python", "-c", TRAIN), parts=parts)
    pods.wait_done(api, namespace, "train")
    seen = (own_cluster.folder / "shared" / namespace / "seen").read_text()
    user, total, source = seen.split()
    assert (user, total) == ("1000", "3.0")
    assert Path(source).is_relative_to(Path(__file__).parents[2] / "src")


def test_a_namespace_takes_no_pod_with_rights(own_cluster: Cluster, namespace: str) -> None:
    container = {"name": "main", "image": own_cluster.image}
    pod = {"metadata": {"name": "bold"}, "spec": {"containers": [container]}}
    with pytest.raises(ApiError, match="violates PodSecurity") as refused:
        own_cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    assert refused.value.status == 403
