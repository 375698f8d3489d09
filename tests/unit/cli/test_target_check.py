"""`headway target check` at the command line: what it prints, and its exit codes. The pods are for
the test cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.target.check import table
from headway.errors import Exit
from headway.kube.check_lines import NAMES_IN_ORDER, failed, passed, warned
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway

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
    assert "1 failed, 16 not checked" in said.err


def test_a_target_that_is_wrong_is_refused_with_its_line(headway: Headway, kube: FakeKube) -> None:
    said = headway("target", "check", "bare")
    assert said.exit_code == Exit.BAD_INPUT
    assert "targets.yaml:3" in said.err
    assert "bare.storage: it is missing" in said.err
    assert kube.calls == []


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
