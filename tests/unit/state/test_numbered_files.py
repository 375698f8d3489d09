"""The newest of many files, without a look at all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.state.numbered_files import NumberedFiles
from headway.state.store import Store
from support.fake_s3 import fake_s3


@given(gaps=st.lists(st.integers(1, 130), max_size=20), after=st.integers(0, 900))
def test_those_after_any_number(gaps: list[int], after: int) -> None:
    with fake_s3():
        store = Store("s3://bucket/it")
        files = NumberedFiles(store, "log", 8, ".jsonl", is_gapless=False)
        numbers: list[int] = []
        for gap in gaps:
            numbers.append((numbers or [0])[-1] + gap)
            store.write(files.name(numbers[-1]), b"")
        store.write("log/notes.txt", b"")
        assert list(files.after(after)) == [number for number in numbers if number > after]
        assert list(files.all()) == numbers
        assert files.newest() == max(numbers, default=0)


@given(last=st.integers(0, 450), data=st.data())
def test_a_reader_that_has_looked_before_finds_all_that_came_since(
    last: int, data: st.DataObject
) -> None:
    with fake_s3():
        store = Store("s3://bucket/it")
        files = NumberedFiles(store, "log", 8, ".jsonl", is_gapless=True)
        seen = data.draw(st.integers(0, last))
        for number in range(1, seen + 1):
            store.write(files.name(number), b"")
        assert list(files.after(0)) == [*range(1, seen + 1)]
        for number in range(seen + 1, last + 1):
            store.write(files.name(number), b"")
        assert list(files.after(seen)) == [*range(seen + 1, last + 1)]


def test_a_folder_that_a_killed_writer_has_made_is_empty(tmp_path: Path) -> None:
    store = Store(tmp_path)
    files = NumberedFiles(store, "generations", 6, ".json", is_gapless=False)
    assert (files.newest(), files.after(0)) == (0, {})
    store.write(files.name(99), b"")
    store.path("generations/0001").mkdir()
    assert files.newest() == 99
    assert files.after(98) == {99: "generations/0000/000099.json"}


@pytest.mark.parametrize("number", [1, 99, 100, 12345])
def test_names(number: int, tmp_path: Path) -> None:
    files = NumberedFiles(Store(tmp_path), "log", 8, ".jsonl", is_gapless=True)
    assert files.name(number) == f"log/{number // 100:06d}/{number:08d}.jsonl"
