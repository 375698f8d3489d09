"""Tokens that are not those that were prepared are noticed when they are first read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.errors import BadInput
from headway.state.store import Store
from support.fake_s3 import fake_s3
from support.token_sets import as_version_2, copy_to, write_set

SHARD_TOKENS = 10_000
TOKENS = np.arange(2 * SHARD_TOKENS) % 997
MASK = np.arange(2 * SHARD_TOKENS) % 3 > 0
LENGTH = 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_set(
        tmp_path / "set",
        [(TOKENS.tolist(), MASK.tolist())],
        vocab_size=1000,
        shard_tokens=SHARD_TOKENS,
        block_tokens=1000,
        window_blocks=4,
    )
    return tmp_path / "set"


Opener = Callable[[Path], TokenSet]


@pytest.fixture(params=["local", "store"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens what is in a folder, there or in a store."""

    def open_set(folder: Path) -> TokenSet:
        if request.param == "store":
            folder = copy_to("s3://bucket/set", folder)  # type: ignore[assignment]
        reading = ReadOptions(cache=tmp_path / "cache", trusted=True)
        return TokenSet.open(Store(folder), reading)

    with fake_s3():
        yield open_set


def changed(path: Path, dtype: str, begin: int, end: int, value: int) -> None:
    content = np.fromfile(path, dtype)
    content[begin:end] = value
    content.tofile(path)


def read(tokens: TokenSet, begin: int, end: int) -> None:
    """The samples from token `begin` to token `end`, one by one."""
    for sample in range(begin // LENGTH, end // LENGTH):
        rows = tokens.read(np.array([sample]), LENGTH)
        here = slice(sample * LENGTH, sample * LENGTH + LENGTH + 1)
        assert rows.tokens[0].tolist() == TOKENS[here].tolist()
        assert rows.mask is not None
        assert rows.mask[0].tolist() == MASK[here].tolist()


def test_an_intact_set_is_read(folder: Path, opened: Opener) -> None:
    tokens = opened(folder)
    read(tokens, 0, len(TOKENS) - LENGTH)
    read(tokens, 0, len(TOKENS) - LENGTH)
    tokens.close()


def test_tokens_replaced_by_other_valid_ids_are_noticed(folder: Path, opened: Opener) -> None:
    changed(folder / "shards/00001.tokens", "<u2", SHARD_TOKENS // 2, SHARD_TOKENS, 7)
    tokens = opened(folder)
    read(tokens, 0, SHARD_TOKENS - LENGTH)
    for _ in range(2):  # it stays an error
        with pytest.raises(BadInput) as caught:
            read(tokens, SHARD_TOKENS + 6000, SHARD_TOKENS + 7000)
        assert "the tokens 4096 to 6143 of shard 00001 are not those" in caught.value.message
        assert f"headway data verify {tokens.location}" in str(caught.value.hint)
    tokens.close()


def test_a_changed_mask_is_noticed(folder: Path, opened: Opener) -> None:
    changed(folder / "shards/00000.mask", "u1", 9_999, 10_000, 0 if MASK[9_999] else 1)
    tokens = opened(folder)
    with pytest.raises(BadInput, match="loss mask of the tokens 8192 to 9999 of shard 00000"):
        read(tokens, 9000, 10_000)
    tokens.close()


def test_damaged_digests_of_pages_are_noticed(folder: Path, opened: Opener) -> None:
    changed(folder / "shards/00000.pages", "<u4", 3, 4, 5)
    tokens = opened(folder)
    with pytest.raises(BadInput, match="the tokens 6144 to 8191 of shard 00000 are not those"):
        read(tokens, 0, 8192)
    tokens.close()


@pytest.mark.parametrize("part", ["tokens", "pages"])
def test_a_missing_file_is_named(folder: Path, opened: Opener, part: str) -> None:
    (folder / "shards" / f"00000.{part}").unlink()
    tokens = opened(folder)
    with pytest.raises(BadInput, match=rf"shards/00000\.{part} is missing"):
        read(tokens, 0, LENGTH)
    tokens.close()


def test_a_file_that_is_too_short_is_named(folder: Path, opened: Opener) -> None:
    path = folder / "shards/00000.tokens"
    path.write_bytes(path.read_bytes()[:1000])
    tokens = opened(folder)
    with pytest.raises(BadInput, match=r"shards/00000\.tokens (has 1000 bytes|ends before)"):
        read(tokens, 0, LENGTH)
    tokens.close()


def test_ids_beyond_the_vocabulary_are_an_error_in_words(folder: Path, opened: Opener) -> None:
    as_version_2(folder)
    changed(folder / "shards/00001.tokens", "<u2", 100, 101, 1000)
    tokens = opened(folder)
    read(tokens, 0, 9000)
    words = "shard 00001 has the token id 1000, but the vocabulary has 1000 tokens"
    with pytest.raises(BadInput, match=words):
        read(tokens, SHARD_TOKENS, SHARD_TOKENS + 200)
    tokens.close()


def test_the_table_is_fetched_once_for_all_processes_of_a_machine(
    folder: Path, tmp_path: Path
) -> None:
    asked = []
    with fake_s3() as s3:
        location = copy_to("s3://bucket/set", folder)
        before = s3.cat_file

        def answer(self: object, path: str, *args: object, **how: object) -> bytes:
            asked.append(path.rsplit("/", 1)[-1])
            return before(self, path, *args, **how)  # type: ignore[arg-type]

        s3.cat_file = answer  # type: ignore[method-assign, assignment]
        reading = ReadOptions(cache=tmp_path / "cache", trusted=True)
        with ThreadPoolExecutor(8) as pool:
            sets = list(pool.map(lambda _: TokenSet.open(Store(location), reading), range(8)))
        assert asked.count("shards.table") == 1
        assert len({tokens.digest for tokens in sets}) == 1
        again = TokenSet.open(Store(location), ReadOptions(cache=folder / "manifest.json"))
        assert again.table == sets[0].table, "without a place for it, it is kept in memory"
        stored = next((tmp_path / "cache" / "tables").glob("*.table"))
        stored.write_bytes(stored.read_bytes()[:-1])
        TokenSet.open(Store(location), reading)
        assert asked.count("shards.table") == 3, "what a power cut left is fetched again"


def test_two_swapped_ids_in_a_local_tokenizer_are_noticed(folder: Path) -> None:
    path = folder / "tokenizer" / "tokenizer.json"
    path.write_text(json.dumps({"a": 1, "b": 0}))
    with pytest.raises(BadInput, match=r"tokenizer\.json is missing or is not the set's own"):
        _ = TokenSet.open(Store(folder)).tokenizer_folder


def test_what_is_damaged_on_its_way_is_read_again(
    folder: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_range, damaged = Store.read_range, set[str]()

    def once_damaged(store: Store, name: str, *where: int, **how: bool) -> bytes:
        content = read_range(store, name, *where, **how)
        if name in damaged:
            return content
        damaged.add(name)
        return bytes([content[0] ^ 1]) + content[1:]

    tokens = opened(folder)
    monkeypatch.setattr(Store, "read_range", once_damaged)
    read(tokens, 0, SHARD_TOKENS - LENGTH)
    assert "shards/00000.pages" in damaged
    tokens.close()
