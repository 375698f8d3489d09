"""Scripts of examples/scripts, which know nothing of Headway: as runs that lose a node, and by
themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.commands import headway
from support.example_scripts import SCRIPTS, Script, processes
from support.live import LiveRun
from support.waiting import wait_for

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]

START_SECONDS, RESTART_SECONDS, END_SECONDS = 240.0, 240.0, 240.0
"""Imports of three processes on two cores; not timed."""
SHORT = {
    "images": (4,),
    "trainer": (40, "--save_steps", "10"),
    "accelerate": (40, "--save-every", "10"),
    "nano": (40, "--save_interval=10"),
}
"""Length and more arguments: the loss comes after the first checkpoint."""


@pytest.mark.long("half a minute each, mostly imports; test_script_run.py loses a node in the gate")
@pytest.mark.chaos
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_loses_a_node_and_finishes_by_its_own_checkpoint(name: str, tmp_path: Path) -> None:
    script = SCRIPTS[name]
    length, *more = SHORT[name]
    code = script.make_run(tmp_path, length, *more)
    output = code / "runs" / name / "output"
    with LiveRun(code, name, 3) as run:

        def has_saved() -> bool:
            assert run.process.poll() is None, run.end()
            return any(output.glob(script.checkpoints))

        wait_for("a checkpoint", has_saved, START_SECONDS)
        before = processes(str(tmp_path))
        assert len(before) == 3
        kill_node(run, 1)
        wait_for(
            "three new processes",
            lambda: len(now := processes(str(tmp_path))) == 3 and not now.keys() & before.keys(),
            RESTART_SECONDS,
        )
        said = run.end(END_SECONDS)
        assert run.process.returncode == 0, said
    assert (output / script.model).exists(), said
    logged = "".join(log.read_text() for log in run.directory.logs())
    assert logged.count(script.resumed) == 1, logged
    assert [event["node"] for event in run.events("lost")] == [1], "the others are not blamed"
    assert "node 1 was killed by SIGKILL" in said
    assert json.loads(headway("status", "--json", folder=code).stdout)["state"] == "finished"
    assert not processes(str(tmp_path))


def kill_node(run: LiveRun, node: int) -> None:
    """Its worker and its script: all that it has, since one launcher plays all nodes."""
    worker = psutil.Process(run.workers()[node, 0])
    for process in (worker, *worker.children()):
        process.kill()


@pytest.mark.long("two minutes, mostly imports")
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_by_itself_and_by_torchrun(script: Script, tmp_path: Path) -> None:
    """It trains to its end on two processes, and then continues where it was, alone."""
    code = script.copy_to(tmp_path)
    output = tmp_path / "output"
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    first = trained([*torchrun, "--nproc-per-node=2", *script.arguments(output, 1)], code)
    assert script.step.search(first), first
    assert script.resumed not in first
    assert (output / script.model).exists(), first
    second = trained([sys.executable, *script.arguments(output, 2)], code)
    assert script.resumed in second


def trained(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
