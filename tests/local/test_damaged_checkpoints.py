"""The newest checkpoint is damaged in every way we could think of; the right one is chosen."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway.state.chain import Chain, KeptCheckpoint
from headway.state.checkpoints import (
    MANIFEST,
    CheckpointManifest,
    folder_of,
    read_manifest,
    write_manifest,
)
from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from headway.state.stored_file import StoredFile
from support.chains import LAUNCH, recorded
from support.workers import TEN_STEPS, resolved_run, train

pytestmark = pytest.mark.local


class Mark:
    """Leaves a mark where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def flip_a_byte(folder: Path, name: str = "rank-0.safetensors") -> None:
    file = folder / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_a_file(folder: Path) -> None:
    file = folder / "rank-0.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def change_manifest(**facts: Any) -> Callable[[Path], None]:
    """As another writer would have written it: with a right digest of its own."""

    def change(folder: Path) -> None:
        manifest = CheckpointManifest.model_validate_json((folder / MANIFEST).read_text())
        store = Store(folder.parents[1])
        name = str(folder.relative_to(folder.parents[1]))
        write_manifest(store, name, manifest.model_copy(update=facts))

    return change


def edit_manifest(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "position": 0}))


def point_outside(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {"../../../secret": {"size": 1, "xxh3": "0"}}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def plant_a_pickle(folder: Path) -> None:
    """In place of the tensors, and where other tools keep their pickled metadata."""
    poison = pickle.dumps(Mark(folder.parents[1] / "executed"))
    (folder / "rank-0.safetensors").write_bytes(poison)
    (folder / ".metadata").write_bytes(poison)


DAMAGES = {
    "a byte flipped": (flip_a_byte, "is damaged: wrong digest"),
    "a file cut": (cut_a_file, "bytes, expected"),
    "half a manifest": (
        lambda folder: (folder / MANIFEST).write_text((folder / MANIFEST).read_text()[:200]),
        "its manifest is damaged",
    ),
    "another run's manifest": (
        change_manifest(identity="0" * 32),
        "is not the one that was recorded",
    ),
    "a manifest edited": (edit_manifest, "its manifest is damaged: wrong digest"),
    "a path that leads outside": (point_outside, "its manifest is damaged"),
    "a planted pickle": (plant_a_pickle, "bytes, expected"),
}


def record_again(directory: RunDirectory, step: int) -> None:
    """The manifest as it is now, as if it had been saved so."""
    manifest = read_manifest(directory, step, 1)
    assert isinstance(manifest, CheckpointManifest)
    chain = Chain(directory, LAUNCH)
    kept = KeptCheckpoint(step=step, generation=1, digest=manifest.digest)
    recorded(chain, kept)


def go_on(folder: Path, stream: dict[str, Path], steps: int = 12) -> tuple[RunDirectory, Any]:
    """Extends the run, and what its start and the checkpoints it passed over said."""
    directory = train(resolved_run(folder, stream, overrides=[f"train_for={steps} steps"]))
    return directory, directory.events.read()[0]


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_the_previous_checkpoint_is_used_and_the_reason_reported(
    damage: str, trained: Path, stream: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    harm, reason = DAMAGES[damage]
    harm(folder / "runs" / "it" / folder_of(10, 1))
    directory, events = go_on(folder, stream)
    passed = [event for event in events if event["event"] == "passed_over"]
    assert [event["checkpoint"] for event in passed] == ["step-00000010.g000001"]
    assert reason in passed[0]["reason"]
    started = [event for event in events if event["event"] == "started"][-1]
    assert started["resumed_from"] == 5
    assert not (folder / "runs" / "it" / "executed").exists(), "a pickle was executed"
    verdict = verify_ledger(directory.ledger.read()[0])
    assert (verdict.breach, verdict.steps, verdict.redone) == (None, 12, 5)


@pytest.mark.parametrize("gone", ["rank-0.safetensors", MANIFEST])
def test_a_checkpoint_that_is_not_there_is_asked_for(
    gone: str, trained: Path, stream: dict[str, Path], tmp_path: Path
) -> None:
    """As where its folder is not mounted yet: with it back, the run goes on from there."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    file = folder / "runs" / "it" / folder_of(10, 1) / gone
    file.rename(tmp_path / "elsewhere")
    with pytest.raises(AssertionError, match=r"step 10 was saved, but of .* is missing"):
        go_on(folder, stream)
    (tmp_path / "elsewhere").rename(file)
    _, events = go_on(folder, stream)
    assert [e["resumed_from"] for e in events if e["event"] == "started"] == [None, 10]


def test_a_late_writer_of_an_older_generation_is_ignored(
    trained: Path, stream: dict[str, Path], tmp_path: Path
) -> None:
    """It went on to step 20 somewhere while generation 2 had taken over at step 10."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    go_on(folder, stream)
    run = folder / "runs" / "it"
    shutil.copytree(run / folder_of(10, 1), run / folder_of(20, 1))
    change_manifest(step=20)(run / folder_of(20, 1))
    _, events = go_on(folder, stream, steps=14)
    assert [event for event in events if event["event"] == "passed_over"] == []
    assert [e["resumed_from"] for e in events if e["event"] == "started"] == [None, 10, 12]


def test_when_no_checkpoint_is_good_the_run_refuses_to_start(
    trained: Path, stream: dict[str, Path], tmp_path: Path
) -> None:
    """Beginning anew by itself would push the damaged ones out, and weeks of work with them."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for step in (5, 10):
        flip_a_byte(folder / "runs" / "it" / folder_of(step, 1))
    with pytest.raises(AssertionError, match="no usable checkpoint") as caught:
        go_on(folder, stream)
    assert str(caught.value).count("is damaged: wrong digest") == 2


def test_a_sharded_node_resumes_from_more_files_than_fit_into_one_exchange(
    trained: Path, stream: dict[str, Path], tmp_path: Path
) -> None:
    """As two nodes of eight write them."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    checkpoint = folder / "runs" / "it" / folder_of(10, 1)
    manifest = CheckpointManifest.model_validate_json((checkpoint / MANIFEST).read_text())
    files = dict(manifest.files)
    for rank in range(1, 16):
        name = f"rank-{rank}.safetensors"
        (checkpoint / name).touch()
        files[name] = StoredFile(size=0, block_bytes=1, blocks=())
    change_manifest(files=files)(checkpoint)
    record_again(RunDirectory.open(folder / "runs" / "it"), 10)
    overrides = ["train_for=12 steps", *layout("sharded-2")]
    directory = train(resolved_run(folder, stream, overrides=overrides))
    starts = [event for event in directory.events.read()[0] if event["event"] == "started"]
    assert [start["resumed_from"] for start in starts] == [None, 10]


def test_a_run_killed_in_its_first_save_starts_again_with_two_workers(
    trained: Path, stream: dict[str, Path], tmp_path: Path
) -> None:
    """An unfinished save is no reason to refuse, for the workers that did not list it either."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    run = folder / "runs" / "it"
    for step in (5, 10):
        (run / folder_of(step, 1) / MANIFEST).unlink()
    for link in sorted((run / "chain" / "0000").iterdir())[2:]:
        link.unlink()
    directory = train(resolved_run(folder, stream, overrides=layout("2")))
    starts = [event for event in directory.events.read()[0] if event["event"] == "started"]
    assert [start["resumed_from"] for start in starts] == [None, None]
    verdict = verify_ledger(directory.ledger.read()[0])
    assert (verdict.breach, verdict.steps) == (None, 10)


def test_what_one_rank_finds_damaged_all_pass_over(stream: dict[str, Path], tmp_path: Path) -> None:
    """Each rank of a sharded model reads its own file only, and so does not see the other's."""
    (tmp_path / "run.yaml").write_text(TEN_STEPS)
    train(resolved_run(tmp_path, stream, overrides=layout("sharded-2")))
    flip_a_byte(tmp_path / "runs" / "it" / folder_of(10, 1), "rank-1.safetensors")
    overrides = ["train_for=12 steps", *layout("sharded-2")]
    directory = train(resolved_run(tmp_path, stream, overrides=overrides))
    events = directory.events.read()[0]
    (passed,) = [event for event in events if event["event"] == "passed_over"]
    assert passed["reason"] == "rank-1.safetensors is damaged: wrong digest"
    assert [e["resumed_from"] for e in events if e["event"] == "started"] == [None, 5]
    verdict = verify_ledger(directory.ledger.read()[0])
    assert (verdict.breach, verdict.steps, verdict.redone) == (None, 12, 5)


SEVERAL = partial(
    pytest.param, marks=pytest.mark.long("the gate has whole to sharded, and back, of three ranks")
)


def layout(kind: str) -> list[str]:
    return [
        f"resources.accelerators=cpu:{kind[-1]}",
        f"shard={'node' if 'sharded' in kind else 'none'}",
    ]


def losses(directory: RunDirectory) -> list[float]:
    return [step["loss"] for step in directory.steps()]


@pytest.fixture(scope="module", params=[*map(SEVERAL, ["1", "2"]), "3", "sharded-2"])
def written(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    stream: dict[str, Path],
) -> Path:
    """A run by so many ranks of a node, whole or sharded."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "run.yaml").write_text(TEN_STEPS)
    train(resolved_run(folder, stream, overrides=layout(request.param)))
    return folder


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory, stream: dict[str, Path]) -> list[float]:
    """The losses of a run that is never interrupted."""
    folder = tmp_path_factory.mktemp("longer")
    (folder / "run.yaml").write_text(TEN_STEPS)
    return losses(train(resolved_run(folder, stream, overrides=["train_for=12 steps"])))


@pytest.mark.parametrize("reads", ["1", *map(SEVERAL, ["3", "sharded-2"]), "sharded-3"])
def test_any_number_of_ranks_resumes_what_any_other_wrote(
    written: Path, reads: str, longer: list[float], tmp_path: Path, stream: dict[str, Path]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(written, folder)
    overrides = ["train_for=12 steps", *layout(reads)]
    directory = train(resolved_run(folder, stream, overrides=overrides))
    starts = [event for event in directory.events.read()[0] if event["event"] == "started"]
    assert [start["resumed_from"] for start in starts] == [None, 10]
    assert losses(directory) == pytest.approx(longer, rel=1e-5)
    assert len(longer) == 12
