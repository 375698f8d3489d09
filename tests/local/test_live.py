"""A lost machine is a pause: real runs of several workers, as typed, with some of them killed,
stopped, sent away and added."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from support.commands import headway
from support.live import LiveRun
from support.waiting import wait_for

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(300)]

RUN_FILE = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32}}
data:
  train: {sources: [text.txt], tokenizer: {train: {vocab: 400}}}
  sequence_length: 16
batch: {global: 14, micro: 2}
train_for: 100000 steps
precision: fp32
schedule: {type: constant, warmup: 5 steps}
threads: 1
seed: 3
track: []
evaluation: {every: 1000000 steps}
"""
TOLERANCE = 1e-5
RECOVER_SECONDS = 4.0
"""Of a target of 3 s and a step, on a machine where others work as well."""


@pytest.fixture
def folder(tmp_path: Path, text: Path) -> Path:
    (tmp_path / "text.txt").write_text((text / "train.txt").read_text())
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    return tmp_path


def undisturbed(folder: Path, steps: int) -> list[float]:
    options = ("--set", "name=alone", "--set", f"train_for={steps} steps")
    with LiveRun(folder, "alone", 1, *options) as alone:
        alone.end(120)
        return alone.losses()


def test_killed_workers_are_replaced_and_nothing_is_lost(folder: Path) -> None:
    """Any of them, the leader among them, two at once; the others are never restarted."""
    with LiveRun(folder, "it", 3) as run:
        run.wait_for_step(20)
        first = run.workers()
        for victims in ([(1, 0)], [(0, 0)], [(1, 0), (2, 0)]):
            before, kept = run.step, {p: w for p, w in run.workers().items() if p not in victims}
            run.kill(*victims)
            run.wait_for_step(before + 3, RECOVER_SECONDS)
            run.wait_for_members(3)
            assert kept.items() <= run.workers().items()
        assert set(run.workers().values()).isdisjoint(first.values()), "each was killed once"
        run.wait_for_step(run.step + 5)
        output = run.stop()
        run.require_exact()
        losses = run.losses()
    assert "node 1 was killed by SIGKILL" in output
    alone = undisturbed(folder, len(losses))
    assert max(abs(a - b) for a, b in zip(losses, alone, strict=True)) < TOLERANCE


def test_one_that_stands_still_is_left_and_healed_when_it_is_back(folder: Path) -> None:
    with LiveRun(folder, "it", 3) as run:
        run.wait_for_step(20)
        worker = run.workers()[1, 0]
        before = run.step
        os.kill(worker, signal.SIGSTOP)
        run.wait_for_step(before + 5, RECOVER_SECONDS)
        run.wait_for_members(2)
        time.sleep(3)
        os.kill(worker, signal.SIGCONT)
        run.wait_for_members(3)
        assert run.workers()[1, 0] == worker, "the same process"
        run.wait_for_step(run.step + 5)
        run.stop()
        run.require_exact()


def test_scaled_down_and_up_while_it_trains(folder: Path) -> None:
    """Planned changes discard nothing: no step is taken twice, by anyone."""
    with LiveRun(folder, "it", 3) as run:
        run.wait_for_step(20)
        kept = run.workers()[0, 0]
        headway("scale", "--nodes", "1", folder=folder)
        run.wait_for_members(1)
        wait_for("the end of two", lambda: list(run.workers()) == [(0, 0)], 10)
        run.wait_for_step(run.step + 5)
        headway("scale", "--nodes", "4", folder=folder)
        run.wait_for_members(4)
        run.wait_for_step(run.step + 5)
        assert run.workers()[0, 0] == kept
        assert "4 workers" in headway("status", folder=folder).stdout
        run.stop()
        run.require_exact()
        assert not run.events("lost")
        assert not any(event["discarded"] for event in run.events("changed"))


def test_a_sharded_domain_is_lost_and_comes_back_as_a_whole(folder: Path) -> None:
    options = ("--set", "shard=node", "--set", "resources.accelerators=cpu:2")
    with LiveRun(folder, "it", 2, *options) as run:
        run.wait_for_step(20)
        kept = {place: pid for place, pid in run.workers().items() if place[0] == 0}
        before = run.step
        run.kill((1, 1))
        run.wait_for_step(before + 3, 2 * RECOVER_SECONDS)
        run.wait_for_members(4)
        assert kept.items() <= run.workers().items()
        run.wait_for_step(run.step + 5)
        run.stop()
        run.require_exact()


def test_without_its_coordinator_training_goes_on(folder: Path) -> None:
    with LiveRun(folder, "it", 3) as run:
        run.wait_for_step(20)
        coordinator = run.coordinator()
        assert coordinator is not None
        before = run.step
        coordinator.kill()
        run.wait_for_step(before + 10, RECOVER_SECONDS)
        assert not run.events("changed"), "nobody had to change anything"
        wait_for("another coordinator", lambda: run.coordinator() not in (None, coordinator), 10)
        before = run.step
        run.kill((2, 0))
        run.wait_for_step(before + 3, 10)
        run.wait_for_members(3)
        run.stop()
        run.require_exact()
        assert run.events("coordinator_lost")


FLIPS_A_BIT = """
import os, torch
from headway.train.objectives import token_loss
calls = 0
def loss(model, batch):
    global calls
    calls += 1
    if calls == 120 and os.environ["HEADWAY_POD"].startswith("node-1.1/"):
        with torch.no_grad():
            weights = next(model.parameters()).view(torch.int32)
            weights[3, 5] ^= 1 << 12
    return token_loss(model, batch)
"""


def test_a_flipped_bit_is_named_and_healed(folder: Path) -> None:
    (folder / "mine.py").write_text(FLIPS_A_BIT)
    own = ("--set", "code.path=.", "--set", 'objective.call="mine:loss"')
    with LiveRun(folder, "it", 3, *own) as run:
        run.wait_for_step(105)
        (diverged,) = run.events("diverged")
        assert (diverged["step"], diverged["names"]) == (100, ["node-1.1/0"])
        run.wait_for_members(3)
        run.wait_for_step(205)
        output = run.stop()
        run.require_exact()
        assert len(run.events("diverged")) == 1, "healed"
    assert "node-1.1/0 has other weights than the rest" in output


def test_one_that_is_asked_to_leave_leaves_at_a_boundary_and_is_replaced(folder: Path) -> None:
    """As a machine does that is wanted back: by SIGTERM from whoever wants it."""
    with LiveRun(folder, "it", 3) as run:
        run.wait_for_step(20)
        os.kill(run.workers()[1, 0], signal.SIGTERM)
        wait_for("its end", lambda: (1, 0) not in run.workers(), 5)
        run.wait_for_members(2)
        run.wait_for_members(3)
        run.wait_for_step(run.step + 5)
        run.stop()
        run.require_exact()
        assert not run.events("lost")
        assert not any(event["discarded"] for event in run.events("changed"))


def test_all_killed_at_once_start_again_from_the_checkpoint(folder: Path) -> None:
    with LiveRun(folder, "it", 2, "--set", "checkpoint.every=20 steps") as run:
        run.wait_for_step(45)
        run.kill(*run.workers())
        wait_for("another start", lambda: len(run.events("started")) == 2, 10)
        again = run.events("started")[-1]
        assert again["resumed_from"] in (40, 60)
        run.wait_for_members(2)
        run.wait_for_step(run.step + 5)
        run.stop()
        run.require_exact()


def test_one_that_stands_still_does_not_hold_up_a_stop(folder: Path) -> None:
    with LiveRun(folder, "it", 3) as run:
        run.wait_for_step(20)
        frozen = run.workers()[2, 0]
        os.kill(frozen, signal.SIGSTOP)
        run.wait_for_members(2)
        run.stop()
        run.require_exact()
        assert not run.workers()
        status = headway("status", folder=folder).stdout
        assert "stopped" in status


def test_workers_do_not_outlive_their_launcher_and_coordinator(folder: Path) -> None:
    """Also when they are waiting for others who will never come."""
    with LiveRun(folder, "it", 2) as run:
        run.wait_for_step(20)
        workers = run.workers()
        os.kill(workers[1, 0], signal.SIGSTOP)
        run.process.kill()
        wait_for("the coordinator's end", lambda: not coordinators(run), 10)
        os.kill(workers[1, 0], signal.SIGKILL)
        wait_for("their end", lambda: not run.workers(), 60)


def coordinators(run: LiveRun) -> list[psutil.Process]:
    record = run.directory.store.location("members")
    return [
        one for one in psutil.process_iter(["cmdline"]) if record in (one.info["cmdline"] or ())
    ]
