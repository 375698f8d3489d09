"""Arrays of token ids: NumPy and HDF5."""

from __future__ import annotations

import gzip
import io
import sys
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headway.data.formats.arrays import h5_chunks, npy_chunks
from headway.data.formats.chunks import Problem
from headway.errors import BadInput, HeadwayError
from unit.data.formats.reading import (
    Endless,
    Failing,
    documents,
    items,
    opened,
    peak_bytes,
    problems,
    records,
)

integers = st.sampled_from(["<u2", ">u2", "<i4", ">i8", "u1"])
ids = integers.flatmap(
    lambda dtype: arrays.arrays(np.dtype(dtype), arrays.array_shapes(max_dims=2, max_side=9))
)


def saved(array: np.ndarray, **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


def h5_file(**datasets: Any) -> bytes:
    """`_` in a name is `/`; a pair is the data and how it is stored."""
    file = io.BytesIO()
    with h5py.File(file, "w") as h5:
        for name, data in datasets.items():
            values, how = data if isinstance(data, tuple) else (data, {})
            h5.create_dataset(name.replace("_", "/"), data=values, **how)
    return file.getvalue()


def joined(parts: list[list[np.ndarray]]) -> list[list[int]]:
    assert all(part.dtype.isnative for document in parts for part in document)
    return [np.concatenate(document).tolist() for document in parts]


def wanted(array: np.ndarray) -> list[list[int]]:
    return array.tolist() if array.ndim == 2 else [array.tolist()]


@given(array=ids, size=st.integers(1, 64))
def test_numpy_arrays_are_read_back_whatever_the_chunks(array: np.ndarray, size: int) -> None:
    raw = saved(array)
    assert joined(documents(npy_chunks(opened(raw), chunk_bytes=size))) == wanted(array)
    assert joined(documents(npy_chunks(opened(raw, can_seek=False)))) == wanted(array)


@given(array=ids, size=st.integers(1, 64), is_packed=st.booleans())
def test_hdf5_arrays_are_read_back_whatever_the_chunks(
    array: np.ndarray, size: int, is_packed: bool
) -> None:
    how = {"compression": "gzip", "chunks": True} if is_packed else {}
    raw = h5_file(ids=(array, how), deep_mask=(array % 2 == 0, how), other=[1.5])
    file = opened(raw, columns=("ids", "deep/mask"))
    found = documents(h5_chunks(file, chunk_bytes=size))
    assert joined([[part["ids"] for part in document] for document in found]) == wanted(array)
    masks = joined([[part["deep/mask"] for part in document] for document in found])
    assert masks == wanted(array % 2 == 0)
    assert [list(value) for _, value in records(h5_chunks(opened(raw, columns=("ids",))))] == [
        ["ids"] for _ in wanted(array)
    ]


def test_rows_are_numbered_from_1_in_all_chunks() -> None:
    array = np.arange(20, dtype=np.int32).reshape(10, 2)
    for chunks in (
        npy_chunks(opened(saved(array)), chunk_bytes=24),
        h5_chunks(opened(h5_file(ids=array), columns=("ids",)), chunk_bytes=24),
    ):
        held = list(chunks)
        assert [chunk.num_lines for chunk in held] == [3, 3, 3, 1]
        assert [line for line, _ in records(iter(held))] == list(range(1, 11))


def test_rows_longer_than_a_chunk_go_in_parts() -> None:
    array = np.arange(20, dtype=np.int32).reshape(2, 10)
    chunks = list(npy_chunks(opened(saved(array)), chunk_bytes=16))
    assert [(chunk.opens, chunk.continues, chunk.num_lines) for chunk in chunks] == [
        (False, True, 1),
        (True, True, 0),
        (True, False, 0),
    ] * 2


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([{"a": 1}], dtype=object), "not token ids"),
        (np.array([1.5]), "not token ids"),
        (np.array([True]), "not token ids"),
        (np.array(["text"]), "not token ids"),
        (np.array([(1, 2)], dtype=[("漢", "i4"), ("b", "i4")]), "damaged file"),
        (np.array(5), "not token ids"),
        (np.zeros((2, 2, 2), dtype=int), "not token ids"),
        (np.asfortranarray(np.arange(6).reshape(2, 3)), "Fortran order"),
    ],
)
def test_a_file_without_ids_is_one_problem(array: np.ndarray, kind: str) -> None:
    (problem,) = items(npy_chunks(opened(saved(array, allow_pickle=True))))
    assert isinstance(problem, Problem)
    assert (problem.kind, problem.line) == (kind, None)


def test_a_single_column_is_the_same_in_either_order() -> None:
    array = np.asfortranarray(np.arange(6).reshape(6, 1))
    assert [value.tolist() for _, value in records(npy_chunks(opened(saved(array))))] == [
        [number] for number in range(6)
    ]


def test_a_truncated_array_of_rows_keeps_whole_rows() -> None:
    array = np.arange(40, dtype=np.int32).reshape(10, 4)
    for size in (16, 40, 2**20):
        *found, last = items(npy_chunks(opened(saved(array)[:-20]), chunk_bytes=size))
        assert [item.value.tolist() for item in found] == array[:8].tolist()  # type: ignore[union-attr]
        assert (last.kind, last.line) == ("truncated", 9)  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [8, 12, 2**20])
@pytest.mark.parametrize("missing", [1, 4, 30, 36])
def test_a_truncated_stream_keeps_its_ids_and_is_ended(size: int, missing: int) -> None:
    array = np.arange(10, dtype=np.int32)
    raw = saved(array)[:-missing]
    chunks = list(npy_chunks(opened(raw), chunk_bytes=size))
    assert joined(documents(iter(chunks))) == [array[: (40 - missing) // 4].tolist()]
    assert [problem.kind for problem in problems(iter(chunks))] == ["truncated"]


@pytest.mark.parametrize("raw", [b"", b"\x93NUMPY", b"text", saved(np.arange(3))[:30]])
def test_a_damaged_head_is_one_problem(raw: bytes) -> None:
    (problem,) = problems(npy_chunks(opened(raw)))
    assert problem.kind == "damaged file"


def test_what_follows_the_array_is_reported() -> None:
    found = items(npy_chunks(opened(saved(np.arange(3)) + saved(np.arange(3)))))
    assert [getattr(item, "kind", "") for item in found] == ["", "data after the end"]


def test_damaged_compression_ends_the_stream() -> None:
    array = np.random.default_rng(1).integers(0, 50_000, 100_000).astype(np.uint16)
    packed = gzip.compress(saved(array))
    stream = gzip.GzipFile(fileobj=io.BytesIO(packed[: len(packed) // 2]))
    chunks = list(npy_chunks(opened(stream, can_seek=False), chunk_bytes=2**14))  # type: ignore[arg-type]
    assert [problem.kind for problem in problems(iter(chunks))] == ["damaged compression"]
    (found,) = joined(documents(iter(chunks)))
    assert len(found) > 40_000
    assert found == array[: len(found)].tolist()


def test_memory_does_not_grow_with_the_file() -> None:
    head = saved(np.zeros(0, dtype=np.int32))
    peaks = []
    for times in (50, 400):
        announced = head.replace(b"(0,), }" + b" " * 10, b"(%d,), }" % (times * 2**14) + b" " * 4)
        announced = announced[:127] + b"\n" if len(announced) != 128 else announced
        stream = opened(Endless(announced, b"\1\0\0\0" * 2**14, times), can_seek=False)  # type: ignore[arg-type]
        peak, count = peak_bytes(npy_chunks(stream, chunk_bytes=2**17))
        assert count == times / 2
        peaks.append(peak)
    assert peaks[1] < 1.2 * peaks[0] + 2**16


@pytest.mark.parametrize(
    ("columns", "kind", "words"),
    [
        (("tokens",), "no column", "no dataset tokens; there are: deep/mask, ids, text"),
        (("deep",), "no column", "no dataset deep; there"),
        (None, "no column", "there are: deep/mask, ids, text"),
        (("text",), "not token ids", "float64"),
        (("ids", "text"), "mask of another shape", "text is (2,), ids is (4,)"),
        (("deep/mask", "text"), "not token ids", "float64"),
    ],
)
def test_datasets_that_do_not_fit_are_one_problem(columns: Any, kind: str, words: str) -> None:
    raw = h5_file(ids=[1, 2, 3, 4], deep_mask=[1, 0], text=[0.5, 1.5])
    (problem,) = problems(h5_chunks(opened(raw, columns=columns)))
    assert (problem.kind, problem.line) == (kind, None)
    assert words in problem.message


def test_damaged_hdf5_files() -> None:
    raw = h5_file(ids=np.arange(1000))
    for broken in (b"", b"text", raw[:100], raw[: len(raw) // 2]):
        (problem,) = problems(h5_chunks(opened(broken, columns=("ids",))))
        assert problem.kind == "damaged file"
    (problem,) = problems(h5_chunks(opened(raw, can_seek=False, columns=("ids",))))
    assert problem.kind == "cannot seek"


@pytest.mark.parametrize("shape", [(4096,), (64, 64)])
def test_a_damaged_block_costs_only_what_it_holds(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 2**31, 4096).astype(np.int32).reshape(shape)
    block = (512,) if len(shape) == 1 else (8, 64)
    raw = bytearray(h5_file(ids=(array, {"chunks": block, "compression": "gzip", "fletcher32": 1})))
    with h5py.File(io.BytesIO(raw)) as file:
        where = file["ids"].id.get_chunk_info(3).byte_offset
    raw[where + 100] ^= 0xFF
    chunks = list(h5_chunks(opened(bytes(raw), columns=("ids",)), chunk_bytes=2048))
    (problem,) = problems(iter(chunks))
    assert (problem.kind, problem.line) == ("damaged file", 1 if len(shape) == 1 else 25)
    found = joined([[part["ids"] for part in parts] for parts in documents(iter(chunks))])
    flat = [number for document in found for number in document]
    left = np.concatenate([array.reshape(-1)[:1536], array.reshape(-1)[2048:]])
    assert flat == left.tolist()
    assert len(found) == (2 if len(shape) == 1 else 56)


def test_without_h5py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(BadInput, match="needs the h5 extra") as caught:
        list(h5_chunks(opened(b"", columns=("ids",))))
    assert caught.value.hint == "pip install 'headway[h5]'"


def test_a_failing_disk_is_not_taken_for_damage() -> None:
    array = np.arange(2**18)
    for after in (100, 2**19, 2**20):
        with pytest.raises(HeadwayError, match="the disk is gone"):
            list(npy_chunks(opened(Failing(saved(array), after))))
        with pytest.raises(HeadwayError, match="the disk is gone"):
            list(h5_chunks(opened(Failing(h5_file(ids=array), after), columns=("ids",))))
