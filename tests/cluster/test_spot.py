"""Spot machines get only the workers above the minimum, never what the run cannot do without."""

from __future__ import annotations

from typing import Any

import pytest

from headway.kube.names import INDEX
from support.lab import RUN_FILE, SPOT_LABEL, Lab
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def _by_index(lab: Lab) -> dict[int, dict[str, Any]]:
    """Worker pods that have a machine."""
    placed = [pod for pod in lab.pods() if "nodeName" in pod["spec"]]
    return {int(pod["metadata"]["labels"][INDEX]): pod for pod in placed}


@pytest.mark.long("half a minute; what pods ask for is in golden files")
def test_the_fewest_are_never_on_spot_machines(lab: Lab, spot: set[str]) -> None:
    lab.write_run(RUN_FILE + "resources: {nodes: 2..3, spot: above_min}\n")
    # The machine that stays has room for two of them and the coordinator, not for three.
    lab.change_target({"resources": {"cpu": "600m", "memory": "2Gi"}}, spot_label=SPOT_LABEL)
    lab.headway("run", "--on", "lab", "--nodes", "3")
    wait_for("three pods", lambda: len(_by_index(lab)) == 3)
    pods = _by_index(lab)
    on = {index: lab.node_of(pod).name for index, pod in pods.items()}
    assert not {on[0], on[1]} & spot
    assert on[2] in spot, "it may be there, and there is room nowhere else"
    assert lab.node_of(lab.pods("coordinator")[0]).name not in spot

    # Nor are those that replace them.
    before = pods[0]["metadata"]
    path = f"/api/v1/namespaces/{lab.namespace}/pods/{before['name']}"
    lab.cluster.api.delete(path)
    other = wait_for("another", lambda: _other_than(before["uid"], lab))
    assert other is not None
    assert lab.node_of(other).name not in spot


def _other_than(uid: str, lab: Lab) -> dict[str, Any] | None:
    found = _by_index(lab).get(0)
    return None if found is None or found["metadata"]["uid"] == uid else found
