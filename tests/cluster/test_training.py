"""A run on a real Kubernetes of three nodes, as typed: the whole way, and scaled."""

from __future__ import annotations

import re
import subprocess

import pytest

from cluster_tool import faults
from cluster_tool.network import connects
from support.guide_rights import editors_kubeconfig, users_kubeconfig
from support.lab import Lab
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.long("a minute and a half; test_the_whole_way scales, too")
def test_scaled_while_it_trains(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody who may do what the guide says and no more."""
    kubeconfig = users_kubeconfig(lab.cluster, lab.namespace, lab.folder)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    lab.headway("run", "--on", "lab", "--nodes", "2")
    lab.wait_for_workers(2)
    first = lab.training_pids()
    assert [len(pids) for pids in first.values()] == [1, 1]
    for nodes in (3, 1, 2):
        kept = dict(sorted(lab.training_pids().items())[:1])
        lab.headway("scale", "--nodes", str(nodes))
        lab.wait_for_workers(nodes)
        now = lab.training_pids()
        assert all(now[pod] == pids for pod, pids in kept.items()), "never restarted"
    assert lab.status()["state"] == "running"
    assert "step" in lab.headway("logs").stdout
    lab.headway("stop")
    lab.require_exact()
    lab.require_as_undisturbed()
    assert not [event for event in lab.directory().history() if event["event"] == "lost"]
    assert "it" in lab.headway("list", "--on", "lab").stdout
    lab.headway("delete", "it", "--yes")
    wait_for("nothing to be left", lambda: lab.objects() == [], 60)


@pytest.mark.trap(23, 31)
def test_the_whole_way(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody with the ClusterRole `edit`, what `headway target rbac` prints, and no more."""
    monkeypatch.setenv("KUBECONFIG", str(editors_kubeconfig(lab)))
    accounts = _go_the_whole_way(lab)
    assert accounts == {("worker", "headway-worker"), ("coordinator", "headway-coordinator")}


@pytest.mark.long("a minute; test_launch_gate.py is typed with the same rights")
def test_the_whole_way_with_accounts_of_its_own(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody who may do what the guide says and no more."""
    kubeconfig = users_kubeconfig(lab.cluster, lab.namespace, lab.folder)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    accounts = _go_the_whole_way(lab)
    assert accounts == {("worker", "default"), ("coordinator", "headway-my-run")}


def _go_the_whole_way(lab: Lab) -> set[tuple[str, str]]:
    """Where the API server does not reach pods by their addresses. Returns the service accounts of
    the run's pods, by component."""
    faults.cut_api_from_pods()
    (lab.folder / "run.yaml").unlink()
    lab.headway("init", "tiny", "my-run")
    targets = (lab.folder / "targets.yaml").read_text()
    lab.folder = lab.folder / "my-run"
    (lab.folder / "targets.yaml").write_text(targets)
    run_file = lab.folder / "run.yaml"
    lab.headway("data", "prepare", "data/train.txt", "--into", "set", "--train-vocab", "500")
    more = "data: {train: set}\ntrain_for: 90 steps\n"
    run_file.write_text(run_file.read_text() + more)
    lab.headway("run", "--on", "lab", "--nodes", "2")
    assert lab.status()["state"] == "running"
    accounts = {
        (component, pod["spec"]["serviceAccountName"])
        for component in ("worker", "coordinator")
        for pod in lab.pods(component)
    }
    assert pasted_shell(lab, "echo $JOB_COMPLETION_INDEX") in ("0", "1")
    lab.headway("events")
    (coordinator,) = lab.pods("coordinator")
    assert not connects(coordinator["status"]["podIP"], faults.PODS_PORT), "the proxy's way"
    lab.headway("scale", "--nodes", "1")
    assert "saved" in lab.headway("stop").stderr
    stopped_at = lab.status()["step"]
    assert lab.status()["state"] == "stopped"
    lab.headway("resume")
    said = lab.headway("logs", "-f")
    assert "step 90/90" in said.stdout
    assert "the run has ended" in said.stderr
    wait_for("the end", lambda: lab.status()["state"] == "finished", 60)
    assert 0 < stopped_at < lab.status()["step"] == 90
    lab.headway("export", "--into", "exported")
    text = lab.headway("generate", "--prompt", "Once", "--max-tokens", "20").stdout
    assert text.startswith("Once")
    lab.require_exact("my-run")
    lab.headway("delete", "my-run", "--yes")
    wait_for("nothing to be left", lambda: lab.objects() == [], 60)
    return accounts


def pasted_shell(lab: Lab, typed: str) -> str:
    """What a command prints in the shell for which `headway status` has the line."""
    shown = re.compile(r"^shell +(kubectl .*)$", re.MULTILINE)
    wait_for("ready pods", lambda: shown.search(lab.headway("status").stdout), 30)
    (line,) = shown.findall(lab.headway("status").stdout)
    done = subprocess.run(
        line, shell=True, input=typed, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


@pytest.mark.trap(25)
def test_what_cannot_heal_is_given_up_with_its_reason(lab: Lab) -> None:
    targets = lab.folder / "targets.yaml"
    image = lab.cluster.image
    assert image is not None
    targets.write_text(targets.read_text().replace(image, f"localhost/none@sha256:{'0' * 64}"))
    watch = Stopwatch()
    said = lab.headway("run", "--on", "lab", "--nodes", "2", expect=1).stderr
    assert "the image cannot be pulled" in said
    assert watch.seconds < 60
    wait_for("nothing to be left", lambda: lab.objects() == [], 30)
