"""`headway run --on` says what it waits for, and does not wait for what will never come."""

from __future__ import annotations

import pytest

from support.commands import Typed
from support.guide_rights import users_kubeconfig
from support.lab import Lab
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SAID_SECONDS = 60.0
GIVEN_UP_SECONDS = 30.0
TOO_OFTEN_SECONDS = 200.0


def _leave(lab: Lab, command: Typed) -> None:
    """Ctrl-C stops the command; the run stays until the user deletes it."""
    assert command.interrupt() == 130, command.output
    assert "no longer waiting; run it continues on lab" in command.output
    assert "headway stop" in command.output
    assert "jobs/headway-it" in lab.objects()


def _take_away(lab: Lab) -> None:
    lab.headway("stop")
    lab.headway("delete", "it", "--yes")
    wait_for("nothing to be left", lambda: lab.objects() == [], 30)
    assert not (lab.shared / "runs" / "it").exists()


@pytest.mark.trap(3, 20)
def test_no_machine_has_so_much(lab: Lab) -> None:
    lab.change_target({"resources": {"cpu": "64", "memory": "2Gi"}})
    with lab.typed("run", "--on", "lab", "--nodes", "2") as command:
        command.wait_for("worker: no capacity: not enough cpu (", SAID_SECONDS)
        _leave(lab, command)
    status = lab.status()
    assert any("not enough cpu" in str(reason) for reason in status["waiting"]), status
    _take_away(lab)


@pytest.mark.long("fifteen seconds each; the gate has a machine that is too small")
@pytest.mark.trap(20)
def test_a_quota_that_is_used_up(lab: Lab) -> None:
    # Enough for the run, but somebody else has a part of it. What is left is enough for the pod
    # that serves the claim, and for the coordinator.
    lab.make_quota("team", cpu="1200m", held="300m")
    lab.change_target({"resources": {"cpu": "600m", "memory": "2Gi"}})
    with lab.typed("run", "--on", "lab", "--nodes", "1") as command:
        command.wait_for("quota team of namespace", SAID_SECONDS)
        command.wait_for("worker: quota team is exceeded: ", SAID_SECONDS)
        assert "requests.cpu=600m" in command.output
        _leave(lab, command)
    _take_away(lab)


@pytest.mark.long("fifteen seconds each; the gate has a machine that is too small")
@pytest.mark.trap(20)
def test_pods_that_policy_rejects(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the workers only: an RDMA device comes with a capability that the namespace forbids. Who
    may not create pods is not told before the launch."""
    kubeconfig = users_kubeconfig(lab.cluster, lab.namespace, lab.folder)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    resources = {"cpu": "450m", "memory": "2Gi", "rdma/hca": "1"}
    lab.change_target({"resources": resources}, security="baseline")
    with lab.typed("run", "--on", "lab", "--nodes", "2") as command:
        command.wait_for("worker: rejected by policy: ", SAID_SECONDS)
        watch = Stopwatch()
        assert command.end(GIVEN_UP_SECONDS) == 1, command.output
        assert watch.seconds < GIVEN_UP_SECONDS
    assert "violates PodSecurity" in command.output
    assert "IPC_LOCK" in command.output
    # The Job tries another pod each second: it is not said each time.
    assert 'pods "headway-it' not in command.output
    wait_for("nothing to be left", lambda: lab.objects() == [], 10)


@pytest.mark.long("waits for two minutes until bad luck is ruled out")
@pytest.mark.timeout(300)
def test_pods_that_are_always_out_of_memory(lab: Lab) -> None:
    """For two minutes it may be bad luck; then the run is marked failed."""
    lab.change_target({"resources": {"cpu": "450m", "memory": "160Mi"}})
    with lab.typed("run", "--on", "lab", "--nodes", "1", "--anyway") as command:
        command.wait_for(" (out of memory)", SAID_SECONDS)
        assert "node 0 was lost: its pod ended with exit code " in command.output
        assert command.end(TOO_OFTEN_SECONDS) == 1, command.output
    assert "times in a row without a new step" in command.output
    wait_for("nothing to be left", lambda: lab.objects() == [], 30)


@pytest.mark.trap(20)
def test_a_pod_for_the_claim_that_policy_rejects(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pods of the run have the volume, so the first of them does not start either."""
    kubeconfig = users_kubeconfig(lab.cluster, lab.namespace, lab.folder)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    added = {
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        "mounts": [{"name": "host", "mountPath": "/host"}],
    }
    lab.change_target(added, security="baseline")
    watch = Stopwatch()
    said = lab.headway("run", "--on", "lab", "--nodes", "2", expect=1).stderr
    assert watch.seconds < GIVEN_UP_SECONDS
    assert "rejected by policy" in said
    assert "hostPath" in said
    wait_for("nothing to be left", lambda: lab.objects() == [], 10)
