"""How pods are reached from outside: by the kubelet, or else by the pod's address, or not at all.
The whole way of a run without pod addresses is in test_training.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_tool import faults, pods
from cluster_tool.cluster import Cluster
from cluster_tool.network import connects
from headway.errors import Exit, NotFound
from headway.kube.api_errors import ClusterUnreachable, PodUnreachable
from headway.kube.client import KubeClient
from support.guide_rights import RBAC, users_kubeconfig
from support.lab import Lab
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PORT = faults.PODS_PORT
NUM_BYTES = 3_000_000
SERVE = f"""
echo hello > /scratch/hello
dd if=/dev/urandom of=/scratch/large bs={NUM_BYTES} count=1
httpd -f -p {PORT} -h /scratch
"""
SETTLE_SECONDS = 10.0


def test_a_pod_is_reached_either_way(
    own_cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_cluster.image
    pods.start(own_cluster.api, namespace, "it", own_cluster.image, ("sh", "-c", SERVE))
    address = pods.wait_running(own_cluster.api, namespace, "it")
    wait_for("the server", lambda: connects(address, PORT))
    kubeconfig = users_kubeconfig(own_cluster, namespace, tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))

    def asked(path: str, pod: str = "it", port: int = PORT) -> bytes:
        return KubeClient.from_kubeconfig(None, namespace).request_to_pod(pod, port, path)

    faults.cut_api_from_pods()
    assert asked("/hello") == b"hello\n"
    assert len(asked("/large")) == NUM_BYTES
    with pytest.raises(NotFound, match="no-such-pod"):
        asked("/hello", pod="no-such-pod")
    with pytest.raises(ClusterUnreachable, match="does not listen yet") as caught:
        asked("/hello", port=PORT + 1)
    assert not isinstance(caught.value, PodUnreachable)
    faults.mend_api()
    role = f"/apis/{RBAC}/v1/namespaces/{namespace}/roles/headway-user"
    rules = own_cluster.api.get(role)["rules"]
    kept = [rule for rule in rules if rule["resources"] != ["pods/portforward"]]
    own_cluster.api.patch(role, {"rules": kept})
    kube = KubeClient.from_kubeconfig(None, namespace)

    def is_by_proxy() -> bool:
        assert kube.request_to_pod("it", PORT, "/hello") == b"hello\n"
        return kube.way_to_pods == "proxy"

    wait_for("the right to be gone", is_by_proxy, SETTLE_SECONDS)
    assert len(kube.request_to_pod("it", PORT, "/large")) == NUM_BYTES


@pytest.mark.long(
    "waits for a deadline of a minute; tests/unit/launch/test_watching.py has it, too"
)
def test_a_run_that_nobody_can_watch_continues(lab: Lab) -> None:
    faults.cut_api_from_pods()
    started = lab.typed("run", "--on", "lab", "--nodes", "2", "--set", "name=it")
    wait_for("a coordinator", lambda: lab.pods("coordinator") != [], 120)
    faults.cut_api_from_kubelets()
    wait_for("a step", lambda: lab.step() > 0, 120)
    watch = Stopwatch()
    assert started.end(120) == Exit.STILL_RUNNING
    assert watch.seconds < 75
    said = started.output
    assert "run it continues (2 of 2 pods are ready), but cannot be watched from here" in said
    assert "port-forward: no connection within 10 s; proxy: no answer within 20 s" in said
    lab.require_steps(10)
    faults.mend_api()
    assert lab.status()["state"] == "running"
    lab.headway("stop")
    lab.require_exact()
