"""Pods whose workers restart together: a machine loses its power, and the others are training again
before it is replaced; also the only machine of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster_tool import faults
from support.lab import RUN_FILE, Lab
from support.plugs import pull_the_plug
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

RESTART_FILE = f"{RUN_FILE}elastic: restart\n"
NEXT_STEP_SECONDS = 15.0
REPLACED_SECONDS = 45.0


@contextmanager
def restarting(lab: Lab, nodes: int) -> Iterator[Lab]:
    lab.write_run(RESTART_FILE)
    lab.headway("run", "--on", "lab", "--nodes", str(nodes))
    lab.wait_for_workers(nodes)
    lab.wait_for_step(lab.step() + 5)
    yield lab
    lab.headway("stop")
    lab.require_exact()


@pytest.mark.long(
    "a minute and a half; tests/local has restarts, test_losing_nodes.py lost machines"
)
def test_three_pods_of_which_one_loses_power(lab: Lab) -> None:
    with restarting(lab, 3):
        before = {pod["metadata"]["name"]: lab.node_of(pod).name for pod in lab.pods()}
        lost = pull_the_plug(lab)
        after = {pod["metadata"]["name"]: lab.node_of(pod).name for pod in lab.pods()}
        stay = {name for name, machine in before.items() if machine in after.values()}
        assert stay
        assert stay <= set(after), "pods of other machines stay"
    print(f"next step after {lost.next_step:.2f} s, replaced after {lost.healed:.1f} s")
    assert lost.next_step < NEXT_STEP_SECONDS
    assert lost.healed < REPLACED_SECONDS


@pytest.mark.long("half a minute more, and the case is the same but for who notices")
def test_one_node_alone_without_power(lab: Lab) -> None:
    with restarting(lab, 1):
        pod, before = lab.pods()[0], lab.generation()["generation"]
        node = lab.node_of(pod)
        faults.pull_plug(node)
        struck = time.time()
        stepped = wait_for(
            "the next step", lambda: lab.first_step_of(before + 1), 2 * REPLACED_SECONDS
        )
        print(f"next step after {stepped - struck:.2f} s")
        assert stepped - struck < REPLACED_SECONDS
        assert lab.node_of(lab.pods()[0]).name != node.name
