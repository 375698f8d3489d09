"""A manifest describes one set, and one that cannot be right says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.data.reading.token_set import TokenSet
from headway.data.set_format import SetManifest
from headway.errors import BadInput, NotFound
from headway.state.store import Store
from support.token_sets import write_set


def ten_tokens(folder: Path, **options: int) -> SetManifest:
    return write_set(folder, [([1, 2, 3, 4], None), ([5, 6, 7, 8, 9, 10], None)], **options)  # type: ignore[arg-type]


def test_files_are_little_endian_and_as_small_as_the_vocabulary_allows(tmp_path: Path) -> None:
    ten_tokens(tmp_path / "small", vocab_size=2**16)
    ten_tokens(tmp_path / "large", vocab_size=2**16 + 1)
    small = (tmp_path / "small" / "shards" / "00000.tokens").read_bytes()
    assert small == b"".join(token.to_bytes(2, "little") for token in range(1, 11))
    large = (tmp_path / "large" / "shards" / "00000.tokens").read_bytes()
    assert large == b"".join(token.to_bytes(4, "little") for token in range(1, 11))


def test_identity_is_the_content_not_the_place(tmp_path: Path) -> None:
    one, other = ten_tokens(tmp_path / "one"), ten_tokens(tmp_path / "other")
    assert one.digest == other.digest
    later = one.model_copy(update={"created_by": "headway 9.9"})
    assert later.digest == one.digest
    changed = write_set(tmp_path / "changed", [([1, 2, 3, 4], None), ([5, 6, 7, 8, 9, 11], None)])
    assert changed.digest != one.digest
    for fact in ({"block_tokens": 7}, {"window_blocks": 7}, {"tokenizer_digest": "0"}):
        assert one.model_copy(update=fact).digest != one.digest


def test_a_folder_without_a_manifest_is_not_a_set(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(NotFound, match="not a prepared set") as caught:
        TokenSet.open(Store(tmp_path))
    assert caught.value.hint
    with pytest.raises(NotFound, match="nowhere"):
        TokenSet.open(Store(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 3}, "format version 3; this Headway reads version 2"),
        ({"colour": "red"}, "colour"),
        ({"num_tokens": 11}, "do not add up"),
        ({"num_documents": 3}, "do not add up"),
        ({"token_dtype": "uint32"}, "does not fit the vocabulary"),
        ({"layout": "windows"}, "window_tokens"),
        ({"layout": "windows", "window_tokens": 3}, "whole number of windows"),
    ],
)
def test_an_impossible_manifest_is_refused(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    ten_tokens(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BadInput, match=says):
        TokenSet.open(Store(tmp_path))


def test_a_manifest_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(BadInput, match="not valid JSON"):
        TokenSet.open(Store(tmp_path))


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"00000"', '"../../00000"'))
    with pytest.raises(BadInput, match=r"shards\.0\.name"):
        TokenSet.open(Store(tmp_path))
