"""What a run's pods may do, seen from inside them: next to nothing."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster_tool.cluster import RESTRICTED
from support.lab import START_SECONDS, Lab
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

USER = 1000
TOKEN = "kubernetes.io/serviceaccount"
SECCOMP_FILTER = "2"
EGRESS = ["10.90.0.0/24", "10.92.0.0/16"]
"""The API server of the test cluster, and the address it has for pods."""


def _processes(lab: Lab, pod: Mapping[str, Any]) -> list[Path]:
    """Of Headway in that pod, in /proc: Kubernetes' own one holds the network and does nothing."""
    found = []
    for pid in lab.node_of(pod).pod_pids(pod["metadata"]["uid"]):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"headway" in words:
            found.append(Path(f"/proc/{pid}"))
    assert found, f"nothing runs in {pod['metadata']['name']}"
    return found


def _mounts(process: Path) -> dict[str, set[str]]:
    """Options of each, by its place in the pod."""
    lines = (line.split() for line in (process / "mountinfo").read_text().splitlines())
    return {words[4]: set(words[5].split(",")) for words in lines}


def _status(process: Path) -> dict[str, list[str]]:
    lines = (process / "status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def _require_confined(process: Path) -> None:
    """By what the kernel says."""
    status = _status(process)
    assert set(status["Uid"]) | set(status["Gid"]) == {str(USER)}
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind][0], 16) == 0, kind
    assert status["NoNewPrivs"] == ["1"]
    assert status["Seccomp"] == [SECCOMP_FILTER]
    assert "ro" in _mounts(process)["/"]
    with pytest.raises(OSError, match="Read-only") as refused:
        (process / "root" / "written").touch()
    assert refused.value.errno == errno.EROFS


def _tokens(process: Path) -> list[str]:
    return [place for place in _mounts(process) if TOKEN in place]


@pytest.mark.trap(39)
def test_from_inside(lab: Lab) -> None:
    lab.change_target(egress=EGRESS)
    with lab.typed("run", "--on", "lab", "--nodes", "1") as command:
        wait_for("a worker", lambda: any(lab.training_pids().values()), START_SECONDS)
        assert command.interrupt() == 130, command.output
    api, namespace = lab.cluster.api, lab.namespace
    enforced = api.get(f"/api/v1/namespaces/{namespace}")["metadata"]["labels"]
    assert enforced.items() >= RESTRICTED.items()
    (worker,), (coordinator,) = lab.pods(), lab.pods("coordinator")
    for pod in (worker, coordinator):
        for process in _processes(lab, pod):
            _require_confined(process)
            assert bool(_tokens(process)) == (pod is coordinator), "only it has a token"
    assert "serviceAccountToken" in str(coordinator["spec"]["volumes"])
    assert "serviceAccountToken" not in str(worker["spec"]["volumes"])

    # The network of the test cluster does not enforce policies: this is what is asked for.
    policies = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    policy = api.get(f"{policies}/headway-it")
    own = policy["spec"]["podSelector"]["matchLabels"]
    for pod in (worker, coordinator):
        assert pod["metadata"]["labels"].items() >= own.items(), "it is for all of them"
    from_own = [{"podSelector": {"matchLabels": own}}]
    assert own["app.kubernetes.io/instance"] == "it"
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["ingress"] == [
        {"from": from_own},
        {"ports": [{"protocol": "TCP", "port": 7461}]},
    ]
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    assert policy["spec"]["egress"] == [
        {"to": from_own},
        {"ports": names},
        {"to": [{"ipBlock": {"cidr": cidr}} for cidr in EGRESS]},
    ]
