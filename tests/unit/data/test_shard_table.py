"""The shards of a set, as the arrays of one file."""

from __future__ import annotations

import numpy as np
import pytest

from headway.data.shard_table import SHARD_BYTES, Shard, ShardTable


def shard(name: str, num_tokens: int, num_documents: int = 1, **digests: str) -> Shard:
    return Shard(
        name=name,
        num_tokens=num_tokens,
        num_documents=num_documents,
        has_mask="mask" in digests,
        digests={"tokens": "ab" * 16, "documents": "00" * 15 + "01", **digests},  # type: ignore[arg-type]
    )


SHARDS = [
    shard("00000", 10),
    shard("00000-1", 5000, 0, mask="0c" * 16, pages="0d" * 16),
    shard("123456", 7, 3),
]


def test_a_table_gives_back_its_shards_also_from_its_bytes() -> None:
    table = ShardTable.of(SHARDS)
    assert list(table) == SHARDS
    content = table.to_bytes()
    assert len(content) == SHARD_BYTES * 3
    assert list(ShardTable.from_bytes(content)) == SHARDS
    assert (table.num_tokens, table.num_documents) == (5017, 4)
    assert [table.name(number) for number in range(3)] == ["00000", "00000-1", "123456"]
    assert SHARDS[1].sizes(2)["pages"] == 2 * 3 * 4


def test_ends_come_first_so_that_any_reader_maps_them() -> None:
    content = ShardTable.of(SHARDS).to_bytes()
    assert np.frombuffer(content, "<i8", count=3).tolist() == [10, 5010, 5017]


def test_the_first_shards_of_a_table_are_a_table() -> None:
    table = ShardTable.of(SHARDS)
    first = ShardTable.of(SHARDS[:2])
    assert table.first(2) == first
    assert table.starts_with(first)
    assert not first.starts_with(table)
    assert not table.starts_with(ShardTable.of(SHARDS[1:]))
    assert first.followed_by(ShardTable.of(SHARDS[2:])) == table
    assert ShardTable.of([]).followed_by(table) == table


def test_a_table_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        ShardTable.from_bytes(ShardTable.of(SHARDS).to_bytes()[:-1])
