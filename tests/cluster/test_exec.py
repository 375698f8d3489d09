"""`headway exec` in pods of a real Kubernetes, with the rights that the first guide gives."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from cluster_tool.cluster import Cluster
from headway.errors import Exit
from headway.kube.names import INDEX, labels, run_object
from support.commands import HEADWAY
from support.guide_rights import users_kubeconfig
from support.in_terminal import InTerminal
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

EXEC = ("exec", "it", "--node", "1", "--on", "lab", "--")
NUM_BYTES = 3_000_000
HEEDS_CTRL_C = 'trap "echo inter""rupted; exit" INT; echo be""gun; sleep 600 & wait'
"""What it prints is not what is typed, which a terminal shows, too."""


@pytest.fixture
def folder(
    own_cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """With a target, on which a run has two pods that only sleep."""
    assert own_cluster.image
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "worker",
        "image": own_cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", 'trap "exit 0" TERM; sleep 600 & wait'],
        "securityContext": restricted,
    }
    spec = {
        "containers": [{**container, "name": "beside"}, container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    of_run = labels("it", "worker")
    job = {
        "metadata": {"name": run_object("it"), "labels": of_run},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": 2,
            "completions": 2,
            "template": {"metadata": {"labels": of_run}, "spec": spec},
        },
    }
    own_cluster.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job)
    target = {"kube": {"namespace": namespace}, "image": own_cluster.image}
    (tmp_path / "targets.yaml").write_text(yaml.safe_dump({"lab": target}))
    pods = f"/api/v1/namespaces/{namespace}/pods"

    def is_up() -> bool:
        found = own_cluster.api.items(pods, labelSelector=f"{INDEX}=1")
        return bool(found) and found[0]["status"]["phase"] == "Running"

    wait_for("the pod of node 1", is_up, 90)
    kubeconfig = users_kubeconfig(own_cluster, namespace, tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return tmp_path


def executed(folder: Path, *command: str, typed: bytes = b"") -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        [*HEADWAY, *EXEC, *command], cwd=folder, input=typed, capture_output=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_command_in_the_pod_of_a_node(folder: Path) -> None:
    words = "echo $JOB_COMPLETION_INDEX; echo no terminal >&2; exit 42"
    wait_for("its rights", lambda: executed(folder, "true")[0] == 0, 30)
    assert executed(folder, "sh", "-c", words) == (42, b"1\n", b"no terminal\n")
    content = os.urandom(NUM_BYTES)
    assert executed(folder, "cat", typed=content) == (0, content, b"")
    code, _, said = executed(folder, "no-such-command")
    assert (code, b"no-such-command" in said) == (Exit.BAD_INPUT, True), said


@pytest.mark.long("tests/unit/cli/test_exec.py has the terminal on this side, too")
def test_a_shell_in_a_terminal(folder: Path) -> None:
    wait_for("its rights", lambda: executed(folder, "true")[0] == 0, 30)
    with InTerminal(*EXEC, "sh", folder=folder, columns=100, lines=30) as terminal:
        terminal.type("stty size; tty\n")
        terminal.wait_for("30 100")
        terminal.wait_for("/dev/pts/")
        terminal.resize(120, 40)
        # Ctrl-C ends what runs there, and not what runs here.
        terminal.type(f"sh -c '{HEEDS_CTRL_C}'\n")
        terminal.wait_for("begun")
        terminal.type("\x03")
        terminal.wait_for("interrupted")
        terminal.type("stty size; exit 9\n")
        terminal.wait_for("40 120")
        assert terminal.end() == 9
