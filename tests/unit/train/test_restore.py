"""Going on from the newest good checkpoint: the very same state, or words about why not."""

from __future__ import annotations

import errno
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headway.clock import SystemClock
from headway.errors import BadInput, PeerLost
from headway.state import stored_file
from headway.state.chain import Chain, TakenOver
from headway.state.checkpoints import (
    MANIFEST,
    CheckpointManifest,
    StoredTensor,
    TensorChunk,
    Unusable,
    find_checkpoint,
    folder_of,
    read_manifest,
    steps_saved,
)
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from headway.train import restore, safetensors_file
from headway.train.collectives import WorkerGroup
from headway.train.loop import train
from headway.train.outages import StoreLost, outage_restarts
from headway.train.read_rows import SharedRows, WantedRows
from headway.train.restore import VISIBLE_SECONDS, load_weights
from headway.train.world import RankPlacement, World
from support.chains import TIME
from support.clock import Patient
from support.fake_s3 import fake_s3
from support.little import Little
from support.together import Died, outcomes, together


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, list):
        return isinstance(other, list) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def saved(directory: RunDirectory, *steps: int) -> Little:
    """A first start that saved at these steps."""
    first = Little(directory)
    first.begin()
    for step in steps:
        first.advance(step - first.train.step)
        first.save()
    return first


def test_a_restored_worker_continues_bit_for_bit(directory: RunDirectory) -> None:
    first = saved(directory, 3, 5)
    second = Little(directory, 2)
    assert second.restore() == 5
    assert same(second.state(), first.state())
    first.advance(4)
    second.advance(4)
    assert same(second.state(), first.state()), "to the last bit"
    assert second.events("passed_over") == []


def test_nothing_was_ever_saved(directory: RunDirectory) -> None:
    assert Little(directory).restore() is None


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte flipped": (
        lambda folder: _flip(folder / "rank-0.safetensors"),
        "rank-0.safetensors is damaged: wrong digest",
    ),
    "cut": (lambda folder: _cut(folder / "rank-0.safetensors"), "bytes, expected"),
    "manifest damaged": (lambda folder: _cut(folder / MANIFEST), "its manifest is damaged"),
    "manifest changed": (
        lambda folder: (folder / MANIFEST).write_text(
            (folder / MANIFEST).read_text().replace('"position": 40', '"position": 48')
        ),
        "its manifest is damaged: wrong digest",
    ),
}


def _flip(path: Path, byte: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_one_is_passed_over_in_one_line(directory: RunDirectory, what: str) -> None:
    damage, says = DAMAGE[what]
    saved(directory, 3, 5)
    damage(directory.store.path(folder_of(5, 1)))
    second = Little(directory, 2)
    assert second.restore() == 3
    (event,) = second.events("passed_over")
    assert event["checkpoint"] == "step-00000005.g000001"
    assert says in event["reason"]
    assert "\n" not in event["reason"]


@pytest.mark.parametrize("step", [0, 3])
def test_nothing_is_left_of_a_checkpoint_that_was_passed_over(
    directory: RunDirectory, step: int
) -> None:
    """Its last tensor is damaged: all others had been loaded by then."""
    first = Little(directory)
    first.begin()
    first.advance(step)
    first.save()
    expected = first.state()
    first.advance(2)
    first.save()
    _flip(directory.store.path(f"{folder_of(step + 2, 1)}/rank-0.safetensors"))
    second = Little(directory, 2)
    assert second.restore() == step
    assert same(second.state(), expected)


def test_each_byte_is_read_once(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(directory, 3)
    read: list[tuple[str, int, int]] = []
    read_into = Store.read_into

    def note(self: Store, name: str, start: int, places: list[memoryview]) -> int:
        read.append((name, start, sum(map(len, places))))
        return read_into(self, name, start, places)

    monkeypatch.setattr(Store, "read_into", note)
    assert Little(directory, 2).restore() == 3
    file = f"{folder_of(3, 1)}/rank-0.safetensors"
    assert read == [(file, 0, directory.store.size(file))]


def in_company(directory: RunDirectory, num_workers: int) -> list[Little]:
    """Workers of one group that restore together."""

    def work(group: WorkerGroup) -> Little:
        rank, size = group.rank, group.size
        placement = RankPlacement(torch.device("cpu"))
        one = Little(directory, world=World(rank, size, 2, placement, group))
        assert one.restore() == 3
        return one

    return together(num_workers, work)


@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_together_they_read_each_byte_once(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    """And each has all of it."""
    monkeypatch.setattr(stored_file, "READ_BYTES", 100)
    monkeypatch.setattr(stored_file, "BLOCK_BYTES", 50)
    monkeypatch.setattr(safetensors_file, "BLOCK_BYTES", 50)
    first = saved(directory, 3)
    read: Counter[int] = Counter()
    readers = set()
    read_into = Store.read_into

    def note(self: Store, name: str, start: int, places: list[memoryview]) -> int:
        read.update(range(start, start + sum(map(len, places))))
        readers.add(start // 100)
        return read_into(self, name, start, places)

    monkeypatch.setattr(Store, "read_into", note)
    workers = in_company(directory, num_workers)
    for worker in workers:
        assert same(worker.state(), first.state())
    size = directory.store.size(f"{folder_of(3, 1)}/rank-0.safetensors")
    assert size > 500
    assert read.keys() <= set(range(size))
    assert set(read.values()) == {1}
    for worker in workers:
        worker.advance(2)
        assert same(worker.state(), workers[0].state())


@pytest.mark.parametrize("num_readers", [1, 2])
def test_a_manifest_that_promises_more_rows_than_its_file_has_is_no_state(
    directory: RunDirectory, num_readers: int
) -> None:
    saved(directory, 3)
    found, manifest = find_checkpoint(directory)
    file = manifest.files["rank-0.safetensors"]
    chunk = TensorChunk(file="rank-0.safetensors", start=0, rows=8, offset=file.size - 16)
    stored = StoredTensor(dtype="F32", shape=(8,), chunks=(chunk,))
    wanted = [WantedRows(torch.zeros(8), 0, stored)]
    rows = SharedRows(wanted, manifest.files, directory.store, found.folder, 0, num_readers)
    with pytest.raises(AssertionError, match="ends early"):
        rows.read_share()


@pytest.mark.parametrize("byte", [-1, -100, -250])
def test_what_one_finds_damaged_nobody_takes(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, byte: int
) -> None:
    """Only one of them reads it. All go back to the one before."""
    monkeypatch.setattr(stored_file, "READ_BYTES", 100)
    monkeypatch.setattr(safetensors_file, "BLOCK_BYTES", 50)
    first = Little(directory)
    first.begin()
    first.advance(3)
    first.save()
    expected = first.state()
    first.advance(2)
    first.save()
    _flip(directory.store.path(f"{folder_of(5, 1)}/rank-0.safetensors"), byte)
    for worker in in_company(directory, 3):
        assert same(worker.state(), expected)


def test_one_that_cannot_read_does_not_hold_up_the_others(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(directory, 3)
    monkeypatch.setattr(stored_file, "READ_BYTES", 100)
    readers = threading.local()
    read_rows_into = SharedRows.read_share

    def fails_on_one(self: SharedRows) -> None:
        if readers.rank == 1:
            raise OSError(errno.ESTALE, "the server has forgotten it")
        read_rows_into(self)

    monkeypatch.setattr(SharedRows, "read_share", fails_on_one)

    def work(group: WorkerGroup) -> Exception | None:
        readers.rank = group.rank
        placement = RankPlacement(torch.device("cpu"))
        one = Little(directory, world=World(group.rank, group.size, 2, placement, group))
        try:
            one.restore()
        except OSError as error:
            raise Died from error  # its process ends
        return None

    found = outcomes(3, work)
    assert isinstance(found.pop(1), Died)
    assert all(isinstance(one, PeerLost) for one in found), found


@pytest.mark.parametrize("what", DAMAGE)
def test_when_none_is_good_it_does_not_begin_anew(directory: RunDirectory, what: str) -> None:
    """Weeks of work may be mended by hand; a start from nothing would let go of them."""
    damage, says = DAMAGE[what]
    saved(directory, 5)
    damage(directory.store.path(folder_of(5, 1)))
    with pytest.raises(BadInput) as caught:
        Little(directory, 2).restore()
    assert caught.value.message.startswith("run it has no usable checkpoint:\n")
    assert "\n  checkpoints/step-00000005.g000001: " in caught.value.message
    assert says in caught.value.message
    assert steps_saved(directory) == [5], "and it is still there"


def test_saves_that_never_ended_are_no_reason_to_refuse(directory: RunDirectory) -> None:
    first = saved(directory, 3)
    directory.store.write(f"{folder_of(5, 1)}/rank-0.safetensors", b"half")
    second = Little(directory, 2)
    assert second.restore() == 3
    assert second.events("passed_over") == []
    assert same(second.state(), first.state())


@pytest.mark.parametrize("gone", ["rank-0.safetensors", MANIFEST, ""])
def test_what_was_saved_and_is_not_there_is_asked_for(directory: RunDirectory, gone: str) -> None:
    """A folder that is not mounted yet: to begin without it would delete what is in it later."""
    saved(directory, 3, 5)
    directory.store.remove(f"{folder_of(5, 1)}/{gone}".rstrip("/"))
    with pytest.raises(BadInput) as caught:
        Little(directory, 2).restore()
    assert caught.value.message.startswith("run it: step 5 was saved, but of ")
    assert caught.value.message.endswith("is missing")
    assert caught.value.hint == (
        "mount or restore that folder, and run the same command; to go on from step 3 as another "
        "run: headway fork it@3 it-2"
    )
    directory.store.remove("checkpoints")
    with pytest.raises(BadInput) as caught:
        Little(directory, 2).restore()
    assert str(caught.value.hint).endswith("to start another run: headway run --set name=it-2")
    assert steps_saved(directory) == [3, 5], "and nothing is forgotten"


def test_checkpoints_of_which_the_chain_knows_nothing_are_not_begun_over(
    directory: RunDirectory,
) -> None:
    saved(directory, 3)
    directory.store.remove("chain")
    with pytest.raises(BadInput, match=r"chain does not name checkpoints/step-00000003.g000001"):
        Little(directory, 1).restore()


def test_what_a_generation_writes_after_it_was_replaced_does_not_count(
    directory: RunDirectory,
) -> None:
    first = saved(directory, 3)
    second = Little(directory, 2)
    assert second.restore() == 3
    second.begin()
    first.advance(6)  # thought dead, and saves
    first.save()
    with pytest.raises(PeerLost, match="generation 2 has taken the place of 1"):
        first.saver.require_owner()
    assert first.saver.failures == 0
    third = Little(directory, 3)
    assert third.restore() == 3
    assert third.events("passed_over") == []


def test_a_run_that_was_started_elsewhere_ends_here(directory: RunDirectory) -> None:
    """Whether the other one has saved since, or only started."""
    first = saved(directory, 3)
    Chain(directory, "another").start(TIME)
    first.advance(2)
    first.save()
    with pytest.raises(TakenOver, match="run it was taken over by"):
        first.saver.require_owner()
    with pytest.raises(TakenOver):
        first.saver.save_now(first.train, None)
    assert steps_saved(directory) == [3]
    assert not list(directory.store.path("checkpoints").glob("step-00000005*")), "it left nothing"


def test_one_of_other_settings_is_passed_over(directory: RunDirectory) -> None:
    saved(directory, 3)
    other = Little(directory, 1, run={"seed": 4})
    other.advance(5)
    other.save()
    second = Little(directory, 2)
    assert second.restore() == 3
    assert [e["reason"] for e in second.events("passed_over")] == [
        "it was written with different settings"
    ]
    with pytest.raises(BadInput, match="it was written with different settings"):
        Little(directory, 3, run={"seed": 5}).restore()


def test_a_run_goes_on_only_with_the_same_data(directory: RunDirectory) -> None:
    saved(directory, 3)
    second = Little(directory, 2, data="otherwise prepared")
    with pytest.raises(BadInput, match=r"trained on different data \(data\) than prepared has"):
        second.restore()


def test_operation_may_change(directory: RunDirectory) -> None:
    saved(directory, 3)
    run = {"checkpoint": {"every": "5 steps"}, "train_for": "9 steps", "track": []}
    assert Little(directory, 2, run=run).restore() == 3


def test_a_store_that_fails_gives_up_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error on the way says nothing about the file: the older one must not be taken for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3() as s3:
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        saved(directory, 3, 5)
        read = s3.cat_file

        def fail(self: object, path: str, **range_: int) -> bytes:
            if path.endswith("g000001/rank-0.safetensors"):
                raise OSError("503 slow down")
            return bytes(read(self, path, **range_))

        s3.cat_file = fail  # type: ignore[method-assign, assignment]
        second = Little(directory, 2)
        with pytest.raises(OSError, match="503 slow down"):
            second.restore()
        with pytest.raises(StoreLost, match="503 slow down"):
            train(*starting(second))  # the launcher starts a successor, which retries
        s3.cat_file = read  # type: ignore[method-assign]
        assert second.restore() == 5


def test_nobody_counts_as_a_holder_before_the_model_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the others would continue without the worker that was to describe it, and nobody
    would."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3() as s3:
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        saved(directory, 3)
        write = s3.pipe_file

        def fail(self: object, path: str, *rest: Any, **options: Any) -> Any:
            if path.endswith("tokenizer/tokenizer.json"):
                raise OSError("503 slow down")
            return write(self, path, *rest, **options)

        s3.pipe_file = fail  # type: ignore[method-assign, assignment]
        second = Little(directory, 2)
        run, worlds = starting(second)
        second.train.feed.set.tokenizer_folder = tmp_path / "tokenizer"
        second.train.feed.set.tokenizer_folder.mkdir()
        (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
        worlds.report_state = lambda: pytest.fail("it says that it holds the state")
        with pytest.raises(StoreLost, match="503 slow down"):
            train(run, worlds)
        assert second.train.step == 3


def starting(little: Little) -> Any:
    """This worker as it begins in a world in which nobody has the run's state. There may be others
    after that one."""
    run = SimpleNamespace(
        training=little.train,
        directory=little.directory,
        journal=little.journal,
        clock=little.clock,
        stop=SimpleNamespace(asked=False),
        saver=little.saver,
        built=SimpleNamespace(is_transformers=False),
        chain=little.chain,
    )

    def leave(lost: PeerLost) -> None:
        raise AssertionError(f"waits for another world: {lost}")

    worlds = SimpleNamespace(next=lambda _: little.world, has_state=False, end_world=leave)
    return run, worlds


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("s3://bucket/it", PermissionError("no such key")),
        ("here", OSError("no space left on device")),
    ],
)
def test_what_a_restart_would_not_cure_is_an_error(
    location: str,
    error: OSError,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3():
        place = str(tmp_path / location) if location == "here" else location
        directory = RunDirectory.create(place, SystemClock())
        with pytest.raises(type(error)) as caught, outage_restarts(directory):
            raise error
        assert caught.value is error


@pytest.mark.parametrize("appears_after", [3.0, None])
def test_a_worker_that_does_not_see_a_checkpoint_looks_again_and_then_ends(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, appears_after: float | None
) -> None:
    """A network file system keeps what it has seen of a folder for up to a minute. Nobody goes back
    to an older checkpoint for it."""
    saved(directory, 2, 3)
    monkeypatch.setattr(restore, "read_manifest", hidden := Hidden())
    clocks = [Patient(), Patient()]

    def appear() -> None:
        hidden.is_there = appears_after is not None and clocks[1].passed > appears_after

    clocks[1] = Patient(appear)

    def work(group: WorkerGroup) -> int | None:
        placement, clock = RankPlacement(torch.device("cpu")), clocks[group.rank]
        world = World(group.rank, group.size, 2, placement, group)
        one = Little(directory, world=world, clock=clock)
        try:
            return one.restore()
        except StoreLost as error:
            said.append(error.message)
            raise Died from error

    said: list[str] = []
    found = outcomes(2, work)
    if appears_after is None:
        assert [type(one) for one in found] == [PeerLost, Died]
        assert [words.split(" sees ")[0] for words in said] == ["the leader"]
        assert clocks[1].passed == VISIBLE_SECONDS
    else:
        assert found == [3, 3]
        assert 3 < clocks[1].passed < 5


class Hidden:
    """The manifest for workers that do not lead."""

    is_there = False

    def __call__(self, *arguments: Any) -> CheckpointManifest | Unusable:
        if not self.is_there:
            return Unusable("its manifest is missing", is_missing=True)
        return read_manifest(*arguments)


def test_the_leader_waits_for_what_another_machine_wrote(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(directory, 3)
    monkeypatch.setattr(restore, "machine", lambda: "another")
    folder = directory.store.path(folder_of(3, 1))
    hidden = folder.rename(directory.store.path("hidden"))

    def appear() -> None:
        if clock.passed > 40 and hidden.exists():
            hidden.rename(folder)

    clock = Patient(appear)
    assert Little(directory, 2, clock=clock).restore() == 3
    assert 40 < clock.passed < 42


def test_a_model_of_another_shape_is_refused(directory: RunDirectory) -> None:
    saved(directory, 3)
    found, manifest = find_checkpoint(directory)
    with pytest.raises(BadInput, match=r"does not fit the model: they disagree on model/"):
        load_weights(torch.nn.Linear(4, 3), directory, found, manifest)
    wider = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3))
    with pytest.raises(BadInput, match=r"model/0.weight has shape \(3, 4\), the model wants"):
        load_weights(wider, directory, found, manifest)


def test_the_manifest_says_where_the_order_goes_on(directory: RunDirectory) -> None:
    saved(directory, 5)
    manifest = json.loads(directory.store.read(f"{folder_of(5, 1)}/{MANIFEST}"))
    assert (manifest["step"], manifest["position"], manifest["generation"]) == (5, 40, 1)
    assert set(manifest["scalars"]) == {"loss_scale", "guard", "evaluation"}
