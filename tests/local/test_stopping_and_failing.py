"""What a user sees when a run is stopped, killed, or goes wrong. Real processes, as typed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headway.state.run_directory import RunDirectory
from support.commands import headway, start
from support.live import is_alive, write_run
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

RUN_FILE = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32}}
data:
  train: {sources: [text.txt], tokenizer: {train: {vocab: 400}}}
  sequence_length: 16
batch: {global: 4, micro: 2}
train_for: 100000 steps
precision: fp32
threads: 1
track: []
"""


@pytest.fixture
def folder(tmp_path: Path, text: Path) -> Path:
    return write_run(tmp_path, text, RUN_FILE)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return RunDirectory(folder / "runs" / "it").steps()


def events(folder: Path) -> list[dict[str, Any]]:
    return RunDirectory(folder / "runs" / "it").history()


def workers_of(folder: Path) -> list[int]:
    """Process ids of the workers that are alive, as the launcher has noted them."""
    noted = [event["pid"] for event in events(folder) if event["event"] == "worker"]
    return [pid for pid in noted if is_alive(pid, str(folder / "runs" / "it"))]


def num_starts(folder: Path) -> int:
    return len([event for event in events(folder) if event["event"] == "started"])


@pytest.mark.long(
    "twenty seconds; test_stop_resume_fork_and_delete and test_first_hour.py resume, too"
)
@pytest.mark.trap(23)
def test_ctrl_c_saves_and_the_same_command_resumes(folder: Path) -> None:
    going = start("run", "--nodes", "2", folder=folder)
    wait_for("20 steps", lambda: len(metrics(folder)) >= 20)

    assert "is already running" in headway("run", "--nodes", "2", folder=folder, expect=5).stderr
    assert json.loads(headway("status", "--json", folder=folder).stdout)["state"] == "running"

    going.send_signal(signal.SIGINT)
    output, _ = going.communicate(timeout=180)
    assert going.returncode == 6, output
    assert "run the same command to resume" in output
    stopped_at = len(metrics(folder))
    status = json.loads(headway("status", "--json", folder=folder).stdout)
    assert (status["state"], status["checkpoint_step"]) == ("stopped", stopped_at)
    assert not workers_of(folder)

    refused = headway("run", "--set", "optimizer.lr=1", folder=folder, expect=2)
    assert "optimizer.lr: 0.0003 -> 1.0" in refused.stderr

    going = start("run", "--nodes", "2", folder=folder)
    wait_for("further steps", lambda: len(metrics(folder)) >= stopped_at + 5)
    going.send_signal(signal.SIGTERM)
    output, _ = going.communicate(timeout=180)
    assert going.returncode == 6, output
    assert f"resuming from step {stopped_at}" in output
    steps = [line["step"] for line in metrics(folder)]
    assert steps == list(range(1, len(steps) + 1)), "every step once, in order"


def test_stop_resume_fork_and_delete(folder: Path) -> None:
    """The life of a run by its commands, each in a process of its own."""
    kept = ("--set", "checkpoint.every=20 steps", "--set", "checkpoint.keep.every=20 steps")
    going = start("run", *kept, folder=folder)
    wait_for("30 steps", lambda: len(metrics(folder)) >= 30)
    assert "is still running" in headway("delete", "it", "--yes", folder=folder, expect=5).stderr
    said = headway("stop", folder=folder).stderr
    assert going.wait(timeout=30) == 6
    stopped_at = len(metrics(folder))
    assert f"saved up to step {stopped_at}" in said
    exact = headway("ledger", "verify", folder=folder).stdout
    assert f"exact: {stopped_at} steps consumed {stopped_at * 4} samples" in exact

    other = headway("run", "--set", "train_for=7 steps", folder=folder, expect=2).stderr
    assert "to resume with 100k steps: headway resume it" in other
    short = ("--set", "train_for=40 steps", "--set", "optimizer.lr=1e-3")
    forked = headway("fork", "it@20", "warmer", *short, folder=folder).stderr
    assert "from step 20 of it" in forked
    headway("run", *short, "--set", "name=warmer", folder=folder)
    status = json.loads(headway("status", "warmer", "--json", folder=folder).stdout)
    assert (status["state"], status["step"]) == ("finished", 40)
    verdict = json.loads(headway("ledger", "verify", "warmer", "--json", folder=folder).stdout)
    assert (verdict["breach"], verdict["steps"]) == (None, 20)

    ledger = folder / "runs" / "warmer" / "ledger.jsonl"
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join(lines[:9] + lines[10:]) + "\n")
    broken = headway("ledger", "verify", "warmer", folder=folder, expect=4).stderr
    assert "line 10: step 30 has step 30, expected 29" in broken
    ledger.write_text("\n".join(lines[:9]) + "\n")
    cut = headway("ledger", "verify", "warmer", folder=folder, expect=4).stderr
    assert "its end: step 40 is saved, and the ledger stops at 28" in cut

    headway("delete", "warmer", "--yes", folder=folder)
    assert not (folder / "runs" / "warmer").exists()
    headway("status", "warmer", folder=folder, expect=3)


@pytest.mark.chaos
def test_with_one_node_a_killed_worker_restarts_from_the_checkpoint(folder: Path) -> None:
    going = start("run", "--set", "checkpoint.every=20 steps", folder=folder)
    wait_for("some steps", lambda: len(metrics(folder)) >= 25, seconds=90)
    wait_for("a checkpoint", lambda: any(one["event"] == "saved" for one in events(folder)))
    (victim,) = workers_of(folder)
    os.kill(victim, signal.SIGKILL)
    watch = Stopwatch()
    wait_for("another worker", lambda: workers_of(folder) not in ([], [victim]), seconds=10)
    wait_for("its start", lambda: num_starts(folder) == 2, seconds=10)
    assert watch.seconds < 6
    newest = [event for event in events(folder) if event["event"] == "started"][-1]
    assert newest["resumed_from"] % 20 == 0
    assert newest["resumed_from"] > 0
    reached = len(metrics(folder))
    wait_for("further steps", lambda: len(metrics(folder)) >= reached + 5)
    going.send_signal(signal.SIGINT)
    output, _ = going.communicate(timeout=180)
    assert going.returncode == 6, output
    assert "was killed by SIGKILL" in output
    assert "exact" in headway("ledger", "verify", folder=folder).stdout


@pytest.mark.chaos
def test_a_worker_that_is_killed_repeatedly_ends_the_run(folder: Path) -> None:
    """As when there is too little memory: three times without a new step."""
    (folder / "mine.py").write_text(
        "import os, signal\ndef loss(model, batch):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    own = ("--set", "code.path=.", "--set", 'objective.call="mine:loss"')
    error = headway("run", *own, folder=folder, expect=1).stderr
    assert "was killed by SIGKILL" in error
    assert "3 times in a row without a new step" in error
    assert json.loads(headway("status", "--json", folder=folder).stdout)["state"] == "failed"


@pytest.mark.chaos
def test_workers_do_not_outlive_a_killed_launcher(folder: Path) -> None:
    """And as long as one is alive, nobody else may train in the same folder."""
    going = start("run", folder=folder)
    wait_for("some steps", lambda: len(metrics(folder)) >= 5, seconds=90)
    (worker,) = workers_of(folder)
    os.kill(worker, signal.SIGSTOP)
    going.kill()
    going.wait(timeout=30)
    assert "is already running" in headway("run", folder=folder, expect=5).stderr
    os.kill(worker, signal.SIGCONT)
    wait_for("the worker's end", lambda: not workers_of(folder), seconds=20)
    status = json.loads(headway("status", "--json", folder=folder).stdout)
    assert status["state"] == "stopped"
    assert status["checkpoint_step"] == status["step"] > 0


@pytest.mark.parametrize("elastic", ["live", "restart"])
def test_a_group_that_cannot_form_here_ends_the_run_at_once(
    folder: Path, elastic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the words of its cause, and not as a worker that was lost three times."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    setting = ("--set", f"elastic={elastic}")
    error = headway("run", "--nodes", "2", *setting, folder=folder, expect=1).stderr
    assert "error: the workers cannot form their group: " in error
    assert "Unable to find address for: nosuch0" in error
    assert "was lost" not in error
    assert not [event for event in events(folder) if event["event"] == "lost"]


def test_a_device_that_fails_is_a_loss_and_not_the_end(folder: Path) -> None:
    """Once, in worker 1, by the words of its driver."""
    (folder / "mine.py").write_text(
        "import os, torch\n"
        "from pathlib import Path\n"
        "from headway.train.objectives import token_loss\n"
        f"mark = Path({str(folder / 'failed')!r})\n"
        "def loss(model, batch):\n"
        "    if os.environ['HEADWAY_RANK'] == '1' and not mark.exists():\n"
        "        mark.touch()\n"
        "        raise torch.AcceleratorError('CUDA error: uncorrectable ECC error encountered')\n"
        "    return token_loss(model, batch)\n"
    )
    own = ("--set", "code.path=.", "--set", 'objective.call="mine:loss"')
    headway("run", "--nodes", "2", *own, "--set", "train_for=4 steps", folder=folder)
    (failed,) = [event for event in events(folder) if event["event"] == "device_failed"]
    assert (failed["node"], failed["device_number"]) == (1, 1)
    assert failed["reason"] == "CUDA error: uncorrectable ECC error encountered"
    (lost,) = [event for event in events(folder) if event["event"] == "lost"]
    assert (lost["node"], lost["how"]) == (1, "lost its device")


def test_an_error_in_the_users_code_comes_first(folder: Path) -> None:
    """One worker of three raises; the others only lose a peer, and are not the ones shown. Nor are
    frames of Headway."""
    (folder / "mine.py").write_text(
        "import os\n"
        "from headway.train.objectives import token_loss\n"
        "def loss(model, batch):\n"
        "    if os.environ['HEADWAY_RANK'] == '1':\n"
        "        raise ValueError('the third sample is upside down')\n"
        "    return token_loss(model, batch)\n"
    )
    own = ("--set", "code.path=.", "--set", 'objective.call="mine:loss"')
    done = headway("run", "--nodes", "3", *own, folder=folder, expect=1)
    error = done.stderr[done.stderr.index("error:") :]
    cause = "your code failed in step 1: ValueError: the third sample is upside down"
    where = "  mine.py:5 in loss: raise ValueError('the third sample is upside down')"
    assert error.startswith(f"error: {cause}\n{where}\nworker 1 ended")
    assert "headway check --code" in error
    shown = json.loads(headway("status", "--json", folder=folder).stdout)
    assert f"error: {shown['failure']}\nhint: {shown['failure_hint']}\n" == error
    assert "Traceback" not in error
    assert "Connection closed" not in error
    shown = headway("logs", folder=folder).stdout
    assert "upside down" in shown, "logs shows the worker that failed"


def test_training_that_explodes_stops_with_its_cause(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "import torch\n"
        "from headway import Loss\n"
        "from headway.train.objectives import token_loss\n"
        "def loss(model, batch):\n"
        "    found = token_loss(model, batch)\n"
        "    return Loss(found.sum * float('nan'), found.count)\n"
    )
    own = ("--set", "code.path=.", "--set", 'objective.call="mine:loss"')
    done = headway("run", *own, "--set", "guard.stop_after=3", folder=folder, expect=1)
    assert "3 steps in a row were skipped" in done.stderr
    assert "lower optimizer.lr" in done.stderr
    assert "Traceback" not in done.stderr
    assert [e["step"] for e in events(folder) if e["event"] == "skipped"] == [1, 2, 3]
    assert [line["loss"] for line in metrics(folder)] == [None, None, None], "JSON has no NaN"
