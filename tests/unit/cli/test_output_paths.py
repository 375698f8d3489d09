"""A path that a command cannot write is refused in one line with a hint, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import Exit
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.run_directory import RunDirectory
from support.in_process import Headway

FOLDERS = {
    "init": ["init", "tiny"],
    "export": ["export", "begun", "--into"],
    "prepare": ["data", "prepare", "text", "--train-vocab", "300", "--into"],
    "tokenizer": ["data", "tokenizer", "text", "--vocab", "300", "--into"],
    "prove": ["prove", "--into"],
}
"""Commands that write a folder, whose name comes last."""
REPORT = ["report", "begun", "--into"]
PARENT_IS_A_FILE, NO_RIGHTS = "is a file, not a folder", "nothing can be written in"


@pytest.fixture
def here(folder: Path, headway: Headway) -> Path:
    (folder / "text").mkdir()
    (folder / "text/a.txt").write_text("Once upon a time.\n" * 50)
    (folder / "taken").write_text("a file of the user\n")
    headway("init", "tiny", "t")
    machine = Hardware(cores=2, cuda_devices=0)
    loaded = load_run("t")
    resolved = resolve(loaded, machine, nodes=1, parameters=None, train_set="", validation_sets={})
    RunDirectory.create(folder / "runs" / "begun", SystemClock()).write_spec(resolved)
    return folder


def refused(headway: Headway, *words: str) -> str:
    """The refusal: one line and a hint, nothing before it."""
    said = headway(*words)
    error, hint = said.err.splitlines()
    assert (said.exit_code, said.out) == (Exit.BAD_INPUT, "")
    assert hint.startswith("hint: ")
    return error


@pytest.mark.parametrize("command", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("taken", "this is a file, not a folder"),
        ("taken/inside", PARENT_IS_A_FILE),
        ("/proc/no", NO_RIGHTS),
    ],
)
def test_a_folder_that_cannot_be_written(
    headway: Headway, here: Path, command: list[str], path: str, says: str
) -> None:
    error = refused(headway, *command, path)
    option = command[-1] if command[-1] == "--into" else "headway init tiny"
    assert error.startswith(f"error: {option} {path}: ")
    assert says in error
    assert (here / "taken").read_text() == "a file of the user\n"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("text", "this is a folder, not a file"),
        ("missing/page.html", "there is no folder missing"),
        ("taken/page.html", "there is no folder taken"),
        ("/proc/page.html", NO_RIGHTS),
    ],
)
def test_a_page_that_cannot_be_written(headway: Headway, here: Path, path: str, says: str) -> None:
    assert refused(headway, *REPORT, path).startswith(f"error: --into {path}: {says}")


@pytest.mark.parametrize("place", [[], ["--on", "lab"]], ids=["here", "target"])
def test_a_bucket_without_credentials(
    headway: Headway, here: Path, monkeypatch: pytest.MonkeyPatch, place: list[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(here / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(here / "none"))
    (here / "targets.yaml").write_text(
        "lab: {storage: 's3://bucket/team', pod: {resources: {cpu: 4, memory: 8Gi}},\n"
        f"  image: 'here/headway@sha256:{'0' * 64}'}}\n"
    )
    source = "s3://bucket/text" if place else "text"
    words = ["data", "prepare", source, "--train-vocab", "300", *place, "--into"]
    said = headway(*words, "wiki" if place else "s3://bucket/team/sets/wiki")
    assert said.exit_code == Exit.BAD_INPUT
    *_, error, hint = said.err.splitlines()
    assert error.startswith("error: --into s3://bucket/team/sets/wiki: NoCredentialsError")
    assert hint == "hint: check the address, your credentials and the endpoint"


@pytest.mark.parametrize(
    ("machine", "hint"),
    [
        ("", "pod: {resources: {cpu: 8, memory: 32Gi}}"),
        (
            "machine: p5.4xlarge, ",
            "pod: {resources: {cpu: 15, memory: 223Gi}}, nearly all of a p5.4xlarge",
        ),
    ],
)
def test_a_minimal_target_is_refused_before_the_summary(
    headway: Headway, here: Path, machine: str, hint: str
) -> None:
    """With all that is missing, and with what a machine that it names has."""
    (here / "targets.yaml").write_text(
        f"lab: {{{machine}storage: 's3://b/p', image: 'here/headway@sha256:{'0' * 64}'}}\n"
    )
    (here / "run.yaml").write_text("version: 1\nextends: t/run.yaml\n")
    for command in (["check"], ["check", "--json"], ["run"], ["run", "--dry-run"]):
        said = headway(*command, "--on", "lab")
        assert (said.exit_code, said.out) == (Exit.BAD_INPUT, "")
        assert said.err == (
            "error: targets.yaml:1:1: lab.pod.resources: cpu and memory are missing: nothing says "
            f"how much a worker's pod gets\nhint: {hint}\n"
        )
