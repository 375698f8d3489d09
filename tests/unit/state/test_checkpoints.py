"""A checkpoint is whole or it does not exist, and a damaged one is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.clock import SystemClock
from headway.errors import BadInput, Exit, NotFound
from headway.state.checkpoints import (
    MANIFEST,
    CheckpointManifest,
    commit,
    describe_files,
    drop_old,
    find_checkpoint,
    folder_of,
    partial_folder,
    read_manifest,
    steps_saved,
)
from headway.state.rundir import RunDirectory

CONTENT = b"weights " * 1000


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "it", SystemClock())


def written(directory: RunDirectory, step: int, content: bytes = CONTENT) -> Path:
    """A save just before its commit."""
    partial = partial_folder(directory, step)
    (partial / "model.safetensors").write_bytes(content)
    (partial / "optimizer.safetensors").write_bytes(b"moments")
    return partial


def save(directory: RunDirectory, step: int, content: bytes = CONTENT) -> Path:
    partial = written(directory, step, content)
    manifest = CheckpointManifest(
        step=step,
        run="it",
        created="2026-11-15T01:37:52.123Z",
        headway="0.1.0",
        data_digest="d",
        scalars={"loss_scale": [1.0, 0], "guard": {"mean": None}},
        files=describe_files(partial),
    )
    return commit(directory, partial, manifest)


def test_what_is_saved_is_found_and_read(directory: RunDirectory) -> None:
    folder = save(directory, 300)
    assert folder == folder_of(directory, 300) == directory.checkpoints / "step-00000300"
    assert steps_saved(directory) == [300]
    manifest = read_manifest(folder)
    assert (manifest.step, manifest.scalars["guard"]) == (300, {"mean": None})
    assert set(manifest.files) == {"model.safetensors", "optimizer.safetensors"}
    assert manifest.files["model.safetensors"].size == len(CONTENT)
    assert [item.name for item in directory.checkpoints.iterdir()] == ["step-00000300"]


def test_a_save_cut_short_never_existed(directory: RunDirectory) -> None:
    save(directory, 100)
    written(directory, 200)
    assert steps_saved(directory) == [100]
    assert find_checkpoint(directory) == folder_of(directory, 100)


def test_a_folder_without_a_manifest_does_not_count(directory: RunDirectory) -> None:
    save(directory, 100)
    (save(directory, 200) / MANIFEST).unlink()
    (directory.checkpoints / "step-xyz").mkdir()
    assert steps_saved(directory) == [100]


def test_a_save_begins_empty_whatever_was_left_there(directory: RunDirectory) -> None:
    written(directory, 200)
    assert list(partial_folder(directory, 200).iterdir()) == []


def test_the_same_step_again_replaces_it(directory: RunDirectory) -> None:
    save(directory, 300)
    folder = save(directory, 300, b"newer")
    assert (folder / "model.safetensors").read_bytes() == b"newer"
    read_manifest(folder)
    assert [item.name for item in directory.checkpoints.iterdir()] == ["step-00000300"]


def test_the_old_one_stays_until_the_new_one_has_its_place(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing is what takes time: when it begins, the new one has to be there already."""
    save(directory, 300)
    partial = written(directory, 300, b"newer")
    manifest = read_manifest(folder_of(directory, 300)).model_copy(
        update={"files": describe_files(partial)}
    )

    def crash(path: Path, **_: object) -> None:
        if path.exists():
            (path / MANIFEST).unlink()
            raise InterruptedError("the machine goes down in the middle of it")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", crash)
        with pytest.raises(InterruptedError):
            commit(directory, partial, manifest)
    assert steps_saved(directory) == [300]
    read_manifest(find_checkpoint(directory))
    save(directory, 300, b"newest")
    assert read_manifest(find_checkpoint(directory)).step == 300


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), "model.safetensors is missing"),
        (lambda path: path.write_bytes(b"short"), "model.safetensors has 5 bytes instead of 8000"),
        (
            lambda path: path.write_bytes(CONTENT.replace(b"w", b"v", 1)),
            "model.safetensors does not have the content that was written",
        ),
    ],
)
def test_a_damaged_file_is_named(directory: RunDirectory, damage: object, says: str) -> None:
    folder = save(directory, 300)
    damage(folder / "model.safetensors")  # type: ignore[operator]
    with pytest.raises(BadInput) as caught:
        read_manifest(folder)
    assert says in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"version": 2}', "[]"])
def test_a_damaged_manifest_is_named(directory: RunDirectory, content: str) -> None:
    folder = save(directory, 300)
    (folder / MANIFEST).write_text(content)
    with pytest.raises(BadInput, match=r"step-00000300/manifest\.json is damaged"):
        read_manifest(folder)


@given(steps=st.sets(st.integers(0, 10**9), min_size=1, max_size=6), keep_last=st.integers(1, 8))
def test_retention_keeps_the_newest(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], keep_last: int
) -> None:
    directory = RunDirectory.create(tmp_path_factory.mktemp("runs") / "it", SystemClock())
    for step in steps:
        save(directory, step, b"little")
    drop_old(directory, keep_last)
    assert steps_saved(directory) == sorted(steps)[-keep_last:]
    read_manifest(find_checkpoint(directory))
    assert len(list(directory.checkpoints.iterdir())) == min(keep_last, len(steps))


def test_what_killed_saves_left_does_not_fill_the_disk(directory: RunDirectory) -> None:
    written(directory, 100)
    written(directory, 200)
    save(directory, 300)
    drop_old(directory, 3)
    assert [item.name for item in directory.checkpoints.iterdir()] == ["step-00000300"]


def test_by_step_or_the_newest(directory: RunDirectory) -> None:
    with pytest.raises(NotFound, match="run it has no checkpoint yet"):
        find_checkpoint(directory)
    for step in (300, 100, 123456789):
        save(directory, step)
    assert find_checkpoint(directory).name == "step-123456789"
    assert find_checkpoint(directory, 100).name == "step-00000100"
    with pytest.raises(NotFound) as caught:
        find_checkpoint(directory, 200)
    assert (caught.value.exit_code, caught.value.hint) == (
        Exit.NOT_FOUND,
        "it has 100, 300, 123456789",
    )
