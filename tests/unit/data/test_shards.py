"""A prepared set gives back the tokens put in, whatever the shards, and a broken one says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.shards import SetManifest, SpecialIds, TokenSet, file_digest, verify
from headway.data.writer import SetWriter
from headway.errors import BadInput, NotFound

Documents = list[tuple[list[int], list[bool] | None]]


def write_set(
    folder: Path,
    documents: Documents,
    *,
    vocab_size: int = 100,
    shard_tokens: int = 2**26,
    window_tokens: int | None = None,
) -> SetManifest:
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    layout = "stream" if window_tokens is None else "windows"
    with SetWriter(
        folder, vocab_size, layout=layout, window_tokens=window_tokens, shard_tokens=shard_tokens
    ) as writer:
        for ids, mask in documents:
            writer.add(np.array(ids, dtype=np.int64), None if mask is None else np.array(mask))
        return writer.finish(
            special_ids=SpecialIds(end_of_text=0, special=(0,)),
            tokenizer_digest=file_digest(folder / "tokenizer" / "tokenizer.json"),
            num_bytes=123,
        )


def ten_tokens(folder: Path, **options: int) -> SetManifest:
    return write_set(folder, [([1, 2, 3, 4], None), ([5, 6, 7, 8, 9, 10], None)], **options)


masked_ids = st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=30)
some_documents = st.lists(st.tuples(masked_ids, st.booleans()), min_size=1, max_size=12).filter(
    lambda documents: any(pairs for pairs, _ in documents)
)


@settings(deadline=None, max_examples=40)
@given(
    drawn=some_documents,
    shard_tokens=st.integers(1, 40),
    length=st.integers(1, 25),
    vocab_size=st.sampled_from([100, 2**16, 2**16 + 1]),
)
def test_every_sample_is_its_part_of_the_stream_however_it_is_sharded(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[list[tuple[int, bool]], bool]],
    shard_tokens: int,
    length: int,
    vocab_size: int,
) -> None:
    documents: Documents = [
        ([token for token, _ in pairs], [counts for _, counts in pairs] if has_mask else None)
        for pairs, has_mask in drawn
    ]
    folder = tmp_path_factory.mktemp("set")
    manifest = write_set(folder, documents, vocab_size=vocab_size, shard_tokens=shard_tokens)
    opened = TokenSet.open(folder)
    assert opened.manifest == manifest
    assert verify(folder) == []

    stream = np.array([token for ids, _ in documents for token in ids])
    counts = [
        c for ids, mask in documents for c in (mask if mask is not None else [True] * len(ids))
    ]
    num_samples = opened.num_samples(length)
    assert num_samples == (len(stream) - 1) // length
    rows = opened.read(np.arange(num_samples), length)
    assert rows.tokens.dtype == np.int64
    assert rows.tokens.shape == (num_samples, length + 1)
    for number in range(num_samples):
        piece = slice(number * length, number * length + length + 1)
        assert np.array_equal(rows.tokens[number], stream[piece])
        if rows.mask is not None:
            assert rows.mask[number].tolist() == counts[piece]
        else:
            assert all(counts)
    used = num_samples * length + 1 if num_samples else 0
    assert opened.tail_tokens(length) == len(stream) - used

    starts = np.concatenate(
        [
            np.fromfile(folder / "shards" / f"{shard.name}.documents", dtype="<u8")
            for shard in manifest.shards
        ]
    )
    lengths = [len(ids) for ids, _ in documents if ids]
    assert starts.tolist() == np.cumsum([0, *lengths[:-1]]).tolist()
    assert manifest.num_documents == len(lengths)


def test_samples_come_in_the_order_asked_for(tmp_path: Path) -> None:
    ten_tokens(tmp_path, shard_tokens=3)
    rows = TokenSet.open(tmp_path).read(np.array([2, 0, 2]), 3)
    assert rows.tokens.tolist() == [[7, 8, 9, 10], [1, 2, 3, 4], [7, 8, 9, 10]]
    assert rows.mask is None


def test_windows_do_not_overlap_and_have_one_length(tmp_path: Path) -> None:
    write_set(tmp_path, [(list(range(1, 13)), None)], window_tokens=4, shard_tokens=5)
    opened = TokenSet.open(tmp_path)
    assert opened.num_samples(4) == 3
    assert opened.tail_tokens(4) == 0
    assert opened.read(np.array([1, 2]), 4).tokens.tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]]
    with pytest.raises(BadInput, match=r"windows of 4 tokens.*sequence_length is 8"):
        opened.num_samples(8)


def test_files_are_little_endian_and_as_small_as_the_vocabulary_allows(tmp_path: Path) -> None:
    ten_tokens(tmp_path / "small", vocab_size=2**16)
    ten_tokens(tmp_path / "large", vocab_size=2**16 + 1)
    small = (tmp_path / "small" / "shards" / "00000.tokens").read_bytes()
    assert small == b"".join(token.to_bytes(2, "little") for token in range(1, 11))
    large = (tmp_path / "large" / "shards" / "00000.tokens").read_bytes()
    assert large == b"".join(token.to_bytes(4, "little") for token in range(1, 11))


def test_the_order_covers_the_set_with_the_blocks_frozen_in_it(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    order = TokenSet.open(tmp_path).order(17, 2)
    assert order.num_samples == 4
    assert order.samples_per_block == 2**19
    assert order.window_blocks == 64
    assert sorted(order.at(0, 4)[1].tolist()) == [0, 1, 2, 3]


def test_a_set_too_short_for_one_sample_is_refused(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    opened = TokenSet.open(tmp_path)
    assert opened.num_samples(10) == 0
    assert opened.tail_tokens(10) == 10
    with pytest.raises(BadInput, match="10 tokens, too few for one sample of sequence_length 10"):
        opened.order(1, 10)


def test_identity_is_the_content_not_the_place(tmp_path: Path) -> None:
    one, other = ten_tokens(tmp_path / "one"), ten_tokens(tmp_path / "other")
    assert one.digest == other.digest
    later = one.model_copy(update={"created_by": "headway 9.9"})
    assert later.digest == one.digest
    changed = write_set(tmp_path / "changed", [([1, 2, 3, 4], None), ([5, 6, 7, 8, 9, 11], None)])
    assert changed.digest != one.digest
    for fact in ({"block_tokens": 7}, {"window_blocks": 7}, {"tokenizer_digest": "0"}):
        assert one.model_copy(update=fact).digest != one.digest


def test_interrupted_preparation_leaves_no_set_and_can_be_started_again(tmp_path: Path) -> None:
    def interrupted() -> None:
        with SetWriter(tmp_path, 100, shard_tokens=4) as writer:
            writer.add(np.arange(30))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(NotFound, match="not a prepared set") as caught:
        TokenSet.open(tmp_path)
    assert caught.value.hint
    ten_tokens(tmp_path)
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == [
        "00000.documents",
        "00000.tokens",
    ]


def test_a_finished_set_is_not_written_over(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    with pytest.raises(BadInput, match="already holds a prepared set"):
        SetWriter(tmp_path, 100)
    assert verify(tmp_path) == []


def test_a_set_without_tokens_cannot_be_finished(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no tokens"):
        write_set(tmp_path, [([], None)])
    assert not (tmp_path / "manifest.json").exists()


def test_a_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        TokenSet.open(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, "format version 2; this Headway reads version 1"),
        ({"colour": "red"}, "colour"),
        ({"num_tokens": 11}, "do not add up"),
        ({"num_documents": 3}, "do not add up"),
        ({"token_dtype": "uint32"}, "does not fit the vocabulary"),
        ({"layout": "windows"}, "window_tokens"),
        ({"layout": "windows", "window_tokens": 3}, "whole number of windows"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    ten_tokens(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BadInput, match=says):
        TokenSet.open(tmp_path)


def test_a_manifest_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(BadInput, match="not valid JSON"):
        TokenSet.open(tmp_path)


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"00000"', '"../../00000"'))
    with pytest.raises(BadInput, match=r"shards\.0\.name"):
        TokenSet.open(tmp_path)


@pytest.mark.parametrize("part", ["tokens", "documents", "mask"])
def test_a_file_cut_short_is_noticed_on_opening(tmp_path: Path, part: str) -> None:
    write_set(tmp_path, [([1, 2, 3], [True, False, True])])
    path = tmp_path / "shards" / f"00000.{part}"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInput, match=f"00000.{part} has"):
        TokenSet.open(tmp_path)
    path.unlink()
    with pytest.raises(BadInput, match=f"00000.{part} is missing"):
        TokenSet.open(tmp_path)
    assert len(verify(tmp_path)) == 1


@pytest.mark.parametrize(
    "name", ["shards/00001.tokens", "shards/00000.documents", "shards/00000.mask"]
)
def test_verify_finds_a_single_flipped_bit(tmp_path: Path, name: str) -> None:
    write_set(tmp_path, [([1, 2, 3, 4], [True] * 4)], shard_tokens=3)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    TokenSet.open(tmp_path)
    assert [path.as_posix() in problem for problem in verify(tmp_path)] == [True]


def test_verify_notices_another_tokenizer(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{ }")
    assert "tokenizer.json is damaged" in verify(tmp_path)[0]
    (tmp_path / "tokenizer" / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in verify(tmp_path)[0]


def test_more_shards_than_may_be_mapped_at_once_can_be_read(tmp_path: Path) -> None:
    manifest = write_set(tmp_path, [(list(range(50)), None)], shard_tokens=3)
    rows = TokenSet(tmp_path, manifest, max_open_maps=2).read(np.arange(7), 7)
    assert rows.tokens[:, 0].tolist() == [0, 7, 14, 21, 28, 35, 42]
