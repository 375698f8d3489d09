"""A run with a standby coordinator: it loses the coordinator's machine and a worker's at once, and
trains on within seconds."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from cluster_tool import faults
from support.lab import Lab, lease_holder
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

START_SECONDS = 400.0
NEXT_STEP_SECONDS = 10.0
STANDBY_SECONDS = 120.0
GONE_SECONDS = 60.0
MOVED_SECONDS = 20.0
AWAY_SECONDS = 10.0


def start(lab: Lab, nodes: int) -> None:
    lab.change_target(coordinator={**lab.target()["coordinator"], "standby": True})
    lab.headway("run", "--on", "lab", "--nodes", str(nodes), seconds=START_SECONDS)
    lab.wait_for_workers(nodes, START_SECONDS)
    wait_for("a standby", lab.standby, STANDBY_SECONDS)
    lab.wait_for_step(lab.step() + 5, START_SECONDS)


def standby_beside_a_worker(lab: Lab) -> dict[str, Any]:
    """The scheduler keeps workers off both coordinators as long as there is room elsewhere: of
    three, one is beside one of them."""
    standby = lab.standby()
    assert standby is not None
    if lab.node_of(standby).name in lab.machines_of_workers():
        return standby
    before = lab.coordinator()
    for pid in lab.node_of(before).pod_pids(before["metadata"]["uid"]):
        os.kill(pid, signal.SIGKILL)
    wait_for(
        "the other to act",
        lambda: lease_holder(lab) == standby["metadata"]["name"] and lab.standby(),
        STANDBY_SECONDS,
    )
    return before


@pytest.mark.long("two machines of three are without power for a minute")
def test_the_coordinators_machine_and_a_workers_without_power(lab: Lab) -> None:
    start(lab, nodes=3)
    standby = standby_beside_a_worker(lab)
    keeper, spared = lab.node_of(lab.coordinator()), lab.node_of(standby)
    assert keeper.name != spared.name
    (other,) = [node for node in lab.cluster.nodes if node.name not in (keeper.name, spared.name)]
    assert {spared.name, other.name} <= lab.machines_of_workers()
    before = lab.generation()["generation"]
    for node in (keeper, other):
        faults.pull_plug(node)
    watch, struck = Stopwatch(), time.time()
    stepped = wait_for("the next step", lambda: lab.first_step_of(before + 1), 120.0)
    next_step = stepped - struck - watch.lost_seconds
    print(f"next step after {next_step:.2f} s")
    assert next_step < NEXT_STEP_SECONDS
    assert lease_holder(lab) == standby["metadata"]["name"]
    assert lab.status()["step"] > 0, "it finds the one that acts"
    for node in (keeper, other):
        faults.put_back(node, lab.cluster.api)
    lab.wait_for_workers(3, STANDBY_SECONDS)
    wait_for("another standby", lab.standby, STANDBY_SECONDS)
    lab.headway("stop")
    lab.require_exact()


def acquired_at(lab: Lab) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{lab.namespace}/leases/headway-it-coordinator"
    found: str = lab.cluster.api.get(path)["spec"]["acquireTime"]
    return found


def acts_later_than(lab: Lab, time_: str) -> bool:
    return acquired_at(lab) > time_ and bool(lab.standby())


@pytest.mark.long("what a standby does when nothing is lost; half a minute of waits")
def test_it_moves_and_ends_as_one(lab: Lab) -> None:
    """A coordinator that is told to go is followed at once, training does not notice that the API
    server is away, and a stop ends both."""
    start(lab, nodes=2)
    generation, first = lab.generation(), lease_holder(lab)
    lab.replace_coordinator(MOVED_SECONDS)
    wait_for("another holder", lambda: lease_holder(lab) not in ("", first), MOVED_SECONDS)
    lab.require_steps(5.0)
    wait_for("a standby", lab.standby, STANDBY_SECONDS)
    before = acquired_at(lab)
    faults.stop_api(lab.cluster.control_plane)
    lab.require_steps(AWAY_SECONDS)
    faults.start_api(lab.cluster.control_plane, lab.cluster.api)
    wait_for("one that acts", lambda: acts_later_than(lab, before), GONE_SECONDS)
    lab.require_steps(5.0)
    assert lab.status()["state"] == "running"
    assert lab.generation() == generation, "nobody in the training has noticed"
    lab.headway("stop")
    wait_for("the end of both", lambda: not lab.pods("coordinator"), GONE_SECONDS)
    lab.headway("resume")
    lab.wait_for_workers(2, STANDBY_SECONDS)
    wait_for("a standby", lab.standby, STANDBY_SECONDS)
    lab.headway("stop")
    lab.require_exact()
    lab.headway("delete", "it", "--yes")
    wait_for("nothing in the namespace", lambda: lab.objects() == [], GONE_SECONDS)
