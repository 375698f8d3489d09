"""Which documents have come before, by their hash, on disk: memory stays bounded at any number."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np

from headway.data.making.encode import Encoded

FILE = "seen.sqlite"
CACHE_KIB = 65536


class Seen:
    """Remembers for each hash the first place it was seen at.

    Places, and not just hashes, because a shard that was being made when the process was killed is
    made again: its own documents are then known already, and are no duplicates.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._database = sqlite3.connect(self._path)
        self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS seen (hash BLOB PRIMARY KEY, place INTEGER) WITHOUT ROWID"
        )

    def duplicates(self, encoded: Encoded, unit: int, chunk: int) -> list[int]:
        """Which documents of a chunk have come before, by their place in the sources."""
        assert encoded.hashes is not None
        first = (unit << 40) + (chunk << 20)
        places = {
            digest: first + number
            for number, digest in reversed(list(enumerate(encoded.hashes)))
            if digest
        }
        self._database.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?)", places.items())
        known = {digest: self._place(digest) for digest in places}
        return [
            number
            for number, digest in enumerate(encoded.hashes)
            if digest and known[digest] != first + number
        ]

    def commit(self) -> None:
        """Before the shard's record is written: what is finished must be known."""
        self._database.commit()

    def remove(self) -> None:
        self._database.close()
        self._path.unlink()

    def _place(self, digest: bytes) -> int:
        row = self._database.execute("SELECT place FROM seen WHERE hash = ?", (digest,)).fetchone()
        return int(row[0])


def without(encoded: Encoded, duplicates: list[int]) -> Encoded:
    if not duplicates:
        return encoded
    keep = np.ones(len(encoded.lengths), dtype=np.bool_)
    keep[duplicates] = False
    tokens = np.repeat(keep, encoded.lengths)
    statistics = encoded.statistics.model_copy(update={"num_duplicates": len(duplicates)})
    return replace(
        encoded,
        tokens=encoded.tokens[tokens],
        mask=None if encoded.mask is None else encoded.mask[tokens],
        lengths=encoded.lengths[keep],
        num_bytes=encoded.num_bytes[keep],
        statistics=statistics,
    )
