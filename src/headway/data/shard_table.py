"""The shards of a set as arrays: the file `shards.table` beside a set's manifest.

    token_ends      int64       end of each shard in the set's stream of tokens
    document_ends   int64       the same, in documents
    tokens          16 bytes    xxh3_128 of each shard's file; zeros if the shard has no such file
    documents       16 bytes
    mask            16 bytes
    pages           16 bytes
    units           uint32      a shard's name is its unit, and its index in the unit
    indexes         uint32
    has_mask        uint8

The arrays follow one another, little-endian, without header or padding, one entry a shard in each.
A reader maps the file: it costs memory only for the entries that are touched, whatever their
number, and no Python object a shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict, Field

Part = Literal["tokens", "documents", "mask", "pages"]
PARTS: tuple[Part, ...] = ("tokens", "documents", "mask", "pages")

PAGE_TOKENS = 2048
"""Tokens per page, the unit that is verified when it is first read: two pages are enough for most
rows, and 20 GB of digests for 10^13 tokens."""
PAGE_DIGEST_BYTES = 4

_DTYPES = {
    "token_ends": "<i8",
    "document_ends": "<i8",
    **dict.fromkeys(PARTS, "V16"),
    "units": "<u4",
    "indexes": "<u4",
    "has_mask": "u1",
}
SHARD_BYTES = sum(np.dtype(dtype).itemsize for dtype in _DTYPES.values())
"""Size of the table per shard."""


class Shard(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[0-9]{5,}(-[0-9]+)?$")
    """Name of the files without suffix. Digits and hyphens only: a manifest cannot point outside
    its folder."""
    num_tokens: int = Field(ge=1)
    num_documents: int = Field(ge=0)
    """Number of documents that start in this shard."""
    has_mask: bool
    digests: dict[Part, str]
    """xxh3_128 of each file, in hexadecimal."""

    def sizes(self, token_bytes: int) -> dict[Part, int]:
        """The required size of each file, in bytes."""
        sizes: dict[Part, int] = {
            "tokens": self.num_tokens * token_bytes,
            "documents": self.num_documents * 8,
        }
        if self.has_mask:
            sizes["mask"] = self.num_tokens
        if "pages" in self.digests:
            sizes["pages"] = pages_bytes(self.num_tokens, self.has_mask)
        return sizes


def shard_name(unit: int, index: int) -> str:
    return f"{unit:05d}" if index == 0 else f"{unit:05d}-{index}"


def pages_bytes(num_tokens: int, has_mask: bool) -> int:
    """Size of a shard's digests of pages: those of its tokens, then those of its mask."""
    return PAGE_DIGEST_BYTES * -(-num_tokens // PAGE_TOKENS) * (2 if has_mask else 1)


@dataclass(frozen=True, eq=False)
class ShardTable:
    token_ends: np.ndarray
    document_ends: np.ndarray
    tokens: np.ndarray
    documents: np.ndarray
    mask: np.ndarray
    pages: np.ndarray
    units: np.ndarray
    indexes: np.ndarray
    has_mask: np.ndarray

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> ShardTable:
        listed = list(shards)
        numbers = [[int(number) for number in shard.name.split("-")] for shard in listed]
        columns: dict[str, object] = {
            "token_ends": np.cumsum([shard.num_tokens for shard in listed]),
            "document_ends": np.cumsum([shard.num_documents for shard in listed]),
            "units": [number[0] for number in numbers],
            "indexes": [number[1] if len(number) > 1 else 0 for number in numbers],
            "has_mask": [shard.has_mask for shard in listed],
        }
        for part in PARTS:
            digests = b"".join(
                bytes.fromhex(shard.digests.get(part, "00" * 16)) for shard in listed
            )
            columns[part] = np.frombuffer(digests, _DTYPES[part])
        return cls(**{name: np.asarray(columns[name], dtype) for name, dtype in _DTYPES.items()})

    @classmethod
    def from_bytes(cls, content: bytes | np.ndarray) -> ShardTable:
        """The table over the content of a file, which is not copied. ValueError if its size is not
        that of a table."""
        content = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
        count, rest = divmod(len(content), SHARD_BYTES)
        if rest:
            raise ValueError(f"{len(content)} bytes are not a whole number of shards")
        columns, begin = {}, 0
        for name, dtype in _DTYPES.items():
            end = begin + count * np.dtype(dtype).itemsize
            columns[name] = content[begin:end].view(dtype)
            begin = end
        return cls(**columns)

    def to_bytes(self) -> bytes:
        return b"".join(column.tobytes() for column in self._columns())

    @property
    def digest(self) -> str:
        """xxh3_128 of the file, in hexadecimal."""
        return xxhash.xxh3_128_hexdigest(self.to_bytes())

    def __len__(self) -> int:
        return len(self.token_ends)

    def __iter__(self) -> Iterator[Shard]:
        return (self.shard(number) for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and all(
            map(np.array_equal, self._columns(), other._columns())
        )

    @property
    def num_tokens(self) -> int:
        return int(self.token_ends[-1]) if len(self) else 0

    @property
    def num_documents(self) -> int:
        return int(self.document_ends[-1]) if len(self) else 0

    def name(self, number: int) -> str:
        """Name of the shard's files without suffix."""
        return shard_name(int(self.units[number]), int(self.indexes[number]))

    def first_token(self, number: int) -> int:
        return int(self.token_ends[number - 1]) if number else 0

    def first_document(self, number: int) -> int:
        return int(self.document_ends[number - 1]) if number else 0

    def shard(self, number: int) -> Shard:
        digests: dict[Part, str] = {
            part: digest.hex()
            for part in PARTS
            if any(digest := getattr(self, part)[number].tobytes())
        }
        return Shard(
            name=self.name(number),
            num_tokens=int(self.token_ends[number]) - self.first_token(number),
            num_documents=int(self.document_ends[number]) - self.first_document(number),
            has_mask=bool(self.has_mask[number]),
            digests=digests,
        )

    def first(self, count: int) -> ShardTable:
        """The table of the first shards."""
        return ShardTable(*(column[:count] for column in self._columns()))

    def starts_with(self, other: ShardTable) -> bool:
        return self.first(len(other)) == other

    def followed_by(self, other: ShardTable) -> ShardTable:
        """The table of both tables' shards."""
        pairs = zip(self._columns(), other._columns(), strict=True)
        columns = dict(zip(_DTYPES, map(np.concatenate, pairs), strict=True))
        columns["token_ends"][len(self) :] += self.num_tokens
        columns["document_ends"][len(self) :] += self.num_documents
        return ShardTable(**columns)

    def _columns(self) -> list[np.ndarray]:
        return [getattr(self, field.name) for field in fields(self)]
