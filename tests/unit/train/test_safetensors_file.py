"""Tensors in files: read by the library, divided anew in any way, and nothing in them executed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from headway.clock import SystemClock
from headway.state import stored_file
from headway.state.checkpoints import (
    CheckpointManifest,
    RankManifest,
    StoredTensor,
    find_checkpoint,
    folder_of,
)
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from headway.state.stored_file import (
    BLOCK_BYTES,
    DamagedFile,
    StoredFile,
    content_is_right,
    reads_of,
)
from headway.train import safetensors_file
from headway.train.read_rows import WantedRows, read_rows
from headway.train.restore import load_weights
from headway.train.safetensors_file import (
    DTYPES,
    WRITE_BYTES,
    TensorRows,
    merged_tensors,
    write_tensors,
)
from support.chains import save_manifest

FOLDER = "checkpoints/x"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def whole(name: str, tensor: torch.Tensor) -> TensorRows:
    return TensorRows(name, tuple(tensor.shape), 0, tensor)


def write(store: Store, *rows: TensorRows, rank: int = 0) -> RankManifest:
    return write_tensors(store, FOLDER, f"rank-{rank}.safetensors", rows)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(0, 2 if dtype is torch.bool else 100, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (0, 4), (4, 0)], ids=str
)
def test_the_library_reads_what_was_written(
    store: Store, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensors = {"model/w": numbers(dtype, *shape), "optimizer/w/step": torch.tensor(3.0)}
    part = write(store, *(whole(name, tensor) for name, tensor in tensors.items()))
    path = store.path(f"{FOLDER}/{part.file}")
    read = load_file(path)
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert torch.equal(read[name], tensor)


@pytest.mark.parametrize("length", range(9))
def test_tensors_begin_at_a_multiple_of_eight(store: Store, length: int) -> None:
    """Whatever the header comes to; the library maps them into memory."""
    part = write(store, whole("x" * (length + 1), torch.arange(3.0)))
    content = store.read(f"{FOLDER}/{part.file}")
    header_bytes = int.from_bytes(content[:8], "little")
    assert header_bytes % 8 == 0
    json.loads(content[8 : 8 + header_bytes])
    (stored,) = part.tensors.values()
    assert stored.chunks[0].offset == 8 + header_bytes
    with safe_open(store.path(f"{FOLDER}/{part.file}"), "pt") as file:
        assert torch.equal(file.get_tensor("x" * (length + 1)), torch.arange(3.0))


def test_a_file_of_nothing(store: Store) -> None:
    part = write(store)
    assert load_file(store.path(f"{FOLDER}/{part.file}")) == {}
    assert (part.tensors, part.stored.size) == ({}, 16)


def test_the_digests_are_those_of_the_blocks(store: Store) -> None:
    large = torch.arange(WRITE_BYTES // 4 + 5, dtype=torch.float32)  # more than one write
    part = write(store, whole("a", large), whole("b", torch.tensor(True)), whole("c", large[:0]))
    content = store.read(f"{FOLDER}/{part.file}")
    assert part.stored.size == len(content)
    assert part.stored.blocks == tuple(
        xxhash.xxh3_128_hexdigest(content[at : at + BLOCK_BYTES])
        for at in range(0, len(content), BLOCK_BYTES)
    )
    assert content_is_right(store, f"{FOLDER}/{part.file}", part.stored)
    path = store.path(f"{FOLDER}/{part.file}")
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not content_is_right(store, f"{FOLDER}/{part.file}", part.stored)


# --- written by some, read by others


def divided(rows: int, cuts: list[int]) -> list[tuple[int, int]]:
    """[start, end) of each part; `cuts` may fall together, so that a part is empty."""
    edges = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    return list(pairwise(edges))


def written_in_parts(
    store: Store, name: str, tensor: torch.Tensor, cuts: list[int]
) -> list[RankManifest]:
    return [
        write(store, TensorRows(name, tuple(tensor.shape), start, tensor[start:end]), rank=rank)
        for rank, (start, end) in enumerate(divided(tensor.shape[0], cuts))
        if end > start
    ]


def files_of(parts: list[RankManifest], of_blocks: bool = True) -> dict[str, StoredFile]:
    return {part.file: part.stored for part in parts} if of_blocks else {}


def fill(
    store: Store, target: torch.Tensor, stored: StoredTensor, files: Any, start: int = 0
) -> torch.Tensor:
    read_rows([WantedRows(target, start, stored)], files, store, FOLDER)
    return target


DIVISIONS = {
    "rows": st.integers(1, 12),
    "inner": st.sampled_from([(), (3,), (2, 2)]),
    "dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
    "writers": st.lists(st.integers(0, 12), max_size=2),
    "readers": st.lists(st.integers(0, 12), max_size=4),
    "block_bytes": st.integers(1, 80),
    "read_bytes": st.integers(1, 100),
}
"""1, 2 or 3 writers, some with nothing to write; up to five readers; blocks and requests that end
in the middle of a number."""


@settings(deadline=None, max_examples=80)
@given(of_blocks=st.booleans(), **DIVISIONS)
def test_any_division_is_read_in_any_other(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    inner: tuple[int, ...],
    dtype: torch.dtype,
    writers: list[int],
    readers: list[int],
    block_bytes: int,
    read_bytes: int,
    of_blocks: bool,
) -> None:
    store = Store(tmp_path_factory.mktemp("run"))
    tensor = numbers(dtype, rows, *inner)
    with sizes(block_bytes, read_bytes):
        parts = written_in_parts(store, "w", tensor, writers)
        stored = merged_tensors(parts)["w"]
        assert stored.shape == tuple(tensor.shape)
        assert [chunk.start for chunk in stored.chunks] == sorted({c.start for c in stored.chunks})
        targets = [
            WantedRows(torch.full((end - start, *inner), 7).to(dtype), start, stored)
            for start, end in divided(rows, readers)
        ]
        read_rows(targets, files_of(parts, of_blocks), store, FOLDER)
    assert torch.equal(torch.cat([rows.target for rows in targets]), tensor)


@settings(deadline=None, max_examples=80)
@given(flip=st.floats(0, 1, exclude_max=True), **DIVISIONS)
def test_a_damaged_byte_is_found_by_those_who_need_it(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    inner: tuple[int, ...],
    dtype: torch.dtype,
    writers: list[int],
    readers: list[int],
    block_bytes: int,
    read_bytes: int,
    flip: float,
) -> None:
    store = Store(tmp_path_factory.mktemp("run"))
    tensor = numbers(dtype, rows, *inner)
    with sizes(block_bytes, read_bytes):
        parts = written_in_parts(store, "w", tensor, writers)
        stored = merged_tensors(parts)["w"]
        row_bytes = tensor.nbytes // rows
        damaged, byte = divmod(int(flip * tensor.nbytes), row_bytes)
        (chunk,) = [c for c in stored.chunks if c.start <= damaged < c.start + c.rows]
        flip_byte(store, chunk.file, chunk.offset + (damaged - chunk.start) * row_bytes + byte)
        for start, end in divided(rows, readers):
            target = torch.full((end - start, *inner), 7).to(dtype)
            found = None
            try:
                fill(store, target, stored, files_of(parts), start)
            except DamagedFile as error:
                found = error.name
            is_needed = start <= damaged < end
            assert found == chunk.file or not is_needed, "it was not noticed"
            assert found in (None, chunk.file)
            assert found or torch.equal(target, tensor[start:end])


@contextmanager
def sizes(block_bytes: int, read_bytes: int) -> Iterator[None]:
    """Blocks and requests of these sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safetensors_file, "BLOCK_BYTES", block_bytes)
        patch.setattr(stored_file, "READ_BYTES", read_bytes)
        yield


def flip_byte(store: Store, file: str, at: int) -> None:
    path = store.path(f"{FOLDER}/{file}")
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@given(
    wanted=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), max_size=8),
    block_bytes=st.integers(1, 90),
)
def test_each_byte_is_read_once_and_none_beyond_the_blocks(
    wanted: list[tuple[int, int]], block_bytes: int
) -> None:
    size = 260
    blocks = -(-size // block_bytes)
    stored = StoredFile(size=size, block_bytes=block_bytes, blocks=("",) * blocks)
    with sizes(block_bytes, read_bytes=100):
        reads = list(reads_of([(at, at + length) for at, length in wanted], stored))
    touched = {byte // block_bytes for at, length in wanted for byte in range(at, at + length)}
    read = [byte for start, end in reads for byte in range(start, end)]
    assert read == [byte for byte in range(size) if byte // block_bytes in touched]
    assert all(end - start <= max(100, block_bytes) for start, end in reads)
    assert all(start % block_bytes == 0 for start, _ in reads)


def test_same_shape_reads_each_byte_once(store: Store) -> None:
    """Neighbouring tensors, however small, share requests."""
    tensors = {f"model/{number}": numbers(torch.float32, 5, 3) for number in range(50)}
    part = write(store, *(whole(name, tensor) for name, tensor in tensors.items()))
    reads: list[tuple[int, int]] = []

    class Noting(Store):
        def read_into(self, name: str, start: int, places: list[memoryview]) -> int:
            reads.append((start, sum(map(len, places))))
            return super().read_into(name, start, places)

    wanted = [WantedRows(torch.zeros(5, 3), 0, part.tensors[name]) for name in tensors]
    read_rows(wanted, files_of([part]), Noting(store.root), FOLDER)
    assert reads == [(0, part.stored.size)]


def test_scalars_and_empty_tensors(store: Store) -> None:
    tensors = {"step": torch.tensor(7.0), "none": torch.zeros(0, 4), "thin": torch.zeros(3, 0)}
    part = write(store, *(whole(n, t) for n, t in tensors.items()))
    merged = merged_tensors([part])
    for name, tensor in tensors.items():
        target = fill(store, torch.ones_like(tensor), merged[name], files_of([part]))
        assert torch.equal(target, tensor)


@pytest.mark.parametrize("read_bytes", [1, 7, 10**6])
def test_into_another_precision_or_layout(store: Store, read_bytes: int) -> None:
    tensor = numbers(torch.float32, 6, 4)
    part = write(store, whole("w", tensor))
    with sizes(5, read_bytes):
        shorter = torch.zeros(6, 4, dtype=torch.bfloat16)
        assert torch.equal(fill(store, shorter, part.tensors["w"], {}).float(), tensor)
        transposed = torch.zeros(4, 6).t()
        assert torch.equal(fill(store, transposed, part.tensors["w"], files_of([part])), tensor)


def test_whole_tensors_dealt_out_to_ranks_come_together(store: Store) -> None:
    a, b = torch.arange(6.0).view(3, 2), torch.tensor(1)
    merged = merged_tensors([write(store, whole("a", a)), write(store, whole("b", b), rank=1)])
    assert {name: stored.chunks[0].file for name, stored in merged.items()} == {
        "a": "rank-0.safetensors",
        "b": "rank-1.safetensors",
    }


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([(1, 4)], "rows 0 to 1 were not written"),
        ([(0, 2), (3, 4)], "rows 2 to 3 were not written"),
        ([(0, 3)], "rows from 3 are missing"),
        ([(0, 3), (2, 4)], "w: rows 3 to 2"),
        ([(0, 4), (0, 4)], "w: rows 4 to 0"),
    ],
)
def test_a_gap_or_an_overlap_is_refused(
    store: Store, pieces: list[tuple[int, int]], says: str
) -> None:
    tensor = torch.arange(4.0)
    parts = [
        write(store, TensorRows("w", (4,), start, tensor[start:end]), rank=rank)
        for rank, (start, end) in enumerate(pieces)
    ]
    with pytest.raises(AssertionError, match=says):
        merged_tensors(parts)


def test_rows_that_are_not_there_are_not_made_up(store: Store) -> None:
    parts = written_in_parts(store, "w", torch.arange(6.0), [2, 4])
    stored, files = merged_tensors(parts)["w"], files_of(parts)
    lacking = stored.model_copy(update={"chunks": (stored.chunks[0], stored.chunks[2])})
    fill(store, torch.zeros(2), lacking, files, start=4)
    with pytest.raises(AssertionError, match="2 of 3 rows are stored"):
        fill(store, torch.zeros(3), lacking, files, start=3)


# --- nothing in a checkpoint is executed


class Mark:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (Path.touch, (self.path,))  # type: ignore[return-value]


def test_a_planted_pickle_leaves_no_mark(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    malice = pickle.dumps(Mark(mark))
    pickle.loads(malice)  # it works
    mark.unlink()

    directory = RunDirectory.create(tmp_path / "it", SystemClock())
    folder = folder_of(3, 1)
    model = torch.nn.Linear(2, 3)
    rows = [whole(f"model/{name}", t.detach()) for name, t in model.named_parameters()]
    part = write_tensors(directory.store, folder, "rank-0.safetensors", rows)
    manifest = CheckpointManifest(
        step=3,
        generation=1,
        run="it",
        created="",
        headway="",
        identity="",
        data_digest="",
        position=12,
        validation_loss=None,
        scalars={},
        tensors=merged_tensors([part]),
        files={part.file: part.stored},
    )
    save_manifest(directory, manifest)
    for name in (".metadata", "model.pt", "rank-0.json", "rank-1.safetensors", "__0_0.distcp"):
        directory.store.write(f"{folder}/{name}", malice)
    other = torch.nn.Linear(2, 3)
    found, read = find_checkpoint(directory)
    load_weights(other, directory, found, read)
    assert torch.equal(other.weight, model.weight)
    # In place of the file itself it is refused for its digest, before anything looks into it.
    directory.store.write(f"{folder}/rank-0.safetensors", malice.ljust(part.stored.size, b"\0"))
    with pytest.raises(Exception, match="is damaged: wrong digest"):
        find_checkpoint(directory)
    with pytest.raises(DamagedFile):
        load_weights(other, directory, found, read)
    # Even without digests it would be numbers and nothing else.
    load_weights(other, directory, found, read.model_copy(update={"files": {}}))
    assert not mark.exists()
