"""One cluster for all tests here, and a namespace for each.

The cluster of HEADWAY_TEST_KUBECONFIG; else the one that `make cluster-up` has started, which keeps
running; else one of our own, which is removed at the end.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cluster_tool import cluster as tool
from cluster_tool import network
from cluster_tool.cluster import Cluster, GivenCluster
from cluster_tool.commands import try_to
from support.lab import SPOT_LABEL, Lab
from support.s3 import credentials, s3_server


@pytest.fixture(scope="session")
def machine() -> Iterator[None]:
    """Exclusive use of this machine for a test cluster."""
    if os.environ.get("HEADWAY_TEST_KUBECONFIG"):
        pytest.skip("a cluster is given by HEADWAY_TEST_KUBECONFIG: none is made here")
    if os.geteuid() != 0:
        pytest.skip("a test cluster needs root, or HEADWAY_TEST_KUBECONFIG")
    if not try_to("unshare", "--mount", "--net", "true"):
        pytest.skip("root may not make namespaces here: HEADWAY_TEST_KUBECONFIG names a cluster")
    with tool.sole_use():
        yield


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[GivenCluster]:
    named = os.environ.get("HEADWAY_TEST_KUBECONFIG")
    if named:
        yield Cluster.given(Path(named))
        return
    request.getfixturevalue("machine")
    found = Cluster.found()
    # A session that was killed has left its mark, and its cluster.
    mark = tool.FOLDER / "of-a-session"
    if found is not None and not mark.exists() and found.api.answers():
        found.repair()
        yield found
        return
    tool.take_down()
    made = Cluster.up()
    mark.touch()
    yield made
    made.down()


@pytest.fixture
def own_cluster(cluster: GivenCluster) -> Cluster:
    """A cluster on this machine, for tests that break it."""
    if not isinstance(cluster, Cluster):
        pytest.skip("the cluster of HEADWAY_TEST_KUBECONFIG is not ours to break")
    return cluster


@pytest.fixture
def namespace(cluster: GivenCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of its own. Faults that a test leaves are repaired before it is deleted."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())
    # The name of a namespace that is still being deleted cannot be used again.
    with cluster.namespace(f"{words[:50].strip('-')}-{secrets.token_hex(3)}") as name:
        try:
            yield name
        finally:
            if isinstance(cluster, Cluster):
                cluster.repair()


@pytest.fixture
def lab(
    own_cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Lab:
    """A folder with a run, and a target to run it on."""
    monkeypatch.setenv("KUBECONFIG", str(own_cluster.kubeconfig))
    made = Lab(own_cluster, namespace, tmp_path)
    made.write_run()
    return made


@pytest.fixture
def bucket(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Its files. The target's pods get its keys from a Secret, the user's commands from here."""
    keys = (secrets.token_hex(10), secrets.token_hex(20))
    with s3_server(tmp_path / "s3", network.HOST, keys) as port:
        variables = credentials(port, network.HOST, keys)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        lab.make_secret("bucket", variables)
        lab.change_target(storage={"url": "s3://bucket/team", "secret": "bucket"})
        lab.storage = tmp_path / "s3" / "bucket" / "team"
        yield lab.storage


@pytest.fixture
def spot(own_cluster: Cluster) -> Iterator[set[str]]:
    """Names of machines that carry SPOT_LABEL: all but one."""
    names = [node.name for node in own_cluster.nodes[1:]]

    def label(labels: Mapping[str, str | None]) -> None:
        for name in names:
            own_cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})

    label(SPOT_LABEL)
    try:
        yield set(names)
    finally:
        label(dict.fromkeys(SPOT_LABEL))
