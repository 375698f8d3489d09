"""`headway run` of a run that is there already: which settings may differ, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.restart_check import require_same_run
from headway.clock import SystemClock
from headway.errors import BadInput
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.run_directory import Journal, Record, RunDirectory
from support.chains import saved_at
from support.in_process import Headway

RUN_FILE = """\
version: 1
name: it
model: {type: gpt2}
data: {train: prepared, sequence_length: 10}
batch: {global: 10, micro: 5}
train_for: 100 steps
"""
NO_DATA = "data.train: no prepared set"
"""What a start that is not refused stumbles over here."""


@pytest.fixture
def directory(folder: Path) -> RunDirectory:
    """A run that was started once, with a set of 500 samples."""
    (folder / "run.yaml").write_text(RUN_FILE)
    return begun(folder)


def begun(folder: Path, *settings: str) -> RunDirectory:
    directory = RunDirectory.create(folder / "runs" / "it", SystemClock())
    one = Hardware(cores=1, cuda_devices=0)
    loaded = load_run(folder / "run.yaml", list(settings))
    sets = {"train_set": "prepared", "validation_sets": {}}
    directory.write_spec(resolve(loaded, one, nodes=1, parameters=None, **sets))
    Journal(directory.events, SystemClock()).note(
        "started", total_steps=100, samples=500, workers=1, generation=1
    )
    return directory


def saved(directory: RunDirectory, *steps: int) -> None:
    saved_at(directory, *steps)


# --- other settings


def test_nothing_is_saved_so_nothing_is_locked(headway: Headway, directory: RunDirectory) -> None:
    said = headway("run", "--set", "optimizer.lr=0.5", "--set", "train_for=7 steps")
    assert "run it has no checkpoint yet: restarting it with the new settings:\n  optim" in said.err
    assert NO_DATA in said.err


def test_once_a_step_is_saved_the_hint_works(headway: Headway, directory: RunDirectory) -> None:
    saved(directory, 40)
    directory.store.write("../it-2/run.json", b"{}")
    said = headway("run", "--set", "optimizer.lr=0.5")
    assert said.exit_code == 2
    assert "was started with other settings:\n  optimizer.lr: 0.0003 -> 0.5" in said.err
    assert "hint: headway resume it continues with the old settings" in said.err
    assert said.err.rstrip().endswith(": headway fork it it-3 --set optimizer.lr=0.5")


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        (["precision=fp16", "train_for=7 steps"], "--set precision=fp16 --set 'train_for=7 steps'"),
        (["optimizer.lr=1e-5", "optimizer.betas=[0.8, 0.9]"], "--set optimizer.lr=1e-05"),
    ],
)
def test_the_fork_has_the_new_settings(
    headway: Headway, directory: RunDirectory, settings: list[str], end: str
) -> None:
    saved(directory, 40)
    said = headway("run", *(word for one in settings for word in ("--set", one)))
    assert said.err.rstrip().endswith(end), said.err


def test_a_list_is_left_to_the_reader(headway: Headway, directory: RunDirectory) -> None:
    saved(directory, 40)
    said = headway("run", "--set", "optimizer.betas=[0.8, 0.9]")
    assert "from this one (add --set for optimizer.betas): headway fork it it-2\n" in said.err


def test_from_another_folder_the_fork_names_the_run_directory(
    headway: Headway, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved(directory, 40)
    (tmp_path / "elsewhere").mkdir()
    file = Path.cwd() / "run.yaml"
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = headway("run", str(file), "--set", "seed=7")
    assert f"headway fork {directory.location} it-2 --set seed=7" in said.err


# --- on a target: no fork, and no command that lacks --on


@pytest.mark.parametrize(
    ("settings", "extend", "end"),
    [
        (["seed=7"], False, "start a new run: run it again with --set name=it-2"),
        (
            ["train_for=50 steps"],
            False,
            "to resume with 100 steps: run it again with --set 'train_for=100 steps'",
        ),
        (["train_for=200 steps"], False, "--extend makes a run longer"),
        (
            ["train_for=50 steps"],
            True,
            "start a new run of that length: "
            "run it again with --set name=it-2 --set 'train_for=50 steps'",
        ),
    ],
)
def test_hints_on_a_target_are_flags(
    directory: RunDirectory, folder: Path, settings: list[str], extend: bool, end: str
) -> None:
    saved(directory, 40)
    run = load_run(folder / "run.yaml", settings).run
    with pytest.raises(BadInput) as caught:
        require_same_run(directory, run, extend, on="lab")
    hint = caught.value.hint or ""
    assert hint.endswith(end)
    assert hint.count("headway ") == hint.count("headway resume it --on lab ")


def test_a_decay_on_a_target(folder: Path) -> None:
    finished(folder, "wsd", 40, 100)
    run = load_run(folder / "run.yaml", ["train_for=200 steps"]).run
    with pytest.raises(BadInput) as caught:
        require_same_run(RunDirectory(folder / "runs" / "it"), run, extend=True, on="lab")
    assert caught.value.hint == (
        "start a new run: run it again with --set name=it-2 --set 'train_for=200 steps'"
    )


def test_the_history_is_read_once(
    headway: Headway, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(directory, 40)
    read: list[str] = []
    history = RunDirectory.history

    def counted(self: RunDirectory) -> list[Record]:
        read.append(self.name)
        return history(self)

    monkeypatch.setattr(RunDirectory, "history", counted)
    headway("run", "--extend", "--set", "train_for=99 steps")
    assert len(read) == 1


# --- another length: 100 steps are 10,000 tokens, or two epochs of 500 samples


@pytest.mark.parametrize("length", ["99 steps", "9900 tokens", "1 epochs"])
def test_extending_does_not_shorten(headway: Headway, directory: RunDirectory, length: str) -> None:
    saved(directory, 40, 80, 100)
    said = headway("run", "--extend", "--set", f"train_for={length}")
    assert said.exit_code == 2
    assert f"run it was started with train_for: 100 steps, and {length} is shorter" in said.err
    fork = f"headway fork it@{40 if length == '1 epochs' else 80} it-2 --set 'train_for={length}'"
    assert said.err.rstrip().endswith(fork)


@pytest.mark.parametrize("length", ["101 steps", "10001 tokens", "2.1 epochs", "2 epochs"])
def test_extending_counts_in_steps(headway: Headway, directory: RunDirectory, length: str) -> None:
    saved(directory, 40)
    assert NO_DATA in headway("run", "--extend", "--set", f"train_for={length}").err


def test_after_an_extension_the_old_length_leads_to_resume(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN_FILE)
    saved(begun(folder, "train_for=200 steps"), 150)
    said = headway("run")
    assert said.exit_code == 2
    assert "train_for: 200 steps -> 100 steps" in said.err
    assert said.err.rstrip().endswith("headway resume it")
    longer = headway("run", "--set", "train_for=300 steps")
    assert "--extend" in longer.err


# --- the learning rate of a run that is extended


def finished(folder: Path, schedule: str, *steps: int) -> None:
    (folder / "run.yaml").write_text(RUN_FILE + f"schedule: {{type: {schedule}, warmup: 0%}}\n")
    saved(begun(folder), *steps)


@pytest.mark.parametrize(
    ("steps", "command"),
    [
        ([40, 80, 100], "headway fork it@80 it-2 --set 'train_for=200 steps'"),
        ([91, 95], "run it again with --set name=it-2 --set 'train_for=200 steps'"),
    ],
    ids=["kept", "not kept"],
)
def test_a_decay_that_has_begun_is_not_extended(
    headway: Headway, folder: Path, steps: list[int], command: str
) -> None:
    finished(folder, "wsd", *steps)
    said = headway("run", "--extend", "--set", "train_for=200 steps")
    assert said.exit_code == 2
    assert f"decaying since step 90 and run it is at step {steps[-1]}: extending" in said.err
    assert "to 1 times its peak" in said.err
    assert said.err.rstrip().endswith(command)


def test_before_its_decay_wsd_is_extended_without_a_warning(headway: Headway, folder: Path) -> None:
    finished(folder, "wsd", 80, 90)
    said = headway("run", "--extend", "--set", "train_for=200 steps")
    assert NO_DATA in said.err
    assert "learning rate" not in said.err


@pytest.mark.parametrize(("schedule", "jump"), [("cosine", "0.543"), ("linear", "0.545")])
def test_a_jump_of_the_learning_rate_is_reported_before_it_happens(
    headway: Headway, folder: Path, schedule: str, jump: str
) -> None:
    finished(folder, schedule, 100)
    said = headway("run", "--extend", "--set", "train_for=200 steps")
    assert NO_DATA in said.err
    assert (
        f"warning: from step 100 on, the learning rate follows a {schedule} schedule of 200 "
        f"steps: it jumps from 0.1 to {jump} of its peak"
    ) in said.err
