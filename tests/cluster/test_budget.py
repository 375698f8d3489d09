"""Money on a real cluster: counted by what each machine is, and a run that stops at its budget and
continues when that is raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from cluster_tool.cluster import Cluster
from headway.clock import seconds_of
from headway.errors import HeadwayError
from headway.kube.client import KubeClient
from headway.kube.names import labels
from support.lab import RUN_FILE, SPOT_LABEL, Lab
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(560),
    pytest.mark.long("two launches and a new coordinator; histories of pods are in unit tests"),
]
PRICES = {"on_demand": 36.0, "spot": 18.0}
"""Dollars per hour of a node: a cent a second, or half of one."""
INTERVAL_SECONDS = 20.0
"""Of checkpoints, in RUN_FILE."""
CENT = 0.01
POLLED = 10 * CENT
"""How far a launch of two nodes may be off: polls see their ends two seconds late, and their
machines' labels a poll after their start."""
RBAC = "rbac.authorization.k8s.io"
ROLES, BINDINGS = (f"/apis/{RBAC}/v1/{kind}" for kind in ("clusterroles", "clusterrolebindings"))


@pytest.fixture
def node_rights(own_cluster: Cluster, namespace: str) -> Iterator[None]:
    """As docs/guides/prices-and-budget.md has an administrator give them."""
    api, name = own_cluster.api, f"headway-nodes-{namespace}"
    group = {
        "kind": "Group",
        "name": f"system:serviceaccounts:{namespace}",
        "apiGroup": RBAC,
    }
    role = {"kind": "ClusterRole", "name": name, "apiGroup": RBAC}
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    api.create(ROLES, {"metadata": {"name": name}, "rules": [rule]})
    api.create(BINDINGS, {"metadata": {"name": name}, "roleRef": role, "subjects": [group]})
    try:
        yield
    finally:
        api.delete(f"{BINDINGS}/{name}")
        api.delete(f"{ROLES}/{name}")


class Observer:
    """What Kubernetes says about each pod of a worker, seen by nobody but this test."""

    def __init__(self, lab: Lab) -> None:
        self._kube = KubeClient.from_kubeconfig(None, lab.namespace)
        self._stop = Event()
        self.pods: dict[str, Pod] = {}
        Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        wanted = labels("it", "worker")
        while not self._stop.is_set():
            with suppress(HeadwayError):
                found, version = self._kube.pods(wanted, lambda pod: pod)
                for pod in found:
                    self._note(pod)
                for _, pod in self._kube.watch_pods(wanted, version):
                    self._note(pod)

    def _note(self, pod: Pod) -> None:
        assert pod.metadata is not None
        assert pod.metadata.name is not None
        self.pods[pod.metadata.name] = pod

    def stop(self) -> None:
        self._stop.set()

    def seconds(self, now: float | None = None) -> dict[str, float]:
        """Of all pods on each machine; of those that run until `now`."""
        found: dict[str, float] = {}
        for pod in list(self.pods.values()):
            assert pod.spec is not None
            assert pod.status is not None
            placed = [
                one.lastTransitionTime.timestamp()
                for one in pod.status.conditions or ()
                if one.type == "PodScheduled" and one.status == "True" and one.lastTransitionTime
            ]
            if not placed or pod.spec.nodeName is None:
                continue
            ends = [
                one.state.terminated.finishedAt.timestamp()
                for one in pod.status.containerStatuses or ()
                if one.state and one.state.terminated and one.state.terminated.finishedAt
            ]
            until = max(ends) if ends else now
            assert until is not None, f"{pod.metadata} has not ended"
            machine = pod.spec.nodeName
            found[machine] = found.get(machine, 0.0) + max(0.0, until - placed[0])
        return found

    def usd(self, spot: set[str], now: float | None = None) -> float:
        return sum(
            PRICES["spot" if machine in spot else "on_demand"] * seconds / 3600
            for machine, seconds in self.seconds(now).items()
        )


@pytest.fixture
def observer(lab: Lab) -> Iterator[Observer]:
    found = Observer(lab)
    yield found
    found.stop()


def test_a_run_stops_at_its_budget_and_continues(
    lab: Lab, spot: set[str], node_rights: None, observer: Observer
) -> None:
    lab.write_run(RUN_FILE + "resources: {nodes: 2, spot: all}\n")
    lab.change_target(prices={"cpu": PRICES}, spot_label=SPOT_LABEL)
    lab.headway("run", "--on", "lab")
    lab.wait_for_step(5)
    lab.headway("stop")
    wait_for("the end of its pods", lambda: not lab.pods() and not lab.pods("coordinator"), 180)
    first = _spent(lab)
    assert first["usd"] == pytest.approx(observer.usd(spot), abs=POLLED)
    assert first["usd_per_hour"] == 0
    capacities = {rate["capacity"] for rate in first["rates"]}
    assert "spot" in capacities, "workers are kept from the coordinator's machine"

    # Enough for another start, however slow the machine is, and for some steps.
    budget = round(2.5 * first["usd"] + 20 * CENT, 2)
    lab.headway("run", "--on", "lab", "--set", f"budget.usd={budget}")
    lab.replace_coordinator(120)
    event = wait_for("the budget to be used up", lambda: _budget_event(lab), 420)
    assert event is not None
    assert event["usd"] == budget
    noted = seconds_of(event["time"])
    assert budget <= event["spent_usd"] <= budget + 2 * CENT * INTERVAL_SECONDS
    assert event["spent_usd"] == pytest.approx(observer.usd(spot, noted), abs=2 * POLLED)
    wait_for("the end of its pods", lambda: not lab.pods() and not lab.pods("coordinator"), 180)
    stopped = _spent(lab)
    assert stopped["usd"] == pytest.approx(observer.usd(spot), abs=2 * POLLED)
    shown = lab.headway("status").stdout
    assert "are used up, and a resumed run stops again: raise budget.usd" in shown
    assert f"spent       ${stopped['usd']:.2f} of ${budget:.2f}\n" in shown
    saved = lab.status()["checkpoint_step"]
    assert saved == lab.step() > 5, "no step is lost"

    lab.headway("run", "--on", "lab", "--set", f"budget.usd={budget + 100}")
    lab.wait_for_step(saved + 5)
    lab.headway("stop")
    wait_for("the end of its pods", lambda: not lab.pods() and not lab.pods("coordinator"), 180)
    assert _spent(lab)["usd"] == pytest.approx(observer.usd(spot), abs=3 * POLLED)
    lab.require_exact()


def _spent(lab: Lab) -> dict[str, Any]:
    found: dict[str, Any] = lab.status()["spending"]
    return found


def _budget_event(lab: Lab) -> dict[str, Any] | None:
    found = [one for one in lab.directory().launcher.read()[0] if one["event"] == "budget"]
    return found[0] if found else None
