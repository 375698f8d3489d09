"""Saving: whole or not there; a disk or a store that fails does not stop training."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from headway.clock import SystemClock
from headway.errors import Exit, PeerLost, RunFailed
from headway.spec.stepped_interval import SteppedInterval
from headway.state.checkpoints import MANIFEST, find_checkpoint, folder_of, steps_saved
from headway.state.run_directory import RunDirectory
from headway.train import save
from headway.train.save import (
    FIRST_RETRY_SECONDS,
    LAST_ATTEMPTS,
    UNSAVED_SECONDS,
    SaveSchedule,
)
from headway.train.worker_run import WorkerRun
from headway.train.world import RankPlacement, World
from support.chains import TIME
from support.clock import Patient
from support.fake_s3 import fake_s3
from support.full_disk import full_disk
from support.little import Little
from support.run_here import RunHere
from support.waiting import wait_for


def test_what_is_saved_is_as_it_was_when_saving_began(directory: RunDirectory) -> None:
    little = Little(directory)
    little.begin()
    little.advance(2)
    before = little.train.model[0].weight.detach().clone()
    little.saver.start(little.train, 1.5)
    little.advance(3)
    little.saver.wait()
    other = Little(directory, 2)
    assert other.restore() == 2
    assert torch.equal(other.train.model[0].weight, before)
    assert find_checkpoint(directory)[1].validation_loss == 1.5
    (event,) = little.events("saved")
    assert (event["step"], event["checkpoint"]) == (2, "step-00000002.g000001")


def test_a_full_disk_warns_and_the_next_save_has_room(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk", free_bytes=256 * 1024) as disk:
        clock = Patient()
        little = Little(RunDirectory.create(disk / "it", SystemClock()), clock=clock)
        little.begin()
        little.advance(1)
        little.save()
        ballast = disk / "ballast"
        ballast.touch()
        with ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096) == 4096 and _free(disk) > 4096:
                pass
        little.advance(1)
        clock.passed += 60
        little.save()
        assert steps_saved(little.directory) == [1]
        assert not little.saver.retry_is_due()
        clock.passed += FIRST_RETRY_SECONDS
        assert little.saver.retry_is_due()
        ballast.unlink()
        little.advance(1)
        little.save()
        assert steps_saved(little.directory) == [1, 3]
        (event,) = little.events("save_failed")  # written at the latest when there is room
        assert (event["step"], event["last_good_step"]) == (2, 1)
        assert event["last_good_age_seconds"] == 60
        assert "No space left" in event["reason"]
        assert not little.saver.retry_is_due()
        assert Little(little.directory, 2).restore() == 3


@pytest.mark.parametrize(("busy_steps", "saved"), [(0, [4, 6, 8, 20, 40]), (3, [4, 7, 10, 20, 40])])
def test_each_save_that_is_due_happens_once_wherever_a_run_resumes(
    busy_steps: int, saved: list[int]
) -> None:
    """One that is due while another is written comes right after it."""
    milestones = SteppedInterval.parse(["2 steps until 8", "20 steps"])
    schedule = SaveSchedule(SteppedInterval.parse("20 steps"), milestones, Patient())
    found, free_at = [], 0
    for step in range(3, 50):  # resumed from step 2
        if schedule.due(step) and step >= free_at:
            schedule.saved()
            found.append(step)
            free_at = step + busy_steps
    assert found == saved


def _free(disk: Path) -> int:
    state = os.statvfs(disk)
    return state.f_bavail * state.f_bsize


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("far")
def test_the_ledger_is_in_the_store_before_the_manifest() -> None:
    """Else a run resumed from it would miss lines of steps it does not do again."""
    with fake_s3() as s3:
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        little = Little(directory)
        little.advance(2)
        directory.ledger.append({"step": 1})
        written: list[str] = []
        write = s3.pipe_file

        def note(self: object, path: str, value: bytes, **how: str) -> None:
            written.append(path.partition("bucket/it/")[2])
            write(self, path, value, **how)

        s3.pipe_file = note  # type: ignore[method-assign, assignment]
        little.save()
        assert written.index("ledger/000000/00000001.jsonl") < written.index(
            f"{folder_of(2, 1)}/{MANIFEST}"
        )


@pytest.mark.usefixtures("far")
def test_at_the_end_nothing_could_be_saved() -> None:
    with fake_s3() as s3:
        little = Little(RunDirectory.create("s3://bucket/it", SystemClock()), clock=Patient())
        little.advance(2)
        s3.troubles.extend(["refused"] * 100)
        with pytest.raises(RunFailed) as caught:
            little.saver.finish(little.train, None)
    assert caught.value.message.startswith("step 2 could not be saved to s3://bucket/it: ")
    assert "None" not in str(caught.value)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("nothing is saved yet; free space or fix the store, ")


@pytest.mark.usefixtures("far")
def test_at_the_end_it_tries_until_it_is_saved() -> None:
    with fake_s3() as s3:
        clock = Patient()
        little = Little(RunDirectory.create("s3://bucket/it", SystemClock()), clock=clock)
        little.begin()
        little.advance(2)
        s3.troubles.extend(["refused", "refused", "refused"])
        little.saver.finish(little.train, None)
        assert clock.slept == [1.0, 2.0, 4.0]
        assert steps_saved(little.directory) == [2]
        s3.troubles.extend(["refused"] * 99)
        little.advance(1)
        with pytest.raises(RunFailed, match="step 3 could not be saved to s3://bucket/it"):
            little.saver.finish(little.train, None)
        assert len(little.directory.here().events.read()[0]) == 3 + 1 + LAST_ATTEMPTS


@pytest.mark.usefixtures("far")
def test_a_removal_that_fails_does_not_harm_the_save() -> None:
    """Retention comes after the manifest: what was just written is the newest good one."""
    with fake_s3() as s3:
        little = Little(RunDirectory.create("s3://bucket/it", SystemClock()))
        little.begin()
        for _ in range(3):
            little.advance(1)
            little.save()
        remove = s3.rm

        def fail_once(*_: object, **__: object) -> None:
            s3.rm = remove  # type: ignore[method-assign]
            raise OSError("503 slow down")

        s3.rm = fail_once  # type: ignore[method-assign, assignment]
        little.advance(1)
        little.save()
        assert s3.rm is remove, "it was asked to let one go"
        assert (little.saver.saved_step, little.saver.failures) == (4, 0)
        assert steps_saved(little.directory)[-1] == 4
        assert Little(little.directory, 2).restore() == 4
        little.advance(1)
        little.save()
        assert steps_saved(little.directory) == [3, 4, 5], "what could not be removed is now"


def of_two(rank: int, directory: RunDirectory, clock: Patient | None = None) -> Little:
    """One of two ranks of a node that write a checkpoint together."""
    world = World(rank, 2, 1, RankPlacement(torch.device("cpu"), rank, 2))
    little = Little(directory, world=world, clock=clock or Patient())
    little.advance(1)
    return little


def test_nobody_waits_for_a_long_save_in_one_collective(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last save of a large model may take longer than the timeout of a collective, and the
    workers that write nothing would be taken for lost."""
    monkeypatch.setattr(save, "ROUND_SECONDS", 0.05)
    little = Little(directory)
    little.begin()
    little.advance(1)
    write, rounds = little.saver._write, []

    def write_slowly(*facts: Any) -> None:
        time.sleep(0.5)
        write(*facts)

    def any_of_all(self: World, flag: bool) -> bool:
        rounds.append(flag)
        return flag

    monkeypatch.setattr(little.saver, "_write", write_slowly)
    monkeypatch.setattr(World, "any", any_of_all)
    assert little.saver.save_now(little.train, None)
    assert steps_saved(directory) == [1]
    assert sum(rounds) >= 3, "rounds while it was written"


@pytest.mark.usefixtures("far")
def test_a_failed_save_leaves_no_file_of_any_rank_behind() -> None:
    """Or each failure on a full disk leaves less room for the next attempt."""
    with fake_s3() as s3:
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        first, second = of_two(0, directory), of_two(1, directory)
        first.begin()
        second.save()
        s3.troubles.append("refused")
        first.save()
        assert first.saver.failures == 1
        assert directory.store.names("checkpoints") == []
        second.save()  # so slow that the first has given up long ago
        assert directory.store.names("checkpoints") != []
        for little in (second, first):
            little.advance(1)
            little.save()
        assert steps_saved(directory) == [2]
        assert {name.split("/")[1] for name in directory.store.names("checkpoints")} == {
            "step-00000002.g000001"
        }


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize(
    ("write_seconds", "late_seconds", "steps"),
    [(1, 100, [1]), (1, 130, []), (300, 1000, [1])],
    ids=["in two minutes", "too late", "slow store"],
)
def test_a_slow_store_gives_other_ranks_longer(
    write_seconds: float, late_seconds: float, steps: list[int]
) -> None:
    with fake_s3() as s3:
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        clock = Patient(lambda: _arrive(clock, second, write_seconds + late_seconds))
        first, second = of_two(0, directory, clock), of_two(1, directory)
        first.begin()
        write = s3.pipe_file

        def take_long(self: object, path: str, value: bytes, **how: str) -> None:
            clock.passed += write_seconds if path.endswith("rank-0.json") else 0.0
            write(self, path, value, **how)

        s3.pipe_file = take_long  # type: ignore[method-assign, assignment]
        first.save()
        assert steps_saved(directory) == steps


def _arrive(clock: Patient, late: Little, at: float) -> None:
    if clock.passed >= at and late.saver.tried is None:
        late.save()


def test_a_loss_is_saved_only_with_the_state_that_was_evaluated() -> None:
    """Not with the next step that others had committed, nor with the same step taken again."""
    training = SimpleNamespace(step=5, committed_in=2)
    run = SimpleNamespace(training=training, evaluated=((5, 2), 1.5))
    found = []
    for training.step, training.committed_in in ((5, 2), (6, 2), (5, 3), (5, 2)):
        found.append(WorkerRun.validation_loss.fget(run))  # type: ignore[attr-defined]
    assert found == [1.5, None, None, 1.5]


class Others:
    """The group of a leader whose peers are lost where `is_lost` says so."""

    rank, size = 0, 3
    is_lost = False

    def all_reduce(self, tensor: torch.Tensor) -> None:
        if self.is_lost:
            raise PeerLost("another worker went away")


def leader(directory: RunDirectory, generation: int, others: Others) -> World:
    return World(0, 3, generation, RankPlacement(torch.device("cpu")), replicas=cast(Any, others))


def test_a_step_that_the_leader_alone_has_committed_drops_no_checkpoint(
    directory: RunDirectory,
) -> None:
    """A save was due at it. The others do not have it, so it is taken back, and what was saved of
    it does not count."""
    others = Others()
    keep = {"checkpoint": {"keep": {"last": 1, "best": 0}}}
    little = Little(directory, world=leader(directory, 1, others), run=keep)
    little.begin()
    little.advance(1)
    little.save()
    little.saver.settled(1)
    little.advance(1)
    little.save()
    assert steps_saved(directory) == [1, 2], "nobody knows yet whether the second will count"
    little.chain.begin(2, 1, 2, TIME)
    assert steps_saved(directory) == [1]
    little.saver.begin(leader(directory, 2, others))
    little.saver.settled(1)
    little.train.step = 1
    little.world = leader(directory, 2, others)
    little.advance(1)
    little.save()
    little.saver.settled(2)
    wait_for("the older ones to go", lambda: steps_saved(directory) == [2], 10)


def test_the_last_step_is_saved_again_when_the_leader_alone_had_committed_it(
    directory: RunDirectory,
) -> None:
    others = Others()
    little = Little(directory, world=leader(directory, 1, others))
    little.begin()
    little.advance(1)
    little.save()
    little.saver.settled(1)
    little.advance(1)
    others.is_lost = True
    with pytest.raises(PeerLost):
        little.saver.finish(little.train, None)
    # In the next generation most hold step 1, and the step is taken again.
    little.chain.begin(2, 1, 2, TIME)
    others.is_lost = False
    little.train.step, little.world = 1, leader(directory, 2, others)
    little.saver.begin(little.world)
    little.advance(1)
    little.saver.finish(little.train, None)
    assert steps_saved(directory) == [1, 2]
    assert find_checkpoint(directory)[1].generation == 2


def test_a_save_that_never_ends_ends_the_run(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network folder whose server is gone: nothing fails, and nothing is saved."""
    little, server_is_back = Little(directory, clock=Patient()), Event()
    monkeypatch.setattr(little.saver, "_write", lambda *_: server_is_back.wait())
    little.advance(1)
    little.saver.require_saves(is_due=True)
    little.saver.start(little.train, None)
    little.clock.passed += UNSAVED_SECONDS - 1
    little.saver.require_saves(is_due=True)
    little.clock.passed += 1
    try:
        with pytest.raises(RunFailed, match=r"for 12 h: the newest save has not ended"):
            little.saver.require_saves(is_due=True)
    finally:
        server_is_back.set()


def test_each_save_of_a_run_is_told_with_the_time_that_it_held_training(tmp_path: Path) -> None:
    here = RunHere(tmp_path / "run", overrides=("checkpoint.every=2 steps",))
    assert here.train(here.open()) is Exit.DONE
    saving = here.events("saving")
    assert [event["step"] for event in saving] == [2], "the last save is waited for"
    assert saving[0]["held_seconds"] >= 0
