"""Nodes lose power, are reclaimed or cut off, and the run loses no sample."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster_tool import faults
from support.lab import Lab
from support.plugs import away_from_the_coordinator, pull_the_plug
from support.stolen_time import Deadline
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NEXT_STEP_SECONDS = 5.0
HEALED_SECONDS = 45.0
LEFT_SECONDS = 90.0
MOVED_SECONDS = 20.0
LATE_SECONDS = 10.0
NOTICE_SECONDS = 15.0
CUT_SECONDS = 60.0
"""Longer than Kubernetes takes to notice, so that it acts as well."""
AWAY_SECONDS = 10.0


@contextmanager
def running(lab: Lab, nodes: int = 3) -> Iterator[Lab]:
    lab.headway("run", "--on", "lab", "--nodes", str(nodes))
    lab.wait_for_workers(nodes)
    lab.wait_for_step(lab.step() + 5)
    yield lab
    lab.headway("stop")
    lab.require_exact()


def test_without_power(lab: Lab) -> None:
    """Once; `make bench-plugs` repeats it."""
    with running(lab):
        lost = pull_the_plug(lab)
        print(f"next step after {lost.next_step:.2f} s, healed after {lost.healed:.1f} s")
        assert lost.next_step < NEXT_STEP_SECONDS
        assert lost.healed < HEALED_SECONDS
        assert lost.astray == {}
        (marker,) = lab.markers()
        assert marker["spec"]["nodeName"] == lost.node.name
    assert lab.markers() == [], "the run has stopped"


@pytest.mark.long("waits for Kubernetes; the gate moves the coordinator")
def test_the_coordinators_machine_without_power(lab: Lab) -> None:
    with running(lab, nodes=2):
        node = lab.node_of(lab.pods("coordinator")[0])
        assert node.name not in lab.machines_of_workers(), "they are kept apart if there is room"
        before = lab.generation()
        faults.pull_plug(node)
        deadline = Deadline(LEFT_SECONDS)
        while not lab.is_kept(elsewhere_than=node.name):
            lab.require_steps(2.0)
            assert not deadline.has_passed, "no other coordinator"
        assert lab.generation() == before, "nobody in the training has noticed"
        faults.put_back(node, lab.cluster.api)


@pytest.mark.long("waits a minute for Kubernetes; the gate loses a worker's machine")
def test_a_worker_and_the_coordinator_without_power(lab: Lab) -> None:
    with running(lab, nodes=2):
        # They are kept apart while there is room.
        apart = lab.node_of(lab.pods("coordinator")[0])
        faults.cordon(apart, lab.cluster.api)
        lab.replace_coordinator(MOVED_SECONDS)
        faults.uncordon(apart, lab.cluster.api)
        node = lab.node_of(lab.pods("coordinator")[0])
        assert node.name in lab.machines_of_workers()
        faults.pull_plug(node)
        lab.wait_for_workers(1, LEFT_SECONDS)
        lab.wait_for_workers(2, LEFT_SECONDS)


@pytest.mark.trap(24)
def test_the_coordinator_is_told_to_move(lab: Lab) -> None:
    """By a drain, or because Kubernetes has doubts about its node. The second move is as quick as
    the first: a Job that counted them would wait for 10 and 20 s. Workers that cannot find it for a
    while, because its name resolves late, keep training and stay in the run."""
    with running(lab, nodes=2):
        for _ in range(2):
            lab.replace_coordinator(MOVED_SECONDS)
        faults.slow_dns(lab.cluster.dns, LATE_SECONDS)
        lab.replace_coordinator(MOVED_SECONDS)
        lab.require_steps(1.5 * LATE_SECONDS)
        faults.quick_dns(lab.cluster.dns)
        lab.headway("scale", "--nodes", "3")
        lab.wait_for_workers(3)
        starts = [one for one in lab.directory().history() if one["event"] == "started"]
        assert len(starts) == 1, "the others have kept what they had"


@pytest.mark.long(
    "half a minute; a worker that is asked to leave is in local/test_losing_workers.py"
)
@pytest.mark.trap(33)
def test_taken_back_with_notice(lab: Lab) -> None:
    with running(lab, nodes=2):
        victim = away_from_the_coordinator(lab)
        faults.reclaim(lab.node_of(victim), lab.cluster.api, NOTICE_SECONDS)
        lab.wait_for_workers(2, 2 * HEALED_SECONDS)
        changes = [one for one in lab.directory().history() if one["event"] == "changed"]
        assert not any(change["discarded"] for change in changes)


@pytest.mark.long("waits a minute while a machine is cut off; the gate pulls its plug")
def test_cut_off_and_mended(lab: Lab) -> None:
    with running(lab, nodes=2):
        victim = away_from_the_coordinator(lab)
        node, before = lab.node_of(victim), lab.step()
        faults.cut_network(node)
        lab.wait_for_step(before + 5, 2 * NEXT_STEP_SECONDS)
        lab.require_steps(CUT_SECONDS)
        faults.mend_network(node)
        lab.wait_for_workers(2, 2 * HEALED_SECONDS)
        assert not [one for one in lab.directory().history() if one["event"] == "diverged"]


@pytest.mark.long("two minutes, most of them the API server's; the keeper's part is in unit tests")
def test_a_worker_lost_while_the_api_server_is_away(lab: Lab) -> None:
    """Training does not notice that it is away until a worker is lost. Then it waits: a generation
    is written down before it begins. It resumes by itself when the API server is back."""
    with running(lab, nodes=2):
        before = lab.generation()
        victim = min(min(pids) for pids in lab.training_pids().values())
        faults.stop_api(lab.cluster.control_plane)
        lab.require_steps(AWAY_SECONDS)
        os.kill(victim, signal.SIGKILL)
        time.sleep(NEXT_STEP_SECONDS)
        reached = lab.step()
        time.sleep(NEXT_STEP_SECONDS)
        assert (lab.step(), lab.generation()) == (reached, before)
        faults.start_api(lab.cluster.control_plane, lab.cluster.api)
        lab.wait_for_step(reached + 5, HEALED_SECONDS)
        lab.wait_for_workers(2, HEALED_SECONDS)
        assert lab.generation()["generation"] > before["generation"]


@pytest.mark.trap(30)
def test_all_pods_lost_at_once(lab: Lab) -> None:
    with running(lab, nodes=2):
        saves = [one for one in lab.directory().history() if one["event"] == "saved"]
        wait_for("a save", lambda: saves or lab.directory().history()[-1]["event"] == "saved", 60)
        for pod in lab.pods():
            for pid in lab.node_of(pod).pod_pids(pod["metadata"]["uid"]):
                os.kill(pid, 9)
        starts = len([one for one in lab.directory().history() if one["event"] == "started"])
        wait_for(
            "another start",
            lambda: (
                len([one for one in lab.directory().history() if one["event"] == "started"])
                > starts
            ),
            2 * LEFT_SECONDS,
        )
        lab.wait_for_step(lab.step() + 5)
