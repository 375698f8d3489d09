"""A prepared set gives back the tokens put in, whatever the shards and wherever they are."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.reading.block_cache import CACHE_BYTES, cache_bytes
from headway.data.reading.sample_set import SampleSet, open_set
from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.data.reading.token_stream import MappedStream, ShardIndex, max_open_maps
from headway.data.reading.verify import verify_set
from headway.data.set_format import SetManifest, SpecialIds
from headway.data.shard_table import Shard
from headway.errors import BadInput, NotFound
from headway.state.store import Store
from headway.state.user_cache import cache_root
from support.fake_s3 import FakeS3, fake_s3
from support.stolen_time import Stopwatch
from support.token_sets import Document, copy_to, write_set

TEN_TOKENS: list[Document] = [([1, 2, 3, 4], None), ([5, 6, 7, 8, 9, 10], None)]

masked_ids = st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=30)
drawn_documents = st.lists(st.tuples(masked_ids, st.booleans()), min_size=1, max_size=12).filter(
    lambda documents: any(pairs for pairs, _ in documents)
)


def documents_of(drawn: list[tuple[list[tuple[int, bool]], bool]]) -> list[Document]:
    return [
        ([token for token, _ in pairs], [counts for _, counts in pairs] if has_mask else None)
        for pairs, has_mask in drawn
    ]


@settings(max_examples=60)
@given(
    drawn=drawn_documents,
    shard_tokens=st.integers(1, 40),
    block_tokens=st.integers(1, 60),
    length=st.integers(1, 25),
    vocab_size=st.sampled_from([100, 2**16, 2**16 + 1]),
)
def test_every_sample_is_its_part_of_the_stream_in_a_folder_and_in_a_store(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[list[tuple[int, bool]], bool]],
    shard_tokens: int,
    block_tokens: int,
    length: int,
    vocab_size: int,
) -> None:
    documents = documents_of(drawn)
    folder = tmp_path_factory.mktemp("set")
    manifest = write_set(
        folder,
        documents,
        vocab_size=vocab_size,
        shard_tokens=shard_tokens,
        block_tokens=block_tokens,
        window_blocks=2,
    )
    assert verify_set(Store(folder)) == []
    with fake_s3():
        far = copy_to("s3://bucket/set", folder)
        cache = tmp_path_factory.mktemp("cache")
        for location in (folder, far):
            opened = TokenSet.open(Store(location), ReadOptions(cache=cache))
            assert opened.manifest == manifest
            check_rows(opened, documents, length)
            check_starts(opened, documents)
            opened.close()


def check_rows(opened: TokenSet, documents: list[Document], length: int) -> None:
    stream = np.array([token for ids, _ in documents for token in ids])
    counts = [
        c for ids, mask in documents for c in (mask if mask is not None else [True] * len(ids))
    ]
    num_samples = opened.num_samples(length)
    assert num_samples == (len(stream) - 1) // length
    used = num_samples * length + 1 if num_samples else 0
    assert opened.tail_tokens(length) == len(stream) - used
    if num_samples == 0:
        return
    opened.prefetch(7, length, 0, 1)
    samples = opened.order(7, length).at(0, num_samples)[1]
    rows = opened.read(samples, length)
    assert rows.tokens.dtype == np.int64
    assert rows.tokens.shape == (num_samples, length + 1)
    for row, sample in enumerate(samples.tolist()):
        piece = slice(sample * length, sample * length + length + 1)
        assert np.array_equal(rows.tokens[row], stream[piece])
        if rows.mask is not None:
            assert rows.mask[row].tolist() == counts[piece]
        else:
            assert all(counts)


def check_starts(opened: TokenSet, documents: list[Document]) -> None:
    found, first = [], 0
    for number, shard in enumerate(opened.manifest.shards):
        inside = opened.document_starts(number)
        assert inside.dtype == np.int64
        assert ((inside >= 0) & (inside < shard.num_tokens)).all()
        found += (inside + first).tolist()
        first += shard.num_tokens
    lengths = [len(ids) for ids, _ in documents if ids]
    assert found == np.cumsum([0, *lengths[:-1]]).tolist()
    assert opened.manifest.num_documents == len(lengths)


def test_samples_come_in_the_order_asked_for(tmp_path: Path) -> None:
    write_set(tmp_path, TEN_TOKENS, shard_tokens=3)
    rows = TokenSet.open(Store(tmp_path)).read(np.array([2, 0, 2]), 3)
    assert rows.tokens.tolist() == [[7, 8, 9, 10], [1, 2, 3, 4], [7, 8, 9, 10]]
    assert rows.mask is None


def test_windows_do_not_overlap_and_have_one_length(tmp_path: Path) -> None:
    write_set(tmp_path, [(range(1, 13), None)], window_tokens=4, shard_tokens=5)
    opened = TokenSet.open(Store(tmp_path))
    assert opened.num_samples(4) == 3
    assert opened.tail_tokens(4) == 0
    assert opened.read(np.array([1, 2]), 4).tokens.tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]]
    with pytest.raises(BadInput, match=r"windows of 4 tokens.*sequence_length is 8"):
        opened.num_samples(8)


def test_the_order_covers_the_set_with_the_blocks_frozen_in_it(tmp_path: Path) -> None:
    write_set(tmp_path, TEN_TOKENS)
    order = TokenSet.open(Store(tmp_path)).order(17, 2)
    assert order.num_samples == 4
    assert order.samples_per_block == 2**19
    assert order.window_blocks == 64
    assert sorted(order.at(0, 4)[1].tolist()) == [0, 1, 2, 3]


def test_a_set_too_short_for_one_sample_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path, TEN_TOKENS)
    opened = TokenSet.open(Store(tmp_path))
    assert opened.num_samples(10) == 0
    assert opened.tail_tokens(10) == 10
    with pytest.raises(BadInput, match="10 tokens, too few for one sample of sequence_length 10"):
        opened.order(1, 10)


def test_training_sees_a_set_by_what_all_kinds_have(tmp_path: Path) -> None:
    manifest = write_set(tmp_path, TEN_TOKENS)
    opened: SampleSet = open_set(Store(f"{tmp_path}/"))
    assert opened.location == str(tmp_path)
    assert opened.digest == manifest.digest
    assert (opened.layout, opened.window_tokens, opened.vocab_size) == ("stream", None, 100)
    assert opened.special_ids == SpecialIds(end_of_text=0, special=(0,))
    assert opened.tokenizer_digest == manifest.tokenizer_digest
    assert opened.tokenizer_folder == tmp_path / "tokenizer"
    opened.close()


def test_more_shards_than_may_be_mapped_at_once_can_be_read(tmp_path: Path) -> None:
    manifest = write_set(tmp_path, [(range(50), None)], shard_tokens=3)
    stream = MappedStream(Store(tmp_path), ShardIndex(manifest), max_maps=2)
    rows = np.empty((7, 7), dtype=np.int64)
    stream.read([0, 7, 14, 21, 28, 35, 42], rows, None, 7)
    assert rows.reshape(-1).tolist() == list(range(49))


def test_mappings_leave_file_descriptors_for_others() -> None:
    """Each holds one, and 1024 in all is what most systems allow at first."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        assert max_open_maps() <= 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_several_threads_may_read_at_once(tmp_path: Path) -> None:
    manifest = write_set(tmp_path, [(range(97), None)], shard_tokens=2)
    stream = MappedStream(Store(tmp_path), ShardIndex(manifest), max_maps=2)

    def read(start: int) -> list[int]:
        rows = np.empty((1, 20), dtype=np.int64)
        stream.read([start], rows, None, 20)
        return rows[0].tolist()

    starts = list(range(77)) * 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, starts)) == [list(range(s, s + 20)) for s in starts]


# --- in an object store


@pytest.fixture
def far(tmp_path: Path):
    write_set(tmp_path / "set", TEN_TOKENS, shard_tokens=3)
    (tmp_path / "set" / "tokenizer" / "tokenizer_config.json").write_text("[]")
    with fake_s3() as s3:
        yield s3, copy_to("s3://bucket/set", tmp_path / "set")


def test_a_set_in_a_store_is_opened_with_a_listing_and_not_file_by_file(
    far: tuple[type[FakeS3], str], tmp_path: Path
) -> None:
    s3, location = far
    asked = []
    for name in ("find", "info", "cat_file"):
        before = getattr(s3, name)

        def count(self: object, path: str, *args: object, before=before, name=name, **how: object):
            asked.append(name)
            return before(self, path, *args, **how)

        setattr(s3, name, count)
    opened = TokenSet.open(Store(location), ReadOptions(cache=tmp_path / "cache"))
    assert asked.count("find") == 1
    assert asked.count("cat_file") == 1, "the manifest"
    assert not (tmp_path / "cache").exists(), "opening writes nothing"
    opened.close()


def test_the_tokenizer_of_a_set_in_a_store_is_fetched_once(
    far: tuple[type[FakeS3], str], tmp_path: Path
) -> None:
    s3, location = far
    reading = ReadOptions(cache=tmp_path / "cache")
    folder = TokenSet.open(Store(location), reading).tokenizer_folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for key in [key for key in s3.store if "tokenizer" in key]:
        del s3.store[key]
    assert TokenSet.open(Store(location), reading).tokenizer_folder == folder
    (folder / "tokenizer.json").write_text("half")
    with pytest.raises(BadInput, match=r"tokenizer\.json is missing or is not the set's own"):
        _ = TokenSet.open(Store(location), reading).tokenizer_folder


def test_a_tokenizer_needs_no_cache(far: tuple[type[FakeS3], str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is where the folder should be")
    folder = TokenSet.open(Store(far[1]), ReadOptions(cache=tmp_path / "cache")).tokenizer_folder
    assert (folder / "tokenizer.json").read_text() == "{}"


def test_no_set_in_a_store(far: tuple[type[FakeS3], str]) -> None:
    with pytest.raises(NotFound, match=r"s3://bucket/other is not a prepared set"):
        TokenSet.open(Store("s3://bucket/other"))


def test_opening_takes_milliseconds_for_each_hundred_shards(tmp_path: Path) -> None:
    """Simulated: a listing in memory, and a manifest as large as that of 10^12 tokens."""
    num_shards = 20_000
    digest = xxhash.xxh3_128_hexdigest(b"")
    shards = tuple(
        Shard(
            name=f"{number:05d}",
            num_tokens=2**26,
            num_documents=1,
            has_mask=False,
            digests={"tokens": digest, "documents": digest},
        )
        for number in range(num_shards)
    )
    manifest = SetManifest(
        layout="stream",
        vocab_size=2**16,
        token_dtype="uint16",
        num_tokens=num_shards * 2**26,
        num_documents=num_shards,
        num_bytes=1,
        special_ids=SpecialIds(),
        tokenizer_digest=digest,
        shards=shards,
        created_by="a test",
    )
    listing = {
        f"/bucket/set/shards/{shard.name}.{part}": {"size": size, "type": "file"}
        for shard in shards
        for part, size in shard.sizes(2).items()
    }
    with fake_s3() as s3:
        Store("s3://bucket/set").write("manifest.json", manifest.model_dump_json().encode())
        s3.find = lambda *_, **__: listing  # type: ignore[method-assign, assignment]
        watch = Stopwatch()
        opened = TokenSet.open(Store("s3://bucket/set"), ReadOptions(cache=tmp_path))
        assert opened.num_samples(4096) == num_shards * 2**14 - 1
        assert watch.seconds < 60, "100,000 shards take five times as long"


def test_where_the_cache_is_and_how_large_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("HEADWAY_CACHE", raising=False)
    assert cache_root() == Path("/x/headway")
    monkeypatch.setenv("HEADWAY_CACHE", "/fast/disk")
    assert cache_root() == Path("/fast/disk")
    monkeypatch.delenv("HEADWAY_CACHE_BYTES", raising=False)
    assert cache_bytes() == CACHE_BYTES
    monkeypatch.setenv("HEADWAY_CACHE_BYTES", "1000000")
    assert cache_bytes() == 10**6
    monkeypatch.setenv("HEADWAY_CACHE_BYTES", "16GiB")
    with pytest.raises(BadInput, match="HEADWAY_CACHE_BYTES is '16GiB', not a number of bytes"):
        cache_bytes()
