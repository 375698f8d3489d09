"""Sets of Megatron: their documents come out whole and in order, whatever the chunks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.data.formats import megatron
from headway.data.formats.chunks import Chunk, OpenedSource
from headway.data.formats.megatron import bin_chunks
from headway.data.formats.readers import file_chunks
from support.megatron import CODES, write_pair
from unit.data.formats.reading import documents, items, problems

sequences = st.lists(st.integers(0, 127), max_size=9)
made = st.lists(st.lists(sequences, max_size=3), min_size=1, max_size=9)
SMALL = [[[1, 2, 3]], [[4], [5, 6]], [[7, 8]]]


def chunks(data: Path, chunk_bytes: int = 2**20) -> Iterator[Chunk]:
    with data.open("rb") as stream:
        yield from bin_chunks(
            OpenedSource("a file.bin", stream, True, open_beside=beside(data)),
            chunk_bytes=chunk_bytes,
        )


def beside(data: Path) -> Any:
    def opened(name: str) -> Any:
        assert name == "a file.idx"
        return data.with_suffix(".idx").open("rb")

    return opened


def joined(found: list[list[Any]]) -> list[list[int]]:
    assert all(part.dtype.isnative for parts in found for part in parts)
    return [np.concatenate(parts).tolist() for parts in found]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=made, dtype=st.sampled_from(sorted(CODES)), size=st.integers(1, 40))
def test_documents_are_read_back_whatever_the_chunks(
    tmp_path: Path, made: Any, dtype: str, size: int
) -> None:
    data = write_pair(tmp_path / "set", made, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron, "_SLICE", 3)
        found = list(chunks(data, size))
    assert joined(documents(iter(found))) == [list(chain(*document)) for document in made]
    assert sum(chunk.num_lines for chunk in found) == len(made)


def test_documents_are_numbered_from_1(tmp_path: Path) -> None:
    data = write_pair(tmp_path / "set", SMALL)
    for size in (2, 6, 8, 100):
        numbers = [item.line for item in items(chunks(data, size))]  # type: ignore[union-attr]
        assert sorted(set(numbers)) == [1, 2, 3] == list(dict.fromkeys(numbers))


def damaged(index: bytes, at: int, form: str, value: Any) -> bytes:
    return index[:at] + struct.pack(form, value) + index[at + struct.calcsize(form) :]


# Of SMALL: 34 bytes of header, 4 lengths from byte 34, 4 offsets from 50, 4 bounds from 82 to 114.
@pytest.mark.parametrize(
    ("at", "form", "value", "says"),
    [
        (0, "9s", b"TNTIDX\0\0", "begins with b'TNTIDX"),
        (9, "<Q", 2, "has version 2 at byte 9 and type 8 at byte 17: not known"),
        (17, "<B", 7, "has version 1 at byte 9 and type 7 at byte 17: not known"),
        (18, "<Q", 5, "ends at byte 114, not at byte 126"),
        (38, "<i", -1, "has a wrong offset at byte 58"),
        (66, "<q", 7, "has a wrong offset at byte 66"),
        (90, "<q", 4, "has bounds out of order from byte 82 on"),
    ],
)
def test_a_damaged_index_is_said_with_its_byte(
    tmp_path: Path, at: int, form: str, value: Any, says: str
) -> None:
    data = write_pair(tmp_path / "set", SMALL)
    index = data.with_suffix(".idx")
    index.write_bytes(damaged(index.read_bytes(), at, form, value))
    (problem,) = problems(chunks(data))
    assert (problem.kind, problem.file, problem.share) == ("damaged file", "a file.bin", 1)
    assert problem.message.startswith(f"a file.idx {says}")


def test_an_index_without_the_last_sequences_is_damage(tmp_path: Path) -> None:
    data = write_pair(tmp_path / "set", SMALL)
    index = data.with_suffix(".idx")
    index.write_bytes(damaged(index.read_bytes(), 106, "<q", 3))
    found = list(chunks(data))
    assert joined(documents(iter(found))) == [[1, 2, 3], [4, 5, 6], []]
    (problem,) = problems(iter(found))
    assert problem.message == "a file.idx describes 12 bytes; a file.bin has 16"


@pytest.mark.parametrize("length", [0, 5, 20, 113])
def test_a_truncated_index_is_damage(tmp_path: Path, length: int) -> None:
    data = write_pair(tmp_path / "set", SMALL)
    index = data.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:length])
    (problem,) = problems(chunks(data))
    assert problem.kind == "damaged file"


def test_a_short_bin_keeps_whole_documents(tmp_path: Path) -> None:
    data = write_pair(tmp_path / "set", SMALL)
    data.write_bytes(data.read_bytes()[:13])
    for size in (2, 6, 100):
        found = list(chunks(data, size))
        assert joined(documents(iter(found))) == [[1, 2, 3], [4, 5, 6]]
        (problem,) = problems(iter(found))
        assert problem.message == "a file.idx describes 16 bytes; a file.bin has 13"
        assert problem.share == pytest.approx(4 / 16)


@pytest.mark.parametrize("made", [SMALL, []])
def test_a_long_bin_is_damage(tmp_path: Path, made: Any) -> None:
    data = write_pair(tmp_path / "set", made)
    data.write_bytes(data.read_bytes() + b"more")
    found = list(chunks(data))
    assert len(documents(iter(found))) == len(made)
    assert [problem.kind for problem in problems(iter(found))] == ["damaged file"]


def test_a_compressed_bin_is_one_problem(tmp_path: Path) -> None:
    path = tmp_path / "set.bin.gz"
    path.write_bytes(b"\x1f\x8b")
    (problem,) = [item for chunk in file_chunks(str(path), tmp_path) for item in chunk.records()]
    assert problem.kind == "compressed"  # type: ignore[union-attr]
