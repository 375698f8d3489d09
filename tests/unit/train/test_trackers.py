"""Trackers over restarts: each step once, one W&B run, and never a reason to stop training."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.clock import SystemClock
from headway.errors import BadInput
from headway.launch.hardware import this_machine
from headway.spec.load import load_run
from headway.spec.resolve import Resolved, resolve
from headway.state.run_directory import RunDirectory
from headway.train.evaluate import EvaluationResult
from headway.train.recorder import Recorder
from headway.train.step import StepResult
from headway.train.trackers import (
    TensorBoard,
    Unfailing,
    has_wandb_key,
    last_offline_step,
    newest_records,
    wandb_id,
)
from headway.train.world import RankPlacement, World
from support.waiting import wait_for

RUN_FILE = """\
version: 1
name: tracked
model: {type: gpt2}
data: {train: unused, sequence_length: 16}
batch: {global: 4, micro: 2}
train_for: 100 steps
track: [tensorboard, wandb]
"""


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    return resolve(
        load_run(tmp_path),
        this_machine(),
        nodes=1,
        parameters=None,
        train_set=tmp_path,
        validation_sets={},
    )


@pytest.fixture
def directory(resolved: Resolved) -> RunDirectory:
    return RunDirectory.create(resolved.run_directory, SystemClock())


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    if "wandb" in sys.modules and sys.modules["wandb"] is not None:
        sys.modules["wandb"].teardown()  # it reads the environment once a process


def recorder(
    directory: RunDirectory, resolved: Resolved, generation: int, first_step: int
) -> Recorder:
    world = World(0, 1, generation, RankPlacement(torch.device("cpu")))
    facts = {"batch": 4, "samples": 100, "length": 16, "data": "d", "code": None}
    made = Recorder(directory, resolved, facts, SystemClock())
    made.begin(world, first_step)
    made.catch_up(first_step)
    return made


def take(recorder: Recorder, steps: range, loss: float) -> None:
    for step in steps:
        recorder.step(StepResult(step, loss, 64, 1.0, 1e-3), {"seconds": 0.1, "data_seconds": 0.0})


def evaluate(recorder: Recorder, step: int, loss: float) -> None:
    recorder.evaluation(step, {"held-out": EvaluationResult(loss, 64, {})})


def test_wandb_has_each_step_once_under_one_id(directory: RunDirectory, resolved: Resolved) -> None:
    first = recorder(directory, resolved, 1, 0)
    take(first, range(1, 6), loss=3.0)
    evaluate(first, 5, loss=3.5)
    first.close()
    second = recorder(directory, resolved, 2, 2)  # the checkpoint was of step 2
    take(second, range(3, 6), loss=2.0)
    evaluate(second, 5, loss=2.5)
    take(second, range(6, 9), loss=2.0)
    evaluate(second, 8, loss=2.4)
    second.activations(8, [{"mean": 0.5}])
    second.close()
    # A third one that gets no further than the second did: the mark is over all starts.
    third = recorder(directory, resolved, 3, 2)
    take(third, range(3, 7), loss=1.0)
    third.close()

    ids, lines = read_offline(directory)
    assert ids == {wandb_id(directory)}
    assert [line["_step"] for line in lines] == list(range(1, 9))
    assert [line["train/loss"] for line in lines] == [3.0] * 5 + [2.0] * 3
    assert {s["_step"]: s["held-out/loss"] for s in lines if "held-out/loss" in s} == {
        5: 3.5,
        8: 2.4,
    }
    assert lines[-1]["activations/0/mean"] == 0.5
    assert last_offline_step(directory.local / "wandb", wandb_id(directory)) == 8


def test_what_a_killed_start_could_not_write_is_logged_by_the_next(
    directory: RunDirectory, resolved: Resolved
) -> None:
    """W&B's process writes blocks of 32 KiB, and a kill takes the last one; the run directory has
    the steps all the same."""
    first = recorder(directory, resolved, 1, 0)
    take(first, range(1, 201), loss=3.0)
    evaluate(first, 150, loss=3.5)
    first.close()
    (file,) = (directory.local / "wandb").glob("*run-*/*.wandb")
    os.truncate(file, 32 * 1024)
    handed_over = len(read_offline(directory)[1])
    assert 0 < handed_over < 150, "otherwise this test proves nothing"
    second = recorder(directory, resolved, 2, 190)
    take(second, range(191, 206), loss=2.0)
    second.close()
    ids, lines = read_offline(directory)
    assert ids == {wandb_id(directory)}
    assert [line["_step"] for line in lines] == list(range(1, 206))
    assert [line["train/loss"] for line in lines] == [3.0] * 190 + [2.0] * 15
    assert lines[149]["held-out/loss"] == 3.5
    shown = [{k for k in line if not k.startswith("_")} for line in lines]
    assert shown[handed_over] == shown[0], "whether they came then or later makes no difference"


def test_the_id_is_of_the_run_and_not_of_its_name(tmp_path: Path) -> None:
    class Later(SystemClock):
        def now(self) -> float:
            return 1e9

    one = RunDirectory.create(tmp_path / "a" / "same", SystemClock())
    other = RunDirectory.create(tmp_path / "b" / "same", Later())
    assert wandb_id(one) == wandb_id(RunDirectory.open(one.location))
    assert wandb_id(one) != wandb_id(other)


def test_without_a_key_wandb_is_offline_and_says_so(
    directory: RunDirectory,
    resolved: Resolved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not has_wandb_key()
    only = recorder(directory, resolved, 1, 0)
    take(only, range(1, 3), loss=3.0)
    only.close()
    assert "wandb is offline: no API key found" in capfd.readouterr().err
    assert [line["_step"] for line in read_offline(directory)[1]] == [1, 2]
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert has_wandb_key()


def test_wandb_that_cannot_start_is_said_once_and_training_goes_on(
    directory: RunDirectory,
    resolved: Resolved,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "not-a-key")
    only = recorder(directory, resolved, 1, 0)
    take(only, range(1, 4), loss=3.0)
    only.close()
    assert capfd.readouterr().err.count("wandb failed and is off until the next start") == 1
    assert [line["step"] for line in directory.steps()] == [1, 2, 3]


def test_wandb_can_be_switched_off_by_its_own_variable(
    directory: RunDirectory,
    resolved: Resolved,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    only = recorder(directory, resolved, 1, 0)
    take(only, range(1, 4), loss=3.0)
    only.close()
    assert "wandb" not in capfd.readouterr().err


@pytest.mark.long("waits for a server that is not there")
def test_an_unreachable_server_leaves_wandb_offline(
    directory: RunDirectory,
    resolved: Resolved,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")
    only = recorder(directory, resolved, 1, 0)
    take(only, range(1, 4), loss=3.0)
    only.close()
    assert "wandb is offline: it cannot be reached" in capfd.readouterr().err
    assert [line["_step"] for line in read_offline(directory)[1]] == [1, 2, 3]


def test_a_tracker_that_breaks_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def numbers(self, step: int, numbers: dict[str, float]) -> None:
            raise OSError("no space left on device")

        def close(self) -> None:
            raise AssertionError("never called after it broke")

    tracker = Unfailing("broken", Broken)
    for step in (1, 2, 3):
        tracker.numbers(step, {"loss": 1.0})
    tracker.close()
    assert capfd.readouterr().err.count("no space left on device") == 1


def test_a_missing_package_is_the_users_to_install(
    directory: RunDirectory, resolved: Resolved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadInput) as caught:
        recorder(directory, resolved, 1, 0)
    assert "pip install 'headway[wandb]'" in str(caught.value)


def test_tensorboard_hides_what_is_done_again(directory: RunDirectory) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first_step, loss in ((0, 3.0), (2, 2.0)):
        board = TensorBoard(directory, first_step)
        for step in range(first_step + 1, 6):
            board.numbers(step, {"train/loss": loss})
        board.close()
        second = int(time.time())  # files are read in the order of their names, which begin with it
        wait_for("another second", lambda second=second: int(time.time()) > second)
    events = EventAccumulator(str(directory.tensorboard))
    events.Reload()
    found = [(point.step, point.value) for point in events.Scalars("train/loss")]
    assert found == [(1, 3.0), (2, 3.0), (3, 2.0), (4, 2.0), (5, 2.0)]


def read_offline(directory: RunDirectory) -> tuple[set[str], list[dict[str, Any]]]:
    """Run ids, and history lines in the order they were logged, of all offline files."""
    from wandb.proto import wandb_internal_pb2

    ids, lines = set(), []
    for path in sorted(
        (directory.local / "wandb").glob("*run-*/*.wandb"), key=lambda path: path.stat().st_mtime
    ):
        for content in newest_records(path):
            record = wandb_internal_pb2.Record.FromString(content)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            elif record.WhichOneof("record_type") == "history":
                items = record.history.item
                lines.append(
                    {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
                )
    return ids, lines
