"""Verification reads every byte, wherever the set is, and says which shard to make again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data.reading import verify as verifying
from headway.data.reading.token_set import TokenSet
from headway.data.reading.verify import Damage, verify_set
from headway.errors import BadInput
from headway.state.store import Store
from support.clock import Patient
from support.fake_s3 import FakeS3, fake_s3
from support.token_sets import copy_to, write_set

MASKED = [([1, 2, 3, 4], [True] * 4)]


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A masked set of two shards."""
    write_set(tmp_path / "set", MASKED, shard_tokens=3)
    if request.param == "folder":
        yield Store(tmp_path / "set")
    else:
        with fake_s3():
            yield Store(copy_to("s3://bucket/set", tmp_path / "set"))


def test_an_intact_set_has_no_damage(store: Store) -> None:
    assert verify_set(Store(store.root)) == []


@pytest.mark.parametrize("part", ["tokens", "documents", "mask"])
def test_a_file_cut_short_is_noticed_on_opening(store: Store, part: str) -> None:
    name = f"shards/00000.{part}"
    store.write(name, store.read(name)[:-1])
    with pytest.raises(BadInput, match=f"00000.{part} has"):
        TokenSet.open(Store(store.root))
    assert [damage.shard for damage in verify_set(Store(store.root))] == ["00000", "00000"]
    store.remove(name)
    with pytest.raises(BadInput, match=f"00000.{part} is missing"):
        TokenSet.open(Store(store.root))
    assert verify_set(Store(store.root)) == [Damage("00000", f"{store.location(name)} is missing")]


@pytest.mark.parametrize(
    "name", ["shards/00001.tokens", "shards/00000.documents", "shards/00000.mask"]
)
def test_a_single_flipped_bit_is_found(store: Store, name: str) -> None:
    content = bytearray(store.read(name))
    content[-1] ^= 1
    store.write(name, bytes(content))
    TokenSet.open(Store(store.root))
    words = f"{store.location(name)} is damaged: its content does not have the recorded digest"
    assert verify_set(Store(store.root)) == [Damage(name[7:12], words)]


def test_another_tokenizer_is_noticed(store: Store) -> None:
    store.write("tokenizer/tokenizer.json", b"{ }")
    (damage,) = verify_set(Store(store.root))
    assert damage.shard is None
    assert "tokenizer.json is damaged" in damage.message
    store.remove("tokenizer/tokenizer.json")
    (damage,) = verify_set(Store(store.root))
    assert "tokenizer.json is missing" in damage.message


def test_a_manifest_that_contradicts_itself_is_damage_of_no_shard(store: Store) -> None:
    manifest = store.read("manifest.json")
    store.write("manifest.json", manifest.replace(b'"num_tokens":4', b'"num_tokens":5'))
    (damage,) = verify_set(Store(store.root))
    assert damage.shard is None
    assert "do not add up" in damage.message


def test_files_are_hashed_piece_by_piece(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "CHUNK_BYTES", 3)
    assert verify_set(Store(store.root)) == []


def test_a_store_that_is_unavailable_for_a_moment_is_not_damage(tmp_path: Path) -> None:
    write_set(tmp_path / "set", MASKED, shard_tokens=3)
    with fake_s3() as s3:
        location = copy_to("s3://bucket/set", tmp_path / "set")
        read, left = FakeS3.cat_file, [5]

        def fail_at_first(*args: object, **how: object) -> bytes:
            left[0] -= 1
            if left[0] >= 0:
                raise OSError("503 slow down")
            return bytes(read(*args, **how))

        s3.cat_file = fail_at_first  # type: ignore[method-assign, assignment]
        clock = Patient()
        assert verify_set(Store(location), clock) == []
        assert clock.passed > 0
