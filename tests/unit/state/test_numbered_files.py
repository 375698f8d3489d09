"""The newest of many files, without a look at all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.state.numbered_files import NumberedFiles
from headway.state.store import Store
from support.fake_s3 import fake_s3


@given(last=st.integers(0, 450), data=st.data())
def test_those_after_any_number(last: int, data: st.DataObject) -> None:
    with fake_s3():
        store = Store("s3://bucket/it")
        files = NumberedFiles(store, "log", 8, ".jsonl")
        for number in range(1, last + 1):
            store.write(files.name(number), b"")
        store.write("log/notes.txt", b"")
        after = data.draw(st.integers(0, last))
        assert list(files.after(after)) == [*range(after + 1, last + 1)]
        assert list(files.all()) == [*range(1, last + 1)]
        assert files.newest() == last


def test_a_folder_that_a_killed_writer_has_made_is_empty(tmp_path: Path) -> None:
    store = Store(tmp_path)
    files = NumberedFiles(store, "generations", 6, ".json")
    assert (files.newest(), files.after(0)) == (0, {})
    store.write(files.name(99), b"")
    store.path("generations/0001").mkdir()
    assert files.newest() == 99
    assert files.after(98) == {99: "generations/0000/000099.json"}


@pytest.mark.parametrize("number", [1, 99, 100, 12345])
def test_names(number: int, tmp_path: Path) -> None:
    files = NumberedFiles(Store(tmp_path), "log", 8, ".jsonl")
    assert files.name(number) == f"log/{number // 100:06d}/{number:08d}.jsonl"
