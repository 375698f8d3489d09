"""`headway exec` as a user types it: exit code, streams, terminal."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import Exit
from headway.kube.names import INDEX, labels
from support.commands import HEADWAY
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway
from support.in_terminal import InTerminal
from support.waiting import wait_for

CONTAINER = {"name": "worker", "image": "", "imageID": "", "ready": True, "restartCount": 0}
UP = {"phase": "Running", "containerStatuses": [{**CONTAINER, "state": {"running": {}}}]}
IMAGE = f"registry/headway@sha256:{'0' * 64}"
TARGET = f"lab: {{kube: {{namespace: ml}}, image: {IMAGE}}}\n"
EXEC = ("exec", "it", "--on", "lab", "--")


@pytest.fixture
def kube(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    (folder / "targets.yaml").write_text(TARGET)
    with fake_kube(folder) as kube:
        kube.job("it", ready=2)
        metadata = {"name": "it-0-a", "labels": {**labels("it", "worker"), INDEX: "0"}}
        pod = {"metadata": metadata, "spec": {"containers": []}, "status": UP}
        kube.put("/api/v1/namespaces/ml/pods/it-0-a", pod)
        yield kube


def test_in_a_script(kube: FakeKube, folder: Path) -> None:
    command = [*HEADWAY, *EXEC, "sh", "-c", "cat; echo --node >&2; exit 42"]
    done = subprocess.run(command, cwd=folder, input=b"typed", capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (42, b"typed", b"--node\n")


def test_without_input_and_with_a_reader_that_goes_away(kube: FakeKube, folder: Path) -> None:
    words = " ".join([*HEADWAY, *EXEC, "yes"])
    shell = f"set -o pipefail; {words} <&- | head -n 2"
    done = subprocess.run(["bash", "-c", shell], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (141, b"y\ny\n", b"")
    assert kube.exec.processes[0].wait(10) == -signal.SIGPIPE


def test_in_a_terminal(kube: FakeKube, folder: Path) -> None:
    """Keys go to the command as they are: also Ctrl-C, which would end it here."""
    with InTerminal(*EXEC, "cat", "-v", folder=folder, columns=100, lines=30) as terminal:
        terminal.type("typed early\n")
        terminal.wait_for("typed early\r\ntyped early\n")  # echoed, then printed
        wait_for("its size", lambda: kube.exec.sizes == [(100, 30)])
        terminal.type("a\x03b\n")
        terminal.wait_for("a^Cb")
        terminal.resize(120, 40)
        wait_for("its new size", lambda: kube.exec.sizes[-1] == (120, 40))
        kube.exec.is_over.set()
        for process in kube.exec.processes:
            process.terminate()
        assert terminal.end() == 15
    assert kube.exec.asked[0]["tty"] == ["true"]


def test_an_error_leaves_the_terminal_as_it_was(kube: FakeKube, folder: Path) -> None:
    with InTerminal("exec", "other", "--on", "lab", "--", "bash", folder=folder) as terminal:
        assert terminal.end() == Exit.NOT_FOUND
        terminal.wait_for(" to list its runs: headway list --on lab\r\n")


def test_a_run_of_this_machine(headway: Headway, folder: Path) -> None:
    def hinted() -> str:
        said = headway("exec", "it", "--", "sh", "-c", "nvidia-smi -L")
        assert said.exit_code == Exit.BAD_INPUT
        first, second = said.err.splitlines()
        assert first == "error: run it was not launched on a target from this folder"
        return str(second)

    command = "headway exec it --on lab -- sh -c 'nvidia-smi -L'"
    targets = folder / "targets.yaml"
    targets.write_text(TARGET)
    assert hinted() == f"hint: {command}"
    targets.write_text(TARGET + TARGET.replace("lab", "other"))
    assert hinted() == f"hint: known targets: lab, other; for example: {command}"
    targets.unlink()
    assert hinted() == "hint: a run of this machine has no pods: use a shell"
