"""A shard is its files, whole and with their digests, and then its record; without one it is made
anew."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import AddedToken, Tokenizer, models

from headway.data.prepare.encode import EncodedChunk
from headway.data.prepare.job import PrepareJob
from headway.data.prepare.recipe import Recipe, RecipeSettings, TokenizerFacts
from headway.data.prepare.shard_writer import (
    ShardFiles,
    ShardRecord,
    ShardWriter,
    read_records,
)
from headway.data.prepare.windows import PackedTokens
from headway.data.set_format import SpecialIds, file_digest, read_manifest, shard_file
from headway.data.shard_table import shard_name
from headway.data.statistics import Statistics
from headway.data.tiny_stories import stories
from headway.data.tokenizer import save_tokenizer
from headway.state.store import Store
from support.prepared import (
    documents_of,
    encoded,
    files_of,
    folder_in_memory,
    job_for,
    run,
    write_lines,
)
from support.token_sets import table_of

UNKNOWN = 7
STORIES = list(stories(20_000, 1))


def recipe(vocab_size: int = 400) -> Recipe:
    tokens = TokenizerFacts(
        digest="",
        vocab_size=vocab_size,
        special_ids=SpecialIds(),
        start=None,
        separator=None,
        unknown=UNKNOWN,
    )
    return Recipe(settings=RecipeSettings(), tokens=tokens, files=(), beside="")


def is_even(token: int) -> bool:
    return token % 2 == 0


# --- what is in the files


@dataclass(frozen=True)
class Drawn:
    documents: list[list[int]]
    chunks: list[EncodedChunk]
    masked: list[bool]
    """Whether each chunk has a mask."""
    new_shard: list[bool]
    """Whether a shard ends before each chunk."""


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Documents, cut anywhere into chunks and between those into shards."""
    ids = st.lists(st.integers(0, 20), min_size=1, max_size=12)
    documents = draw(st.lists(ids, min_size=1, max_size=12))
    flat = [(number, token) for number, one in enumerate(documents) for token in one]
    cuts = draw(st.sets(st.integers(1, max(1, len(flat) - 1)), max_size=5))
    bounds = sorted({0, len(flat), *(cut for cut in cuts if cut < len(flat))})

    def is_inside(at: int) -> bool:
        return 0 < at < len(flat) and flat[at - 1][0] == flat[at][0]

    masked = draw(st.lists(st.booleans(), min_size=len(bounds) - 1, max_size=len(bounds) - 1))
    chunks = []
    for (begin, end), has_mask in zip(itertools.pairwise(bounds), masked, strict=True):
        here = [
            [token for _, token in group]
            for _, group in itertools.groupby(flat[begin:end], key=lambda pair: pair[0])
        ]
        mask = is_even if has_mask else None
        chunks.append(encoded(here, is_inside(begin), is_inside(end), mask))
    new_shard = draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))
    return Drawn(documents, chunks, masked, [False, *new_shard[1:]])


def written(folder: Path, made: Drawn) -> list[ShardRecord]:
    store, records, first = Store(folder), [], 0
    ends = [*(number for number, new in enumerate(made.new_shard) if new), len(made.chunks)]
    for index, end in enumerate(ends):
        with ShardWriter(store, recipe(), 3, index, first) as shard:
            for one in made.chunks[first:end]:
                shard.add(one, [])
            records.append(shard.close(is_last=end == len(made.chunks)))
        first = end
    return records


@given(made=drawn())
def test_shards_hold_the_documents_however_they_are_cut(made: Drawn) -> None:
    with folder_in_memory() as folder:
        records = written(folder, made)
        found = read_records(Store(folder), recipe().digest, [3])
        assert found == {(3, one.index): one for one in records}
        tokens: list[int] = []
        starts: list[int] = []
        mask: list[int] = []
        first_chunk = 0
        for record in records:
            shard = record.shard
            assert shard is not None
            at = {part: folder / "shards" / f"{shard.name}.{part}" for part in shard.digests}
            assert {part: file_digest(path) for part, path in at.items()} == shard.digests
            assert {part: path.stat().st_size for part, path in at.items()} == shard.sizes(2)
            has_mask = any(made.masked[first_chunk : record.end_chunk])
            first_chunk = record.end_chunk
            assert shard.has_mask == has_mask == ("mask" in at)
            starts += (np.fromfile(at["documents"], "<u8").astype(int) + len(tokens)).tolist()
            tokens += np.fromfile(at["tokens"], "<u2").tolist()
            mask += at["mask"].read_bytes() if has_mask else [1] * shard.num_tokens
        assert tokens == [token for one in made.documents for token in one]
        assert starts == np.cumsum([0, *map(len, made.documents[:-1])]).tolist()
        expected = [
            is_even(token) if has_mask else 1
            for one, has_mask in zip(made.chunks, made.masked, strict=True)
            for token in one.tokens.tolist()
        ]
        assert mask == expected
        total = sum((record.statistics for record in records), Statistics())
        assert sum(total.lengths) == len(made.documents), "each is counted once"
        assert (total.num_unknown, total.num_masked) == (tokens.count(UNKNOWN), mask.count(0))
        assert sum(record.num_bytes for record in records) == 3 * len(tokens)
        assert first_chunk == len(made.chunks)
        assert [record.is_last for record in records] == [False] * (len(records) - 1) + [True]


def test_a_mask_that_comes_late_counts_everything_before_it(folder: Path) -> None:
    many = 2**20 + 5
    files = ShardFiles(Store(folder), "00000", "uint16")
    none = np.empty(0, dtype=np.int64)
    files.write(PackedTokens(np.zeros(many, np.uint16), None, none))
    files.write(PackedTokens(np.zeros(2, np.uint16), np.array([0, 1], np.uint8), none))
    files.write(PackedTokens(np.zeros(3, np.uint16), None, none))
    shard = files.close()
    assert shard is not None
    mask = (folder / "shards" / "00000.mask").read_bytes()
    assert mask == b"\x01" * many + b"\x00\x01" + b"\x01" * 3


def test_every_page_of_tokens_and_of_the_mask_has_a_digest(folder: Path) -> None:
    tokens, mask = np.arange(5001, dtype=np.uint16), np.arange(5001) % 2 == 0
    files = ShardFiles(Store(folder), "00000", "uint16")
    for begin, end in pairwise([0, 0, 1, 2047, 2049, 4096, 5001]):
        none = np.empty(0, dtype=np.int64)
        piece = PackedTokens(tokens[begin:end], mask[begin:end].astype(np.uint8), none)
        files.write(piece)
    shard = files.close()
    assert shard is not None
    expected = [
        xxhash.xxh3_64_intdigest(content[begin : begin + 2048].tobytes()) % 2**32
        for content in (tokens, mask)
        for begin in (0, 2048, 4096)
    ]
    assert np.fromfile(folder / "shards" / "00000.pages", "<u4").tolist() == expected
    assert shard.sizes(2)["pages"] == 4 * 6


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32")])
def test_the_largest_id_of_a_vocabulary_fits(folder: Path, vocab_size: int, dtype: str) -> None:
    words = {"<eos>": 0, **{f"w{number}": number for number in range(1, vocab_size)}}
    tokenizer = Tokenizer(models.WordLevel(words, "<eos>"))
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    save_tokenizer(tokenizer, {"eos_token": "<eos>"}, folder / "words")
    ids = [vocab_size - 1, 1, vocab_size - 2]
    parquet.write_table(pa.table({"ids": [ids, [5]]}), folder / "ids.parquet")
    made = run(job_for(["ids.parquet"], folder / "set", "words", ids="ids"))
    assert made.token_dtype == dtype
    size = (folder / "set" / "shards" / "00000.tokens").stat().st_size
    assert size == 4 * made.token_bytes == 4 * np.dtype(dtype).itemsize
    assert documents_of(folder / "set") == [ids, [5]]


# --- the order of writing


class Watched(Store):
    """Remembers which files were finished when."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.finished: list[str] = []

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        with super().writing(name) as file:
            yield file
        self.finished.append(name)


def test_the_record_comes_after_all_that_it_vouches_for(folder: Path) -> None:
    store = Watched(folder)
    with ShardWriter(store, recipe(), 0, 2, 5) as shard:
        shard.add(encoded([[1, 2]], mask=is_even), [])
        assert store.finished == []
        shard.close(is_last=False)
    assert store.finished[-1] == "shards/00000-2.json"
    kinds = ("tokens", "documents", "mask", "pages")
    assert sorted(store.finished[:-1]) == sorted(f"shards/00000-2.{kind}" for kind in kinds)


def test_a_shard_that_could_not_be_finished_leaves_nothing(folder: Path) -> None:
    with ShardWriter(Store(folder), recipe(), 0, 0, 0) as shard:
        shard.add(encoded([[1, 2]]), [])
        assert list((folder / "shards").glob(".00000.tokens.partial-*"))
    assert list((folder / "shards").iterdir()) == []


def test_a_second_writer_of_a_shard_does_not_damage_the_one_that_has_a_record(
    folder: Path,
) -> None:
    """A preparation that was taken for dead goes on beside the one that took its place, and is
    stopped, or comes to its end."""
    store = Store(folder)
    with ShardWriter(store, recipe(), 0, 0, 0) as late:
        late.add(encoded([[1, 2]]), [])
        with ShardWriter(store, recipe(), 0, 0, 0) as stopped:
            stopped.add(encoded([[1, 2]]), [])
            with ShardWriter(store, recipe(), 0, 0, 0) as first:
                first.add(encoded([[1, 2], [3, 4, 5]]), [])
                record = first.close(is_last=True)
            require_whole(store, record)
            stopped.add(encoded([[3, 4, 5]]), [])
        require_whole(store, record)
        late.add(encoded([[3, 4, 5]]), [])
        require_whole(store, record)
        late.close(is_last=True)
    require_whole(store, record)


def require_whole(store: Store, record: ShardRecord) -> None:
    assert record.shard is not None
    for part, digest in record.shard.digests.items():
        assert file_digest(store.path(shard_file(record.shard.name, part))) == digest


def test_a_unit_without_tokens_is_finished_without_files(folder: Path, tokenizer: Path) -> None:
    write_lines(folder / "a.jsonl", [{"text": " "}] * 50)
    write_lines(folder / "b.jsonl", [{"text": "told"}])
    job = job_for(["a.jsonl", "b.jsonl"], folder / "set", tokenizer, unit_bytes=500)
    made = run(replace(job, allow_unreadable=True))
    assert table_of(folder / "set").name(0) == "00001"
    assert made.num_shards == 1
    assert [path for path in files_of(folder / "set") if "00000" in path] == ["shards/00000.json"]
    digest = made.recipe_digest or ""
    record = read_records(Store(folder / "set"), digest, [0])[0, 0]
    assert (record.shard, record.is_last, record.statistics.num_blank) == (None, True, 50)


@pytest.mark.parametrize(
    ("unit", "index", "name"), [(0, 0, "00000"), (17, 3, "00017-3"), (123_456, 1, "123456-1")]
)
def test_names_of_shards(unit: int, index: int, name: str) -> None:
    assert shard_name(unit, index) == name


# --- a shard whose record is missing or damaged


@pytest.fixture(scope="module")
def whole(tokenizer: Path) -> Iterator[PrepareJob]:
    with folder_in_memory() as folder:
        write_lines(folder / "text.jsonl", [{"text": one} for one in STORIES])
        job = job_for(["text.jsonl"], folder / "set", tokenizer, unit_bytes=6_000)
        run(job)
        yield job


def changed(content: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(content) | fields).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"\xff" + content,
        lambda content: b"[]",
        lambda content: changed(content, of_a_later_version=1),
        lambda content: changed(content, recipe_digest="another"),
        lambda content: content.replace(b'"format_version":3,', b""),
        None,
    ],
    ids=[
        "half",
        "empty",
        "not text",
        "no record",
        "later version",
        "another recipe",
        "version 2",
        "missing",
    ],
)
def test_a_shard_without_a_valid_record_is_rebuilt(
    whole: PrepareJob, folder: Path, damage: Callable[[bytes], bytes] | None
) -> None:
    into = shutil.copytree(whole.into, folder / "set")
    (into / "manifest.json").unlink()
    record = into / "shards" / "00001.json"
    if damage is None:
        record.unlink()
    else:
        record.write_bytes(damage(record.read_bytes()))
    (into / "shards" / "00001.tokens").write_bytes(b"anything")
    kept = [path for path in (into / "shards").iterdir() if "00001" not in path.name]
    before = {path: path.stat().st_mtime_ns for path in kept}
    run(replace(whole, into=str(into)))
    assert files_of(into) == files_of(Path(whole.into))
    assert {path: path.stat().st_mtime_ns for path in kept} == before
    assert read_manifest(Store(into)).num_shards > 2


def test_what_a_kill_in_the_middle_of_a_record_left_does_not_stay(
    tmp_path: Path, tokenizer: Path
) -> None:
    write_lines(tmp_path / "a.txt", stories(20_000, seed=1))
    job = job_for([str(tmp_path / "a.txt")], tmp_path / "set", tokenizer)
    left = Path(job.into) / "shards" / ".00000.json.partial-0123456789ab"
    left.parent.mkdir(parents=True)
    left.write_text("half a record")
    run(job)
    assert not left.exists()
