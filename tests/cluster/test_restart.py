"""Pods whose workers restart together: a machine loses its power, and the others are training again
before it is replaced; also the only machine of a run, ten faults in a row, and models that are
sharded over pods."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from cluster_tool import faults
from support.lab import RUN_FILE, Lab, is_ready
from support.plugs import pull_the_plug
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

RESTART_FILE = f"{RUN_FILE}elastic: restart\n"
NEXT_STEP_SECONDS = 15.0
REPLACED_SECONDS = 45.0
HEALED_SECONDS = 120.0
"""After any fault, with pods that share two cores: these are not timed."""
CHANCE = random.Random(1)


@contextmanager
def restarting(lab: Lab, nodes: int, more: str = "") -> Iterator[Lab]:
    lab.write_run(RESTART_FILE + more)
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


@pytest.mark.long("five minutes; tests/local/test_restart.py has each fault but the lost machine")
def test_ten_faults_in_a_row(lab: Lab) -> None:
    with restarting(lab, 3):
        kinds = [kill_worker, kill_pod, pull_and_put_back, kill_coordinator, delete_pod]
        for number, strike in enumerate([*kinds, *kinds], 1):
            step, began = lab.step(), time.monotonic()
            strike_and_heal(lab, strike)
            took = time.monotonic() - began
            print(f"fault {number}, {strike.__name__} at step {step}: healed after {took:.1f} s")


def strike_and_heal(lab: Lab, strike: Callable[[Lab], None]) -> None:
    before = lab.generation()["generation"]
    strike(lab)
    if strike is not kill_coordinator:  # its loss alone interrupts nobody
        wait_for("a change", lambda: lab.generation()["generation"] > before, HEALED_SECONDS)
    lab.wait_for_workers(3, HEALED_SECONDS)
    newest = lab.generation()["generation"]
    wait_for("a step of all", lambda: lab.first_step_of(newest), HEALED_SECONDS)
    lab.wait_for_step(lab.step() + 3)


def kill_worker(lab: Lab) -> None:
    pids = sorted(pid for pids in lab.training_pids().values() for pid in pids)
    os.kill(CHANCE.choice(pids), signal.SIGKILL)


def kill_pod(lab: Lab) -> None:
    kill_all_of(lab, CHANCE.choice(lab.pods()))


def delete_pod(lab: Lab) -> None:
    name = CHANCE.choice(lab.pods())["metadata"]["name"]
    lab.cluster.api.delete(f"/api/v1/namespaces/{lab.namespace}/pods/{name}")


def pull_and_put_back(lab: Lab) -> None:
    faults.put_back(pull_the_plug(lab, HEALED_SECONDS).node, lab.cluster.api)


def kill_coordinator(lab: Lab) -> None:
    before = restarts_of(lab.pods("coordinator"))
    kill_all_of(lab, lab.pods("coordinator")[0])
    wait_for(
        "another coordinator",
        lambda: restarts_of(pods := lab.pods("coordinator")) != before and any(map(is_ready, pods)),
        HEALED_SECONDS,
    )


def kill_all_of(lab: Lab, pod: Mapping[str, Any]) -> None:
    for pid in lab.node_of(pod).pod_pids(pod["metadata"]["uid"]):
        with suppress(ProcessLookupError):  # it went with another of them
            os.kill(pid, signal.SIGKILL)


def restarts_of(pods: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {
        (pod["metadata"]["uid"], one["restartCount"])
        for pod in pods
        for one in pod["status"].get("containerStatuses", ())
    }


@pytest.mark.long("two minutes each; tests/local has the same shapes on one machine")
@pytest.mark.parametrize("nodes", [2, 4])
def test_sharded_over_two_nodes(lab: Lab, nodes: int) -> None:
    """Whole copies on two pods each have the losses of one process, before and after a machine has
    lost its power."""
    with restarting(lab, nodes, "shard: 2 nodes\n"):
        lost = pull_the_plug(lab, HEALED_SECONDS)
        print(f"next step after {lost.next_step:.2f} s, replaced after {lost.healed:.1f} s")
        lab.wait_for_step(lab.step() + 20)
    lab.require_as_undisturbed("--set", "shard=none", "--set", "elastic=auto")
