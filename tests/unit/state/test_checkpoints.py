"""A checkpoint is whole or it does not exist, a damaged one is named, the newest good one stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.clock import SystemClock
from headway.errors import Exit, NotFound
from headway.spec.run_file import KeepConfig, RunFile
from headway.spec.stepped_interval import SteppedInterval
from headway.state.chain import Chain, KeptCheckpoint
from headway.state.checkpoints import (
    MANIFEST,
    CheckpointManifest,
    FoundCheckpoint,
    StoredTensor,
    TensorChunk,
    Unusable,
    candidates,
    clean_up,
    drop,
    find_checkpoint,
    folder_of,
    found_folders,
    read_manifest,
    retained,
    saved_checkpoints,
    steps_saved,
    take_over,
    write_manifest,
)
from headway.state.run_directory import RunDirectory
from headway.state.stored_file import BlockDigests, StoredFile
from support.chains import begun, recorded, save_manifest

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
    return CheckpointManifest(**{**facts, **more})


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
    keep = more.pop("keep", None)
    folder = written(directory, step, generation, content)
    save_manifest(directory, described(step, generation, content, **more), keep)
    return folder


def reasons(directory: RunDirectory) -> list[tuple[int, int, str | None]]:
    return [
        (found.step, found.generation, seen.words if isinstance(seen, Unusable) else None)
        for found, seen in candidates(directory, Chain(directory).last())
    ]


# --- what is there


def test_what_is_saved_is_found_and_read(directory: RunDirectory) -> None:
    assert save(directory, 300) == "checkpoints/step-00000300.g000001"
    assert steps_saved(directory) == [300]
    found, manifest = find_checkpoint(directory)
    assert found == FoundCheckpoint(300, 1)
    assert manifest.scalars == described(300).scalars
    assert manifest.model_copy(update={"digest": ""}) == described(300)


@pytest.mark.trap(35)
def test_a_save_cut_short_never_existed(directory: RunDirectory) -> None:
    save(directory, 100)
    written(directory, 200, 1)
    write_manifest(directory.store, written(directory, 300, 1), described(300))
    assert steps_saved(directory) == [100], "the chain does not name the others"
    assert find_checkpoint(directory)[0] == FoundCheckpoint(100, 1)


def test_other_folders_are_no_saves(directory: RunDirectory) -> None:
    save(directory, 100)
    for odd in ("step-xyz", "step-300.g1", "step-00000300", ".step-00000300.g000001"):
        directory.store.write(f"checkpoints/{odd}/{MANIFEST}", b"{}")
    directory.store.write(f"checkpoints/step-00000300.g000001/deep/{MANIFEST}", b"{}")
    assert found_folders(directory) == [FoundCheckpoint(100, 1)]


def test_the_same_step_of_two_generations_are_two(directory: RunDirectory) -> None:
    """Nothing that was written is written over: the newer is tried first, the older stays."""
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
        "its manifest is missing",
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


@pytest.mark.parametrize("what", WRONG)
def test_a_damaged_one_is_passed_over_and_the_reason_said(
    directory: RunDirectory, what: str
) -> None:
    damage, says = WRONG[what]
    save(directory, 200)
    folder = save(directory, 300)
    damage(directory.store.path(folder))
    with pytest.raises(NotFound) as caught:
        find_checkpoint(directory, 300)
    assert says in caught.value.message
    assert caught.value.message.startswith("run it has no intact checkpoint:\n  " + folder)
    assert find_checkpoint(directory)[0] == FoundCheckpoint(200, 1)


def test_no_byte_of_a_manifest_can_be_flipped_unseen(directory: RunDirectory) -> None:
    folder = save(directory, 300)
    path = directory.store.path(f"{folder}/{MANIFEST}")
    content = path.read_bytes()
    meant = json.loads(content)
    for at in range(len(content)):
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        path.write_bytes(flipped)
        found = read_manifest(directory, 300, 1)
        assert isinstance(found, Unusable) or json.loads(flipped) == meant, flipped[
            at - 20 : at + 20
        ]


def test_a_manifest_has_a_digest_for_every_block() -> None:
    stored = in_blocks(CONTENT)
    assert len(stored.blocks) == 8
    for changes in ({"blocks": stored.blocks[1:]}, {"size": 8001}, {"block_bytes": 0}):
        with pytest.raises(ValidationError):
            StoredFile.model_validate({**stored.model_dump(), **changes})


def test_candidates_are_newest_first_each_with_its_reason(directory: RunDirectory) -> None:
    for step, generation in ((100, 1), (300, 1), (400, 2), (500, 3)):
        save(directory, step, generation)
    written(directory, 600, 3)
    directory.store.path(f"{folder_of(500, 3)}/{FILE}").write_bytes(b"")
    directory.store.write(f"{folder_of(400, 2)}/{MANIFEST}", b"{")
    assert reasons(directory) == [
        (500, 3, f"{FILE} has 0 bytes, expected 8000"),
        (
            400,
            2,
            "its manifest is damaged: Invalid JSON: EOF while parsing an object at line 1 column 1",
        ),
        (300, 1, None),
        (100, 1, None),
    ]
    assert steps_saved(directory) == [100, 300, 400, 500]
    assert find_checkpoint(directory)[0] == FoundCheckpoint(300, 1)


def test_another_manifest_than_the_one_that_was_saved_is_seen(directory: RunDirectory) -> None:
    """As when somebody copies an older one over it: whole in itself, and not this run's."""
    folder = save(directory, 300)
    write_manifest(directory.store, folder, described(300, position=1))
    assert reasons(directory) == [(300, 1, "its manifest is not the one that was recorded")]


def test_one_that_was_resumed_without_is_not_taken_even_by_its_step(
    directory: RunDirectory,
) -> None:
    save(directory, 300)
    save(directory, 400)
    begun(directory, 2, 300)
    assert steps_saved(directory) == [300]
    with pytest.raises(NotFound, match="run it has no checkpoint at step 400"):
        find_checkpoint(directory, 400)
    assert directory.store.size(f"{folder_of(400, 1)}/{MANIFEST}"), "its files stay for now"


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
        found = read_manifest(directory, 300, 1)
        assert isinstance(found, Unusable)
        assert found.words.startswith("its manifest is damaged: String should match pattern")


# --- a fork


def test_a_fork_begins_with_a_checkpoint_of_its_own(
    directory: RunDirectory, tmp_path: Path
) -> None:
    save(directory, 300)
    directory.store.write("model/config.json", b"config")
    directory.store.write("tokenizer/tokenizer.json", b"words")
    new = RunDirectory.create(tmp_path / "new", SystemClock())
    run = RunFile(version=1, seed=3)
    take_over(directory, *find_checkpoint(directory, 300), new, run, SystemClock())
    found, manifest = find_checkpoint(new)
    assert found == FoundCheckpoint(300, 0)
    assert (manifest.run, manifest.step, manifest.position) == ("new", 300, 4800)
    assert manifest.identity != "i"
    assert new.store.read("tokenizer/tokenizer.json") == b"words"
    begun(new, 1, 300)
    assert find_checkpoint(new)[0] == FoundCheckpoint(300, 0)
    directory.store.remove("")
    assert find_checkpoint(new)[0] == FoundCheckpoint(300, 0), "it needs the other no more"


# --- which ones stay


def kept(directory: RunDirectory) -> list[tuple[int, int]]:
    return sorted((found.step, found.generation) for found in found_folders(directory))


@settings(deadline=None, max_examples=30)  # a disk takes its time
@given(steps=st.sets(st.integers(0, 10**9), min_size=1, max_size=6), keep_last=st.integers(1, 8))
def test_retention_keeps_the_newest(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], keep_last: int
) -> None:
    directory = RunDirectory.create(tmp_path_factory.mktemp("runs") / "it", SystemClock())
    for step in sorted(steps):
        save(directory, step, content=b"little", keep=KeepConfig(last=keep_last, best=0))
    assert steps_saved(directory) == sorted(steps)[-keep_last:]
    assert find_checkpoint(directory)[0].step == max(steps)
    assert len(list(directory.store.path("checkpoints").iterdir())) == min(keep_last, len(steps))


def one(
    step: int, generation: int = 1, loss: float | None = None, sample: str = "all"
) -> KeptCheckpoint:
    return KeptCheckpoint(
        step=step, generation=generation, digest="d", validation_loss=loss, sample=sample
    )


def stay(keeps: list[KeptCheckpoint], keep: KeepConfig, **more: Any) -> list[int]:
    return [kept.step for kept in retained(keeps, keep, **more)]


def test_last_best_and_milestones() -> None:
    losses = {10: 3.0, 20: 2.0, 30: 1.0, 40: None, 50: 1.5, 60: 2.5, 70: 1.0, 80: None}
    keep = KeepConfig(last=1, best=2, every=SteppedInterval.parse("40 steps"))
    assert stay([one(step, loss=loss) for step, loss in losses.items()], keep) == [30, 40, 70, 80]


def test_milestones_of_several_intervals_late_ones_too() -> None:
    """A save that was due while another was being written is the milestone all the same."""
    every = SteppedInterval.parse(["10 steps until 40", "100 steps"])
    steps = [one(step) for step in (10, 20, 31, 35, 40, 50, 100, 150)]
    assert stay(steps, KeepConfig(last=1, best=0, every=every)) == [10, 20, 31, 40, 100, 150]


def test_six_hundred_milestones_stay() -> None:
    every = SteppedInterval.parse(
        ["10 steps until 100", "50 steps until 2k", "100 steps until 20k", "1k steps"]
    )
    steps = [step for step in range(1, 392_001) if every.is_due(step)]
    assert len(steps) == 600
    assert stay(list(map(one, steps)), KeepConfig(last=3, best=1, every=every)) == steps


def test_losses_of_other_samples_are_not_compared() -> None:
    """Each kind of evaluation has its best: a lower loss on other sequences is no better."""
    keeps = [one(step, loss=loss) for step, loss in {10: 1.5, 20: 1.0, 30: 1.2}.items()]
    new = {40: 3.0, 50: 2.0, 60: 2.5, 70: None}
    keeps += [one(step, loss=loss, sample="512 drawn") for step, loss in new.items()]
    assert stay(keeps, KeepConfig(last=1, best=1)) == [20, 50, 70]


def test_of_equal_losses_the_newest_is_the_best() -> None:
    keeps = [one(10, loss=1.0), one(20, loss=1.0), one(30)]
    assert stay(keeps, KeepConfig(last=1, best=1)) == [20, 30]


def test_an_unsettled_one_stays_and_pushes_out_nothing() -> None:
    """The others may turn out not to have that step: then only older ones count."""
    keeps = [one(10), one(20), one(30)]
    assert stay(keeps, KeepConfig(last=1, best=0), settled_step=20) == [20, 30]
    assert stay(keeps, KeepConfig(last=1, best=0), settled_step=30) == [30]


def test_a_step_saved_by_several_generations_counts_once() -> None:
    keeps = [one(100), one(200), one(300), one(300, 2), one(300, 3)]
    assert [each.name for each in retained(keeps, KeepConfig(last=2, best=0))] == [
        (200, 1),
        (300, 3),
    ]


def test_retention_reads_no_manifest(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = directory.store.read

    def noted(name: str) -> bytes:
        reads.extend([name] if name.endswith(MANIFEST) else [])
        return read(name)

    monkeypatch.setattr(directory.store, "read", noted)
    keep = KeepConfig(last=1, best=1, every=SteppedInterval.parse("10 steps"))
    for step in (10, 20, 25, 30):
        save(directory, step, validation_loss=1.0 / step, keep=keep)
    assert [step for step, _ in kept(directory)] == [10, 20, 30]
    assert reads == []


def test_one_that_was_resumed_without_stays_until_one_beyond_it_is_saved(
    directory: RunDirectory,
) -> None:
    """A fence alone deletes nothing: until then its files are what came furthest."""
    for step in (100, 200, 300, 400):
        save(directory, step, 1)
    chain = begun(directory, 2, 200)
    keep = KeepConfig(last=3, best=0)
    for step, there in ((210, [100, 200, 210, 300, 400]), (350, [200, 210, 350, 400])):
        folder = written(directory, step, 2)
        recorded(chain, write_manifest(directory.store, folder, described(step, 2)), keep)
        assert [at for at, _ in kept(directory)] == there


def test_what_killed_saves_left_does_not_fill_the_disk(directory: RunDirectory) -> None:
    chain = begun(directory, 2, 0)
    written(directory, 100, 1)
    written(directory, 200, 1)
    under_way = written(directory, 400, 2)
    killed = directory.store.path(f"{folder_of(250, 1)}/.rank-0.safetensors.partial-0123456789ab")
    killed.parent.mkdir()
    killed.write_bytes(b"half")
    folder = written(directory, 300, 2)
    kept = write_manifest(directory.store, folder, described(300, 2))
    recorded(chain, kept, KeepConfig())
    folders = sorted(item.name for item in directory.store.path("checkpoints").iterdir())
    assert folders == ["step-00000300.g000002", Path(under_way).name]


def test_what_a_newer_generation_writes_is_never_cleaned_up(directory: RunDirectory) -> None:
    """A leader that was thought dead cleans up while its successor saves."""
    chain = begun(directory, 1, 0)
    save(directory, 100)
    link = chain.own(1)
    save(directory, 100, 2)
    written(directory, 200, 2)
    clean_up(directory, link, 1)
    assert kept(directory) == [(100, 1), (100, 2), (200, 2)]


def test_a_damaged_manifest_is_left_for_a_look(directory: RunDirectory) -> None:
    keep = KeepConfig(last=2, best=0)
    save(directory, 200, keep=keep)
    directory.store.write(f"{save(directory, 300, keep=keep)}/{MANIFEST}", b"{")
    begun(directory, 2, 200)
    save(directory, 250, 2, keep=keep)
    assert kept(directory) == [(200, 1), (250, 2), (300, 1)]
    save(directory, 310, 2, keep=keep)
    assert kept(directory) == [(250, 2), (310, 2)]


def test_a_removal_cut_short_leaves_what_does_not_count(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing is what takes time: a machine that goes down in it leaves nothing that counts."""
    save(directory, 200)

    def crash(*_: object) -> None:
        raise InterruptedError("the machine goes down in the middle of it")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", crash)
        with pytest.raises(InterruptedError):
            save(directory, 300, keep=KeepConfig(last=1, best=0))
    assert directory.store.names(folder_of(200, 1)), "there is something left"
    assert [each.step for each in saved_checkpoints(directory)] == [300]
    save(directory, 400, keep=KeepConfig(last=1, best=0))
    assert kept(directory) == [(400, 1)]


def test_drop_takes_the_manifest_first(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    save(directory, 300)
    monkeypatch.setattr(directory.store, "remove", removed.append)
    drop(directory, 300, 1)
    assert removed == [f"{folder_of(300, 1)}/{MANIFEST}", folder_of(300, 1)]


LOSSES = st.none() | st.sampled_from([1.0, 2.0, 3.0])


@given(
    saves=st.dictionaries(
        st.tuples(st.integers(0, 12), st.integers(1, 3)), LOSSES, min_size=1, max_size=10
    ),
    last=st.integers(1, 4),
    best=st.integers(0, 2),
    every=st.none() | st.integers(1, 5),
)
def test_retention_by_its_rules(
    saves: dict[tuple[int, int], float | None], last: int, best: int, every: int | None
) -> None:
    keeps = [one(step, generation, loss) for (step, generation), loss in saves.items()]
    interval = SteppedInterval.parse(f"{every} steps") if every else None
    keep = KeepConfig(last=last, best=best, every=interval)
    stays = {each.name for each in retained(keeps, keep)}
    good = sorted(saves)
    assert good[-1] in stays, "the newest always stays"
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
            assert key in stays
        elif not may_be_best:
            assert key not in stays
    assert len(stays) <= last + best + (max(steps, default=0) // every if every else 0)
    assert sum(saves[key] is not None for key in stays) >= min(best, len(losses))
