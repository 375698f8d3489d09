"""A manifest describes one set, and one that cannot be right says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data.reading.token_set import TokenSet
from headway.data.reading.verify import verify_set
from headway.data.set_format import SetManifest
from headway.errors import BadInput, NotFound
from headway.state.store import Store
from support.token_sets import as_version_2, write_set


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
        ({"version": 4}, "format version 4; this Headway reads versions 2 and 3"),
        ({"num_shards": 2}, "num_shards is not the number of shards"),
        ({"shard_table": "../shards.table"}, "shard_table"),
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
    as_version_2(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"00000"', '"../../00000"'))
    with pytest.raises(BadInput, match=r"shards\.0\.name"):
        TokenSet.open(Store(tmp_path))


def test_a_damaged_table_of_shards_is_refused(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    path = tmp_path / "shards.table"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x01")
    with pytest.raises(BadInput, match=r"shards\.table is damaged"):
        TokenSet.open(Store(tmp_path))
    assert "shards.table is damaged" in verify_set(Store(tmp_path))[0].message
    path.unlink()
    with pytest.raises(BadInput, match=r"shards\.table is missing"):
        TokenSet.open(Store(tmp_path))


def test_a_set_of_version_2_is_read_under_its_digest(tmp_path: Path) -> None:
    ten_tokens(tmp_path)
    as_version_2(tmp_path)
    opened = TokenSet.open(Store(tmp_path))
    assert opened.digest == "abdd154e4f1e918ca77dd69e03c8f3b1"
    assert opened.read(np.array([0]), 9).tokens.tolist() == [list(range(1, 11))]
    assert verify_set(Store(tmp_path)) == []
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["shards"].append(manifest["shards"][0])
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="do not add up"):
        TokenSet.open(Store(tmp_path))


def test_a_reader_of_twenty_lines_reads_a_set(tmp_path: Path) -> None:
    """As `docs/reference/shard-format.md` has it, for loops that are not Headway's."""
    write_set(tmp_path / "set", [(range(90), None)], shard_tokens=40)
    page = (Path(__file__).parents[3] / "docs/reference/shard-format.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert sum(bool(line) for line in code.splitlines()) <= 20
    names: dict[str, Any] = {}
    exec(code, names)
    tokens = names["Tokens"](tmp_path / "set")
    assert len(tokens) == 90
    assert tokens.read(35, 85).tolist() == list(range(35, 85))
    assert tokens.read(0, 90).tolist() == list(range(90))
