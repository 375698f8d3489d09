"""Datasets of the hub, with folders in their place: nothing here reaches the network."""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data.formats.chunks import Problem, SourceRecord
from headway.data.formats.hub import (
    HubDataset,
    _is_failure,
    hub_chunks,
    num_parts,
    parse_hub_source,
)
from headway.errors import BadInput, HeadwayError

datasets = pytest.importorskip("datasets")


def read(name: str, part: int, columns: Any = None, **how: Any) -> list[SourceRecord | Problem]:
    found = []
    for chunk in hub_chunks(name, part, columns, **how):
        assert chunk.file.startswith(name)
        found += list(pickle.loads(pickle.dumps(chunk)).records())
    return found


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Three files of JSON lines to train on, and one to test."""
    for file in range(3):
        rows = [{"text": f"{file} {row}", "ids": [file, row]} for row in range(1200)]
        path = tmp_path / f"train-{file}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text('{"text": "one", "ids": [1]}\n')
    return tmp_path


def test_the_parts_together_are_the_whole_dataset(lines: Path) -> None:
    name = f"hub:{lines}"
    assert num_parts(name) == 3
    for part in range(3):
        found = read(name, part, chunk_bytes=5000)
        assert [item.line for item in found] == list(range(1, 1201))
        values = [item.value for item in found if isinstance(item, SourceRecord)]
        assert [value["text"] for value in values] == [f"{part} {row}" for row in range(1200)]
        assert all(isinstance(value["ids"], np.ndarray) for value in values)
        assert [value["ids"].tolist() for value in values] == [[part, row] for row in range(1200)]


def test_the_split_is_chosen_and_columns_are_left_out(lines: Path) -> None:
    found = read(f"hub:{lines}?split=test", 0, ("text",))
    assert found == [SourceRecord({"text": "one"}, 1)]


def test_chunks_are_as_large_as_asked_for(lines: Path) -> None:
    chunks = list(hub_chunks(f"hub:{lines}", 0, None, chunk_bytes=5000))
    assert len(chunks) > 4
    assert all(len(pickle.dumps(chunk)) < 10_000 for chunk in chunks)


def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    """A file is read ahead, by Arrow, when what is made of it takes longer; none behind it."""
    table, num_files = pa.table({"text": [str(number) * 200 for number in range(60_000)]}), 8
    rows, size = table.num_rows // num_files, table.nbytes
    for number in range(num_files):
        part = table.slice(number * rows, rows)
        path = tmp_path / f"{number}.parquet"
        pq.write_table(part, path, row_group_size=500, use_dictionary=False)
    del table, part
    source = f"hub:{tmp_path}"
    before, most = pa.total_allocated_bytes(), 0
    for number in range(num_parts(source)):
        for _ in hub_chunks(source, number, ("text",)):
            time.sleep(0.01)
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < size / 4


def test_parquet_files_and_text_without_known_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "a.parquet")
    assert read(f"hub:{tmp_path}", 0, ("text",)) == [
        SourceRecord({"text": "a"}, 1),
        SourceRecord({"text": "b"}, 2),
    ]
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a.txt").write_text("one\ntwo\n")
    assert len(read(f"hub:{plain}", 0, ("text",))) == 2


@pytest.mark.parametrize("suffix", ["jsonl", "txt"])
def test_a_column_that_is_not_there_is_one_problem(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_text('{"text": "a"}\n' * 3000)
    (problem,) = read(f"hub:{tmp_path}", 0, ("content",))
    assert isinstance(problem, Problem)
    assert (problem.kind, problem.line) == ("no column", None)
    assert problem.message == "no column content; there are: text"


def test_damage_is_located_and_loses_the_rest_of_its_part(tmp_path: Path) -> None:
    texts = pa.table({"text": [f"{number} " * 20 for number in range(5000)]})
    file = tmp_path / "a.parquet"
    pq.write_table(texts, file, row_group_size=1000, use_dictionary=False)
    group = pq.ParquetFile(file).metadata.row_group(2).column(0)
    raw = bytearray(file.read_bytes())
    middle = group.data_page_offset + group.total_compressed_size // 2
    raw[middle : middle + 50] = bytes(50)
    file.write_bytes(raw)
    *found, last = read(f"hub:{tmp_path}", 0)
    assert isinstance(last, Problem)
    assert last.kind == "damaged file"
    # Rows before the damage may be lost too: threads of datasets decode several row groups at once,
    # and the error of a later one may come before the rows of an earlier one.
    assert last.line == len(found) + 1
    assert last.line <= 2001


def test_the_name_says_config_split_and_revision() -> None:
    assert parse_hub_source("hub:allenai/c4") == HubDataset("allenai/c4", None, "train", None)
    assert parse_hub_source(
        "hub:allenai/c4?config=en&split=validation&revision=v1.0"
    ) == HubDataset("allenai/c4", "en", "validation", "v1.0")
    for bad in ("hub:", "hub:?split=a", "hub:a/b?spilt=train", "hub:a/b?split="):
        with pytest.raises(BadInput):
            parse_hub_source(bad)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("?split=dev", "Available splits: ['train', 'test']"),
        ("?config=en", "'en' not found"),
        ("/nowhere", "nowhere"),
    ],
)
def test_a_missing_config_or_split_is_bad_input(lines: Path, options: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        num_parts(f"hub:{lines}{options}")
    assert words in caught.value.message
    assert "split" in (caught.value.hint or "")


def test_without_a_network_it_is_bad_input() -> None:
    with pytest.raises(BadInput, match="nobody/nothing") as caught:
        num_parts("hub:nobody/nothing")
    assert "HF_HUB_OFFLINE" in (caught.value.hint or "")


def test_an_empty_folder_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="EmptyDatasetError"):
        num_parts(f"hub:{tmp_path}")
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(BadInput):
        num_parts(f"hub:{tmp_path}?split=train")


def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match="needs the hub extra") as caught:
        num_parts("hub:some/name?revision=never-loaded")
    assert caught.value.hint == "pip install 'headway[hub]'"


def test_a_file_that_disappears_is_a_failure_and_not_damage(lines: Path) -> None:
    name = f"hub:{lines}?split=train"
    assert num_parts(name) == 3
    (lines / "train-1.jsonl").unlink()
    assert len(read(name, 0)) == 1200
    with pytest.raises(HeadwayError, match="cannot be read") as caught:
        read(name, 1)
    assert "run the same command to resume" in (caught.value.hint or "")


def test_failures_of_the_network_are_distinguished_from_damage() -> None:
    import httpx

    wrapped = ValueError("while reading")
    wrapped.__cause__ = httpx.ReadTimeout("timed out")
    for failure in (ConnectionError("x"), TimeoutError(), OSError(5, "disk"), wrapped):
        assert _is_failure(failure)
    for damage in (OSError("Corrupt snappy compressed data"), ValueError(), EOFError()):
        assert not _is_failure(damage)
