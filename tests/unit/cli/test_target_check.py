"""`headway target check` at the command line: what it prints, its exit codes, and that nothing is
left of it. What pods do is for the test cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headway.cli.target.check import table
from headway.cli.target.trial import STEPS, run_line
from headway.clock import SystemClock
from headway.errors import Exit
from headway.kube.check_lines import (
    ASKED,
    COORDINATOR_RIGHTS,
    LOGIN,
    NAMES_IN_ORDER,
    QUOTA,
    RUN,
    YOUR_RIGHTS,
    failed,
    passed,
    warned,
)
from headway.kube.check_objects import FACTS
from headway.kube.names import INSTANCE, Component, labels
from headway.launch.target_facts import TargetFacts
from headway.state.run_directory import RunDirectory
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway, Said

JOBS = "/apis/batch/v1/namespaces/ml/jobs"
IMAGE = f"registry/headway@sha256:{'0' * 64}"
POD = "pod: {resources: {cpu: 2, memory: 4Gi}}"
PATCH = """'{"spec": {"hard": {"pods": "3"}}}'"""
COMMAND = f"kubectl patch resourcequota small -n ml --type merge -p {PATCH}"
TARGETS = f"""
lab: {{kube: {{namespace: ml}}, image: {IMAGE}, storage: {{claim: shared}}, {POD}}}
bare: {{kube: {{namespace: ml}}, image: {IMAGE}, {POD}}}
"""


@pytest.fixture
def kube(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "targets.yaml").write_text(TARGETS)
    with fake_kube(folder) as kube:
        yield kube


def test_an_api_server_that_is_away_is_the_finding(headway: Headway, kube: FakeKube) -> None:
    kube.is_away = True
    said = headway("target", "check", "lab", "--json")
    assert said.exit_code == Exit.CHECK_FAILED
    lines = json.loads(said.out)["lines"]
    assert tuple(line["name"] for line in lines) == NAMES_IN_ORDER
    login, *others = lines
    assert login["outcome"] == "failed"
    assert "the API server does not answer" in login["evidence"]
    assert {line["outcome"] for line in others} == {"not checked"}


def test_a_login_that_has_expired_is_the_finding(headway: Headway, kube: FakeKube) -> None:
    kube.refusing["GET /version"] = [(401, "Unauthorized")]
    said = headway("target", "check", "lab")
    assert said.exit_code == Exit.CHECK_FAILED
    assert "FAILED       login" in said.out
    assert "you are not logged in to the cluster" in " ".join(said.out.split())
    assert "  fix: log in again, and check with:\n       kubectl get pods\n" in said.out
    assert "error: runs will not work on lab as it is" in said.err
    assert "1 failed, 10 not checked" in said.err


def test_a_target_that_is_wrong_is_refused_with_its_line(headway: Headway, kube: FakeKube) -> None:
    said = headway("target", "check", "bare")
    assert said.exit_code == Exit.BAD_INPUT
    assert "targets.yaml:3" in said.err
    assert "bare.storage: it is missing" in said.err
    assert kube.calls == []


def lines_of(said: Said) -> dict[str, dict[str, Any]]:
    found = {line["name"]: line for line in json.loads(said.out)["lines"]}
    assert tuple(found) == NAMES_IN_ORDER
    return found


def test_nothing_is_made_where_a_run_could_not_work(headway: Headway, kube: FakeKube) -> None:
    kube.reviews.rules, kube.reviews.is_incomplete = [], True
    kube.failing = {"GET /api/v1/namespaces/ml/resourcequotas": 1000}
    said = headway("target", "check", "lab", "--json")
    assert said.exit_code == Exit.CHECK_FAILED
    lines = lines_of(said)
    assert lines[YOUR_RIGHTS]["outcome"] == "failed"
    # As many rights as it takes are asked for, unlike before a launch.
    for right in ("create jobs.batch", "create rolebindings.rbac", "delete pods"):
        assert right in lines[YOUR_RIGHTS]["evidence"]
    assert "etcd is busy" in lines[LOGIN]["evidence"]
    assert lines[QUOTA]["outcome"] == "passed"
    others = [line for name, line in lines.items() if name not in ASKED]
    assert {line["outcome"] for line in others} == {"not checked"}
    assert {line["evidence"] for line in others} == {"first: login"}
    assert kube.objects == {}


TIME = "2026-11-19T10:00:{:02d}.000Z"


def recorded(num_steps: int = STEPS, workers: int = 2, **more: Any) -> tuple[list[Any], list[Any]]:
    """Events and steps of a run."""
    started = {
        "event": "started",
        "time": TIME.format(9),
        "generation": 1,
        "workers": workers,
        "device": "cpu",
        "versions": {"torch": "2.15.0"},
    }
    events = [{"event": "launched", "time": TIME.format(0), "generation": 1}, started]
    steps = [
        {"step": one + 1, "time": TIME.format(10), "generation": 1} for one in range(num_steps)
    ]
    return [*events, *more.values()], steps


class Cluster:
    """Beside the fake API server: as soon as the run is launched it has finished."""

    def __init__(self, kube: FakeKube, claim: Path, facts: TargetFacts) -> None:
        self._claim, self._facts, self._kube = claim, facts, kube
        self._rest = kube.answer
        kube.answer = self.answer  # type: ignore[method-assign]
        kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}

    def answer(self, method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
        answered = self._rest(method, where, content, headers)
        if (method, where.partition("?")[0]) == ("POST", JOBS):
            metadata = json.loads(content)["metadata"]
            if not metadata["name"].endswith("-timer"):
                self._train(metadata["labels"][INSTANCE])
        return answered

    def _train(self, run: str) -> None:
        directory = RunDirectory.create(self._claim / "runs" / run, SystemClock())
        (launched, started), steps = recorded()
        directory.launcher.append(launched)
        directory.events.append(started)
        directory.metrics.append(*steps)
        ended = {"terminated": {"exitCode": 0, "message": json.dumps(asdict(self._facts))}}
        container = {"image": "it", "imageID": "", "ready": False, "restartCount": 0}
        facts = [{**container, "name": FACTS, "state": ended}]
        self._put(run, "coordinator", 0, {"initContainerStatuses": facts})
        for number in range(2):
            self._put(run, "worker", number, {})

    def _put(self, run: str, component: Component, number: int, status: dict[str, Any]) -> None:
        name = f"{component}-{number}"
        pod = {
            "metadata": {"name": name, "labels": labels(run, component)},
            "spec": {"containers": [], "nodeName": f"node{number}"},
            "status": {"phase": "Succeeded", **status},
        }
        self._kube.put(f"/api/v1/namespaces/ml/pods/{name}", pod)


def test_a_run_that_finishes_and_what_its_coordinator_found(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    Cluster(kube, folder / "claim", TargetFacts([1], None, None, False, None, None))
    lines = lines_of(headway("target", "check", "lab", "--json"))
    rights = lines.pop(COORDINATOR_RIGHTS)
    assert rights["outcome"] == "failed"
    assert rights["evidence"].startswith("it is not allowed to ")
    assert {line["outcome"] for line in lines.values()} == {"passed"}, lines
    assert lines[RUN]["evidence"].startswith("2 workers on node0 and node1 took 20 steps on cpu")
    assert kube.objects == {}
    assert [path for path in (folder / "claim").rglob("*") if path.is_file()] == []


def test_all_that_was_made_is_deleted(headway: Headway, kube: FakeKube, folder: Path) -> None:
    """A Job that is over, and a run that nobody has started."""
    kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}
    said = headway("target", "check", "lab", "--json")
    lines = lines_of(said)
    assert {lines[name]["outcome"] for name in ASKED} == {"passed"}
    assert lines[RUN]["outcome"] == "failed"
    assert "no run at claim://lab/runs/check-" in lines[RUN]["evidence"]
    assert kube.calls.count(f"POST {JOBS}") == 2, "the run, and its end"
    assert "uploaded data.train to claim://lab/sets/" in said.err
    assert kube.objects == {}
    assert [path for path in (folder / "claim").rglob("*") if path.is_file()] == []
    assert not (folder / "prepared").exists()


def test_the_time_is_over(headway: Headway, kube: FakeKube) -> None:
    said = headway("target", "check", "lab", "--json", "--wait", "1s")
    run = lines_of(said)[RUN]
    assert run["evidence"].startswith("after 1 s: 0 of 2 pods are ready")
    assert "headway target check lab --wait 15min" in run["fix"]
    assert kube.objects == {}


def test_what_a_run_has_recorded() -> None:
    good = run_line(*recorded(), 2, ["node1", "node2"])
    assert good == passed(
        RUN,
        "2 workers on node1 and node2 took 20 steps on cpu, the first after 10 s (torch 2.15.0)",
    )
    assert run_line(*recorded(), 2, ["node1"]).outcome == "warned"
    assert run_line(*recorded(workers=1), 2, ["node1", "node2"]).outcome == "failed"
    short = run_line(*recorded(num_steps=3), 2, ["node1", "node2"])
    assert (short.outcome, short.evidence) == ("failed", "it ended after 3 of 20 steps")
    lost = {"event": "lost", "time": TIME.format(11), "node": 1, "local_rank": 0, "how": "died"}
    odd = run_line(*recorded(lost=lost), 2, ["node1", "node2"])
    assert (odd.outcome, odd.evidence.endswith("; node 1 died")) == ("warned", True)


@pytest.mark.parametrize("wait", ["soon", "10 steps"])
def test_a_wait_is_a_time(headway: Headway, kube: FakeKube, wait: str) -> None:
    said = headway("target", "check", "lab", "--wait", wait)
    assert said.exit_code == Exit.BAD_INPUT
    assert "--wait" in said.err


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    lines = [
        passed("login", "Kubernetes 1.34.4, as me"),
        warned("worker to coordinator", "word " * 30, "a short hint"),
        failed("quota", "none", f"pod: smaller; or an administrator: {COMMAND}; or {'less ' * 20}"),
    ]
    shown = "\n".join(table(lines, 80)).split("\n")
    assert all(len(line) < 80 for line in shown if COMMAND not in line)
    assert shown[0] == "passed       login                  Kubernetes 1.34.4, as me"
    assert "  fix: a short hint" in shown
    # To be pasted as it is, however long.
    at = shown.index(f"       {COMMAND}")
    assert shown[at - 2 : at] == ["  fix: pod: smaller", "       or an administrator:"]
    assert shown[at + 1].startswith("       or less less")
