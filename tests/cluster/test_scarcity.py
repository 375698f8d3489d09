"""Too few machines: runs that need more than there are give back what they hold, and take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster_tool.cluster import Cluster
from headway.clock import seconds_of
from support.lab import RUN_FILE, Lab
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(540)]

SLOT = "test/slot"
ONLY = "headway-test/only"
GIVE_BACK_SECONDS = 15.0
MORE_SECONDS = 20.0
"""For looks, the API server and the end of pods, on a machine that stalls."""
TURN_SECONDS = 180.0
NODES = "resources: {nodes: 2..3}\n"
SCARCITY = {"give_back_after": f"{GIVE_BACK_SECONDS:.0f}s", "try_again_after": "4s"}


@pytest.fixture
def slots(own_cluster: Cluster) -> Iterator[Callable[[str, int], None]]:
    """Sets how many slots a machine has; a worker's pod takes one."""

    def give(name: str, count: int | None) -> None:
        room = {SLOT: None if count is None else str(count)}
        status = {"status": {"capacity": room, "allocatable": room}}
        own_cluster.api.patch(f"/api/v1/nodes/{name}/status", status)

    try:
        yield give
    finally:
        for node in own_cluster.nodes:
            give(node.name, None)
            _taint(own_cluster, node.name, None)


def _taint(cluster: Cluster, name: str, only: str | None) -> None:
    """Only pods that tolerate it are scheduled there."""
    taints = [{"key": ONLY, "value": only, "effect": "NoSchedule"}] if only else []
    cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": taints}})


def _for(lab: Lab, run: str) -> None:
    """The target, as the launch of this run uses it."""
    toleration = {"key": ONLY, "value": run, "effect": "NoSchedule"}
    resources = {"cpu": "450m", "memory": "2Gi", SLOT: "1"}
    lab.change_target({"resources": resources, "tolerations": [toleration]}, scarcity=SCARCITY)


def _held(lab: Lab, run: str) -> int:
    """Pods of it that have a machine."""
    return sum(
        "nodeName" in pod["spec"] and pod["metadata"]["labels"]["app.kubernetes.io/instance"] == run
        for pod in lab.pods()
    )


def _has_finished(lab: Lab, run: str) -> bool:
    path = f"/apis/batch/v1/namespaces/{lab.namespace}/jobs/headway-{run}"
    conditions = lab.cluster.api.get(path)["status"].get("conditions", ())
    return any(one["type"] == "Complete" and one["status"] == "True" for one in conditions)


def _events(lab: Lab, run: str, kind: str) -> list[dict[str, Any]]:
    return [one for one in lab.directory(run).history() if one["event"] == kind]


class ShortHolders:
    """How long each run holds fewer pods than the two that it needs, without a break."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.since: dict[str, Stopwatch] = {}
        self.longest = 0.0

    def look(self, run: str) -> int:
        held = _held(self.lab, run)
        if not 0 < held < 2:
            self.since.pop(run, None)
            return held
        self.longest = max(self.longest, self.since.setdefault(run, Stopwatch()).seconds)
        return held


@pytest.mark.long("two runs that train one after the other, after both have waited")
def test_two_runs_that_hold_half_each_take_turns(
    lab: Lab, slots: Callable[[str, int], None]
) -> None:
    one, other, _ = (node.name for node in lab.cluster.nodes)
    lab.write_run(RUN_FILE.replace("100000 steps", "60 steps") + NODES)
    holders, watch = ShortHolders(lab), Stopwatch()
    for machine, run in ((one, "first"), (other, "second")):
        slots(machine, 1)
        _taint(lab.cluster, machine, run)
    for run in ("first", "second"):
        _for(lab, run)
        with lab.typed("run", "--on", "lab", "--set", f"name={run}") as command:
            command.wait_for(f"not enough {SLOT}", TURN_SECONDS)
            assert command.interrupt() == 130, command.output

    def each_holds_one() -> bool:
        return all(holders.look(run) == 1 for run in ("first", "second"))

    wait_for("each to hold one", each_holds_one, TURN_SECONDS)
    for machine in (one, other):
        _taint(lab.cluster, machine, None)

    def have_finished() -> bool:
        held = [holders.look(run) for run in ("first", "second")]
        assert sum(held) <= 2
        return all(_has_finished(lab, run) for run in ("first", "second"))

    wait_for("both to finish", have_finished, 2 * TURN_SECONDS)
    assert holders.longest < GIVE_BACK_SECONDS + MORE_SECONDS
    noted = [each for run in ("first", "second") for each in _events(lab, run, "gave_back")]
    assert noted
    most = GIVE_BACK_SECONDS + MORE_SECONDS + watch.lost_seconds
    assert all(each["seconds"] < most for each in noted)
    starts = {run: _events(lab, run, "started")[0]["time"] for run in ("first", "second")}
    ends = {run: _events(lab, run, "finished")[-1]["time"] for run in ("first", "second")}
    early, late = sorted(starts, key=lambda run: starts[run])
    assert seconds_of(ends[early]) < seconds_of(starts[late]), "one after the other"
    for run in ("first", "second"):
        lab.require_exact(run)


@pytest.mark.long("waits until a run in the middle of its training has given its pods back")
def test_a_run_that_lost_a_machine_gives_the_other_back_and_resumes_by_itself(
    lab: Lab, slots: Callable[[str, int], None]
) -> None:
    one, other, _ = (node.name for node in lab.cluster.nodes)
    lab.write_run(RUN_FILE + NODES)
    slots(one, 1)
    slots(other, 1)
    _for(lab, "it")
    lab.headway("run", "--on", "lab")
    lab.wait_for_workers(2)
    lab.wait_for_step(20)
    lost = next(pod for pod in lab.pods() if pod["spec"].get("nodeName") == other)
    slots(other, 0)
    lab.cluster.api.delete(f"/api/v1/namespaces/{lab.namespace}/pods/{lost['metadata']['name']}")
    # As soon as its pods are given back: it tries again after a few seconds.
    wait_for("it to wait", lambda: lab.status()["cluster"]["state"] == "waiting", TURN_SECONDS)
    wait_for("no pod to be left", lambda: lab.pods() == [], TURN_SECONDS)
    saved = lab.step()
    # The next coordinator finds the mark, and does the rest.
    (kept,) = lab.pods("coordinator")
    lab.cluster.api.delete(f"/api/v1/namespaces/{lab.namespace}/pods/{kept['metadata']['name']}")
    slots(other, 1)
    lab.wait_for_step(saved + 20, TURN_SECONDS)
    assert lab.generation()["workers"] == 2
    # A coordinator after that keeps the members of this start.
    (kept,) = lab.pods("coordinator")
    uids = {pod["metadata"]["uid"] for pod in lab.pods()}
    lab.cluster.api.delete(f"/api/v1/namespaces/{lab.namespace}/pods/{kept['metadata']['name']}")
    lab.wait_for_step(lab.step() + 100, TURN_SECONDS)
    assert {pod["metadata"]["uid"] for pod in lab.pods()} >= uids
    assert len(_events(lab, "it", "launched")) == 2
    lab.headway("stop")
    lab.require_exact()
