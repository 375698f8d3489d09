"""A spec that somebody else has written to a run's storage does not run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.cli.run_packages import packages_of
from headway.clock import SystemClock
from headway.launch.packages import python_here
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve
from headway.state.run_directory import RunDirectory
from headway.state.trusted_code import trust_code
from support.in_process import Headway
from support.wheels import resolve_offline, write_wheel

MODEL = """\
version: 1
name: it
model: {call: "os:system", config: {command: "touch planted"}}
data: {train: prepared, sequence_length: 10}
batch: {global: 10, micro: 5}
train_for: 100 steps
"""
SCRIPT = "version: 1\nname: it\ncommand: [touch, $HEADWAY_OUTPUT/planted]\n"


@pytest.fixture(autouse=True)
def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(folder / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


def stored(folder: Path, run_file: str) -> Resolved:
    """A run with one checkpoint, whose run file is not here."""
    (folder / "theirs").mkdir(exist_ok=True)
    (folder / "theirs" / "run.yaml").write_text(run_file)
    resolved = resolve(
        load_run(folder / "theirs" / "run.yaml"),
        Hardware(cores=1, cuda_devices=0),
        nodes=1,
        parameters=None,
        train_set="prepared",
        validation_sets={},
    )
    location = folder / "runs" / "it"
    resolved = resolved.model_copy(update={"run_directory": str(location)})
    directory = RunDirectory.create(location, SystemClock())
    directory.write_spec(resolved)
    from support.little import Little

    little = Little(directory)
    little.begin()
    little.advance(1)
    little.save()
    return resolved


def planted(folder: Path) -> list[Path]:
    return list(folder.rglob("planted"))


@pytest.mark.parametrize("command", ["generate", "export", "resume"])
def test_a_planted_model_is_not_built(headway: Headway, folder: Path, command: str) -> None:
    stored(folder, MODEL)
    said = headway(command, "it")
    assert not planted(folder)
    assert said.exit_code == 2
    assert (
        "spec.json names code that you have not started from here: model.call: os:sys" in said.err
    )
    assert '"touch planted"' in said.err, "its arguments are what makes it dangerous"
    assert said.err.rstrip().endswith(f"headway {command} it --trust-code")


def test_a_planted_command_is_not_resumed(headway: Headway, folder: Path) -> None:
    stored(folder, SCRIPT)
    said = headway("resume", "it")
    assert not planted(folder)
    assert said.exit_code == 2
    assert 'not started from here: command: ["touch", "$HEADWAY_OUTPUT/planted"]; code' in said.err


@pytest.mark.parametrize("command", ["generate", "export"])
def test_trust_code_says_what_it_runs_and_runs_it(
    headway: Headway, folder: Path, command: str
) -> None:
    stored(folder, MODEL)
    said = headway(command, "it", "--trust-code")
    assert "model.call: os:system; model.config: " in said.err.splitlines()[0]
    assert planted(folder)
    assert "--trust-code" not in headway(command, "it").err, "it was agreed to"


def test_what_was_started_here_is_trusted_until_any_of_its_code_is_another(
    headway: Headway, folder: Path
) -> None:
    resolved = stored(folder, MODEL)
    trust_code(resolved)
    assert "--trust-code" not in headway("generate", "it").err
    directory = RunDirectory.open(resolved.run_directory)
    assert resolved.run.model is not None
    model = resolved.run.model.model_copy(update={"config": {"command": "touch other"}})
    changes: list[dict[str, Any]] = [
        {"run": resolved.run.model_copy(update={"model": model})},
        {"packages": "/tmp/theirs"},
    ]
    for change in changes:
        directory.write_spec(resolved.model_copy(update=change))
        assert headway("generate", "it").err.rstrip().endswith("--trust-code"), change


def test_a_fork_of_a_run_that_is_not_trusted_is_not(headway: Headway, folder: Path) -> None:
    resolved = stored(folder, MODEL)
    assert headway("fork", "it", "theirs-2").exit_code == 0
    assert headway("generate", "theirs-2").err.rstrip().endswith("--trust-code")
    trust_code(resolved)
    assert headway("fork", "it", "mine", "--set", "objective={call: os:system}").exit_code == 0
    assert "--trust-code" not in headway("generate", "mine").err, "typed by the user"


def test_packages_are_not_those_that_somebody_wrote_to_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mine", "evil"):
        write_wheel(folder / "wheels", name, "1.0", {f"{name}.py": ""})
    resolve_offline(monkeypatch, folder / "wheels", folder)
    (folder / "requirements.txt").write_text("mine\n")
    (folder / "run.yaml").write_text(f"{SCRIPT}code: {{requirements: requirements.txt}}\n")
    loaded = load_run(folder / "run.yaml")
    location = str(folder / "runs" / "it")
    first = packages_of(loaded, python_here, location)
    assert first is not None
    kept = folder / "runs" / "it" / "packages" / f"{first.key}.txt"
    kept.write_text(first.lock.replace("mine", "evil"))
    assert packages_of(loaded, python_here, location) == first
    assert f"resolved anew: {kept} was not made on this machine" in capsys.readouterr().err
