"""A checkpoint is whole or it does not exist, a damaged one is named, the newest good one stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.clock import SystemClock
from headway.errors import Exit, NotFound
from headway.spec.run_file import KeepConfig, RunFile
from headway.spec.stepped_interval import SteppedInterval
from headway.state.checkpoints import (
    MANIFEST,
    CheckpointManifest,
    FoundCheckpoint,
    Retention,
    StoredTensor,
    TensorChunk,
    candidates,
    counts,
    drop,
    fenced,
    find_checkpoint,
    folder_of,
    found_checkpoints,
    read_manifest,
    steps_saved,
    superseded,
    take_over,
    write_manifest,
)
from headway.state.generations import GenerationStart, begin_generation
from headway.state.run_directory import RunDirectory
from headway.state.stored_file import BlockDigests, StoredFile, WholeFile

CONTENT = b"weights " * 1000
FILE = "rank-0.safetensors"


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "it", SystemClock())


def in_blocks(content: bytes) -> StoredFile:
    digests = BlockDigests(1000)
    digests.update(content)
    return digests.stored()


def described(step: int, generation: int = 1, content: bytes = CONTENT, **more: Any) -> Any:
    facts: dict[str, Any] = {
        "step": step,
        "generation": generation,
        "run": "it",
        "created": "2026-11-15T01:37:52.123Z",
        "headway": "0.1.0",
        "identity": "i",
        "data_digest": "d",
        "position": step * 16,
        "validation_loss": None,
        "scalars": {"loss_scale": [1.0, 0], "guard": {"history": [2.5, 1e-7], "mean": None}},
        "tensors": {
            "model/w": StoredTensor(
                dtype="U8",
                shape=(len(content),),
                chunks=(TensorChunk(file=FILE, start=0, rows=len(content), offset=0),),
            )
        },
        "files": {FILE: in_blocks(content), "rank-1.safetensors": in_blocks(b"moments")},
    }
    if more.get("version") == 1:
        facts["files"] = {FILE: whole(content), "rank-1.safetensors": whole(b"moments")}
    return CheckpointManifest(**{**facts, **more})


def whole(content: bytes) -> WholeFile:
    return WholeFile(size=len(content), xxh3=xxhash.xxh3_128_hexdigest(content))


def written(directory: RunDirectory, step: int, generation: int, content: bytes = CONTENT) -> str:
    """A save just before its manifest."""
    folder = folder_of(step, generation)
    path = directory.store.path(folder)
    path.mkdir(parents=True)
    for name, data in ((FILE, content), ("rank-1.safetensors", b"moments"), ("rank-0.json", b"{}")):
        (path / name).write_bytes(data)
    return folder


def save(directory: RunDirectory, step: int, generation: int = 1, **more: Any) -> str:
    content = more.pop("content", CONTENT)
    folder = written(directory, step, generation, content)
    write_manifest(directory.store, folder, described(step, generation, content, **more))
    return folder


def begin(directory: RunDirectory, *first_steps: int) -> None:
    for number, step in enumerate(first_steps, start=1):
        begin_generation(directory, number, step, 1, SystemClock().now())


def reasons(directory: RunDirectory) -> list[tuple[int, int, str | None]]:
    return [
        (found.step, found.generation, manifest if isinstance(manifest, str) else None)
        for found, manifest in candidates(directory)
    ]


# --- what is there


def test_what_is_saved_is_found_and_read(directory: RunDirectory) -> None:
    assert save(directory, 300) == "checkpoints/step-00000300.g000001"
    assert steps_saved(directory) == [300]
    found, manifest = find_checkpoint(directory)
    assert found == FoundCheckpoint(300, 1)
    assert manifest.scalars == described(300).scalars
    assert manifest.model_copy(update={"digest": ""}) == described(300)
    assert counts(found, directory)


@pytest.mark.trap(35)
def test_a_save_cut_short_never_existed(directory: RunDirectory) -> None:
    save(directory, 100)
    written(directory, 200, 1)
    assert steps_saved(directory) == [100]
    assert find_checkpoint(directory)[0] == FoundCheckpoint(100, 1)
    assert not counts(FoundCheckpoint(200, 1, has_manifest=False), directory)


def test_a_folder_without_a_manifest_does_not_count(directory: RunDirectory) -> None:
    save(directory, 100)
    directory.store.remove(f"{save(directory, 200)}/{MANIFEST}")
    for odd in ("step-xyz", "step-300.g1", "step-00000300", ".step-00000300.g000001"):
        directory.store.write(f"checkpoints/{odd}/{MANIFEST}", b"{}")
    directory.store.write(f"checkpoints/step-00000300.g000001/deep/{MANIFEST}", b"{}")
    assert found_checkpoints(directory) == [FoundCheckpoint(100, 1)]


def test_the_same_step_of_two_generations_are_two(directory: RunDirectory) -> None:
    """Nothing that was written is written over: the newer is tried first, the older stays."""
    begin(directory, 0, 300)
    older = save(directory, 300, 1)
    newer = save(directory, 300, 2, content=b"newer")
    assert steps_saved(directory) == [300]
    assert find_checkpoint(directory)[0] == FoundCheckpoint(300, 2)
    directory.store.remove(newer)
    assert find_checkpoint(directory)[0].folder == older


def test_by_step_or_the_newest(directory: RunDirectory) -> None:
    with pytest.raises(NotFound, match="run it has no checkpoint yet"):
        find_checkpoint(directory)
    for step in (300, 100, 123456789):
        save(directory, step)
    assert find_checkpoint(directory)[0].folder == "checkpoints/step-123456789.g000001"
    assert find_checkpoint(directory, 100)[0].folder == "checkpoints/step-00000100.g000001"
    with pytest.raises(NotFound) as caught:
        find_checkpoint(directory, 200)
    assert (caught.value.exit_code, caught.value.hint) == (
        Exit.NOT_FOUND,
        "steps with a checkpoint: 100, 300, 123456789",
    )


# --- what is wrong with it

Damage = Callable[[Path], object]


def flip(name: str, at: int) -> Damage:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at] ^= 1
        (folder / name).write_bytes(data)

    return damage


def edit(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps({**manifest, **changes}))

    return damage


WRONG: dict[str, tuple[Damage, str]] = {
    "manifest missing": (
        lambda folder: (folder / MANIFEST).unlink(),
        "it has no manifest: the save was not finished",
    ),
    "manifest empty": (lambda folder: (folder / MANIFEST).write_text(""), "manifest is damaged"),
    "manifest cut": (
        lambda folder: (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-20]),
        "its manifest is damaged",
    ),
    "manifest no mapping": (lambda folder: (folder / MANIFEST).write_text("[]"), "is damaged"),
    "manifest of another version": (edit(version=3), "its manifest is damaged"),
    "manifest of another step": (edit(step=299), "its manifest belongs to step 299, generation 1"),
    "manifest of another generation": (
        edit(generation=7),
        "its manifest belongs to step 300, generation 7",
    ),
    "another position": (edit(position=1), "its manifest is damaged: wrong digest"),
    "another scalar": (edit(scalars={}), "its manifest is damaged: wrong digest"),
    "manifest without its digest": (edit(digest=""), "its manifest is damaged: wrong digest"),
    "file missing": (lambda folder: (folder / FILE).unlink(), f"{FILE} is missing"),
    "file cut": (
        lambda folder: (folder / FILE).write_bytes(CONTENT[:5]),
        f"{FILE} has 5 bytes, expected 8000",
    ),
    "file longer": (
        lambda folder: (folder / FILE).write_bytes(CONTENT + b"x"),
        f"{FILE} has 8001 bytes, expected 8000",
    ),
    "first byte flipped": (flip(FILE, 0), f"{FILE} is damaged: wrong digest"),
    "last byte flipped": (flip(FILE, -1), f"{FILE} is damaged: wrong digest"),
    "a byte of the other file": (
        flip("rank-1.safetensors", 3),
        "rank-1.safetensors is damaged: wrong digest",
    ),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("what", WRONG)
def test_a_damaged_one_is_passed_over_and_the_reason_said(
    directory: RunDirectory, what: str, version: int
) -> None:
    damage, says = WRONG[what]
    folder = save(directory, 300, version=version)
    damage(directory.store.path(folder))
    with pytest.raises(NotFound) as caught:
        find_checkpoint(directory)
    assert says in caught.value.message
    assert caught.value.message.startswith("run it has no intact checkpoint:\n  " + folder)
    save(directory, 200)
    assert find_checkpoint(directory)[0] == FoundCheckpoint(200, 1)
    with pytest.raises(NotFound, match="no intact checkpoint"):
        find_checkpoint(directory, 300)


@pytest.mark.parametrize("version", [1, 2])
def test_no_byte_of_a_manifest_can_be_flipped_unseen(directory: RunDirectory, version: int) -> None:
    folder = save(directory, 300, version=version)
    path = directory.store.path(f"{folder}/{MANIFEST}")
    content = path.read_bytes()
    meant = json.loads(content)
    for at in range(len(content)):
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        path.write_bytes(flipped)
        found = read_manifest(directory, FoundCheckpoint(300, 1))
        assert isinstance(found, str) or json.loads(flipped) == meant, flipped[at - 20 : at + 20]


def test_a_manifest_has_a_digest_for_every_block() -> None:
    stored = in_blocks(CONTENT)
    assert len(stored.blocks) == 8
    for changes in ({"blocks": stored.blocks[1:]}, {"size": 8001}, {"block_bytes": 0}):
        with pytest.raises(ValidationError):
            StoredFile.model_validate({**stored.model_dump(), **changes})


def test_candidates_are_newest_first_each_with_its_reason(directory: RunDirectory) -> None:
    begin(directory, 0, 300, 400)
    for step, generation in ((100, 1), (300, 1), (350, 1), (400, 2), (450, 2), (500, 3)):
        save(directory, step, generation)
    written(directory, 600, 3)
    directory.store.path(f"{folder_of(500, 3)}/{FILE}").write_bytes(b"")
    directory.store.write(f"{folder_of(400, 2)}/{MANIFEST}", b"{")
    assert reasons(directory) == [
        (600, 3, "it has no manifest: the save was not finished"),
        (500, 3, f"{FILE} has 0 bytes, expected 8000"),
        (450, 2, "generation 2 wrote it, but generation 3 resumed from step 400 without it"),
        (
            400,
            2,
            "its manifest is damaged: Invalid JSON: EOF while parsing an object at line 1 column 1",
        ),
        (350, 1, "generation 1 wrote it, but generation 2 resumed from step 300 without it"),
        (300, 1, None),
        (100, 1, None),
    ]
    assert steps_saved(directory) == [100, 300, 400, 500]
    assert find_checkpoint(directory)[0] == FoundCheckpoint(300, 1)


def test_a_fenced_one_is_not_taken_even_by_its_step(directory: RunDirectory) -> None:
    begin(directory, 0, 300)
    save(directory, 300)
    save(directory, 400)
    assert steps_saved(directory) == [300]
    assert not counts(FoundCheckpoint(400, 1), directory)
    with pytest.raises(NotFound, match="generation 2 resumed from step 300 without it"):
        find_checkpoint(directory, 400)


@pytest.mark.parametrize(
    "name",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        "../rank-0.safetensors",
        "rank-0.safetensors/../x",
        "rank-0.safetensors\n",
        "sub/rank-0.safetensors",
        "rank-.safetensors",
        "model.pt",
        "",
    ],
)
def test_a_manifest_cannot_point_outside_its_folder(directory: RunDirectory, name: str) -> None:
    folder = save(directory, 300)
    path = directory.store.path(f"{folder}/{MANIFEST}")
    manifest = json.loads(path.read_text())
    for changes in (
        {"files": {name: manifest["files"][FILE]}},
        {"tensors": {"model/w": {**manifest["tensors"]["model/w"], "chunks": [
            {"file": name, "start": 0, "rows": 1, "offset": 0}]}}},
    ):  # fmt: skip
        path.write_text(json.dumps({**manifest, **changes}))
        found = read_manifest(directory, FoundCheckpoint(300, 1))
        assert isinstance(found, str)
        assert found.startswith("its manifest is damaged: String should match pattern")


# --- a fork


@pytest.mark.parametrize("version", [1, 2])
def test_a_fork_begins_with_a_checkpoint_of_its_own(
    directory: RunDirectory, tmp_path: Path, version: int
) -> None:
    begin(directory, 0, 300)
    save(directory, 300, version=version)
    directory.store.write("model/config.json", b"config")
    directory.store.write("tokenizer/tokenizer.json", b"words")
    new = RunDirectory.create(tmp_path / "new", SystemClock())
    take_over(directory, *find_checkpoint(directory, 300), new, RunFile(version=1, seed=3))
    found, manifest = find_checkpoint(new)
    assert found == FoundCheckpoint(300, 0)
    assert (manifest.run, manifest.step, manifest.position) == ("new", 300, 4800)
    assert manifest.identity != "i"
    assert new.store.read("tokenizer/tokenizer.json") == b"words"
    begin(new, 300)
    assert find_checkpoint(new)[0] == FoundCheckpoint(300, 0)
    directory.store.remove("")
    assert find_checkpoint(new)[0] == FoundCheckpoint(300, 0), "it needs the other no more"


# --- which ones stay


def kept(directory: RunDirectory) -> list[tuple[int, int]]:
    return sorted((found.step, found.generation) for found in found_checkpoints(directory))


@settings(deadline=None, max_examples=30)  # a disk takes its time
@given(steps=st.sets(st.integers(0, 10**9), min_size=1, max_size=6), keep_last=st.integers(1, 8))
def test_retention_keeps_the_newest(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], keep_last: int
) -> None:
    directory = RunDirectory.create(tmp_path_factory.mktemp("runs") / "it", SystemClock())
    for step in steps:
        save(directory, step, content=b"little")
    Retention(directory).apply(KeepConfig(last=keep_last, best=0), 1)
    assert steps_saved(directory) == sorted(steps)[-keep_last:]
    assert find_checkpoint(directory)[0].step == max(steps)
    assert len(list(directory.store.path("checkpoints").iterdir())) == min(keep_last, len(steps))


def test_last_best_and_milestones(directory: RunDirectory) -> None:
    losses = {10: 3.0, 20: 2.0, 30: 1.0, 40: None, 50: 1.5, 60: 2.5, 70: 1.0, 80: None}
    for step, loss in losses.items():
        save(directory, step, validation_loss=loss)
    keep = KeepConfig(last=1, best=2, every=SteppedInterval.parse("40 steps"))
    Retention(directory).apply(keep, 1)
    assert [step for step, _ in kept(directory)] == [30, 40, 70, 80]


def test_milestones_of_several_intervals_late_ones_too(directory: RunDirectory) -> None:
    """A save that was due while another was being written is the milestone all the same."""
    for step in (10, 20, 31, 35, 40, 50, 100, 150):
        save(directory, step)
    every = SteppedInterval.parse(["10 steps until 40", "100 steps"])
    Retention(directory).apply(KeepConfig(last=1, best=0, every=every), 1)
    assert [step for step, _ in kept(directory)] == [10, 20, 31, 40, 100, 150]


def test_no_manifest_is_read_twice(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = directory.store.read

    def noted(name: str) -> bytes:
        reads.extend([name] if name.endswith(MANIFEST) else [])
        return read(name)

    monkeypatch.setattr(directory.store, "read", noted)
    keep = KeepConfig(last=1, best=1, every=SteppedInterval.parse("10 steps"))
    retention = Retention(directory)
    for step in (10, 20, 25, 30):
        save(directory, step, validation_loss=1.0 / step)
        retention.apply(keep, 1)
    assert [step for step, _ in kept(directory)] == [10, 20, 30]
    assert len(reads) == len(set(reads)) == 4


def test_six_hundred_milestones_stay() -> None:
    every = SteppedInterval.parse(
        ["10 steps until 100", "50 steps until 2k", "100 steps until 20k", "1k steps"]
    )
    steps = [step for step in range(1, 392_001) if every.is_due(step)]
    assert len(steps) == 600
    manifests = [described(step, 1) for step in steps]
    assert superseded(manifests, [], KeepConfig(last=3, best=1, every=every)) == []


def test_losses_of_other_samples_are_not_compared(directory: RunDirectory) -> None:
    """Each kind of evaluation has its best: a lower loss on other sequences is no better."""
    scalars = described(1).scalars
    for step, loss in {10: 1.5, 20: 1.0, 30: 1.2}.items():
        save(directory, step, validation_loss=loss)
    for step, loss in {40: 3.0, 50: 2.0, 60: 2.5, 70: None}.items():
        new = {**scalars, "evaluation": "512 sequences drawn by seed 3"}
        save(directory, step, validation_loss=loss, scalars=new)
    Retention(directory).apply(KeepConfig(last=1, best=1), 1)
    assert [step for step, _ in kept(directory)] == [20, 50, 70]


def test_of_equal_losses_the_newest_is_the_best(directory: RunDirectory) -> None:
    for step in (10, 20, 30):
        save(directory, step, validation_loss=1.0 if step < 30 else None)
    Retention(directory).apply(KeepConfig(last=1, best=1), 1)
    assert [step for step, _ in kept(directory)] == [20, 30]


def test_what_does_not_count_pushes_out_nothing(directory: RunDirectory) -> None:
    """A generation that was thought dead wrote on; the good ones are the others."""
    begin(directory, 0, 200)
    for step, generation in ((100, 1), (200, 1), (300, 1), (400, 1), (210, 2)):
        save(directory, step, generation, validation_loss=step)
    Retention(directory).apply(KeepConfig(last=2, best=0), 2)
    assert kept(directory) == [(200, 1), (210, 2)]


def test_a_step_saved_by_several_generations_counts_once(directory: RunDirectory) -> None:
    begin(directory, 0, 300, 300)
    for step, generation in ((100, 1), (200, 1), (300, 1), (300, 2), (300, 3)):
        save(directory, step, generation)
    Retention(directory).apply(KeepConfig(last=2, best=0), 3)
    assert kept(directory) == [(200, 1), (300, 3)]


def test_what_killed_saves_left_does_not_fill_the_disk(directory: RunDirectory) -> None:
    begin(directory, 0, 0)
    written(directory, 100, 1)
    written(directory, 200, 1)
    save(directory, 300, 2)
    under_way = written(directory, 400, 2)
    killed = directory.store.path(f"{folder_of(250, 1)}/.rank-0.safetensors.partial-0123456789ab")
    killed.parent.mkdir()
    killed.write_bytes(b"half")
    Retention(directory).apply(KeepConfig(), 2)
    folders = sorted(item.name for item in directory.store.path("checkpoints").iterdir())
    assert folders == ["step-00000300.g000002", Path(under_way).name]


def test_a_damaged_manifest_is_left_for_a_look_while_it_may_matter(directory: RunDirectory) -> None:
    begin(directory, 0)
    save(directory, 200)
    directory.store.write(f"{save(directory, 300)}/{MANIFEST}", b"{")
    Retention(directory).apply(KeepConfig(last=1), 1)
    assert kept(directory) == [(200, 1), (300, 1)], "nor does it push out a good one"
    begin_generation(directory, 2, 200, 1, SystemClock().now())
    save(directory, 250, 2)
    Retention(directory).apply(KeepConfig(last=2), 2)
    assert kept(directory) == [(200, 1), (250, 2)]


def test_a_removal_cut_short_leaves_no_checkpoint(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing is what takes time: a machine that goes down in it leaves nothing that counts."""
    save(directory, 200)
    save(directory, 300)

    def crash(*_: object) -> None:
        raise InterruptedError("the machine goes down in the middle of it")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", crash)
        with pytest.raises(InterruptedError):
            drop(directory, 300, 1)
    assert directory.store.names(folder_of(300, 1)), "there is something left"
    assert steps_saved(directory) == [200]
    assert find_checkpoint(directory)[0] == FoundCheckpoint(200, 1)


LOSSES = st.none() | st.sampled_from([1.0, 2.0, 3.0])


@given(
    saves=st.dictionaries(
        st.tuples(st.integers(0, 12), st.integers(1, 3)), LOSSES, min_size=1, max_size=10
    ),
    first_steps=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    last=st.integers(1, 4),
    best=st.integers(0, 2),
    every=st.none() | st.integers(1, 5),
)
def test_retention_by_its_rules(
    saves: dict[tuple[int, int], float | None],
    first_steps: list[int],
    last: int,
    best: int,
    every: int | None,
) -> None:
    known = [
        GenerationStart(generation=number, first_step=step, workers=1, began="")
        for number, step in enumerate(first_steps, start=1)
    ]
    manifests = [described(s, g, validation_loss=loss) for (s, g), loss in saves.items()]
    interval = SteppedInterval.parse(f"{every} steps") if every else None
    keep = KeepConfig(last=last, best=best, every=interval)
    gone = {(m.step, m.generation) for m in superseded(manifests, known, keep)}
    stay = set(saves) - gone
    good = sorted(key for key in saves if not fenced(FoundCheckpoint(*key), known))
    assert stay <= set(good), "none stays that does not count"
    if good:
        assert good[-1] in stay, "the newest good one always stays"
    newest = {step: (step, generation) for step, generation in good}
    steps = sorted(newest)
    losses = sorted(loss for key in newest.values() if (loss := saves[key]) is not None)
    for step in steps:
        key, loss = newest[step], saves[newest[step]]
        is_last = step in steps[-last:]
        # The first one since a step that was due: a save may have come late.
        is_milestone = (
            every is not None
            and step >= every
            and not any(step // every * every <= other < step for other in steps)
        )
        may_be_best = loss is not None and loss in losses[:best]
        if is_last or is_milestone:
            assert key in stay
        elif not may_be_best:
            assert key not in stay
    assert len(stay) <= last + best + (max(steps, default=0) // every if every else 0)
    assert sum(saves[key] is not None for key in stay) >= min(best, len(losses))
