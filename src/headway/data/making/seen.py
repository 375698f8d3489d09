"""Which documents have come before, by their hash, on disk: memory stays bounded at any number."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np

from headway.data.making.encode import Encoded
from headway.errors import BadInput

FILE = "seen.sqlite"
CACHE_KIB = 65536
_TABLE = "CREATE TABLE IF NOT EXISTS seen (hash BLOB PRIMARY KEY, place INTEGER) WITHOUT ROWID"


class Seen:
    """Remembers for each hash the first place it was seen at.

    Places, and not just hashes, because a shard that was being made when the process was killed is
    made again: its own documents are then known already, and are no duplicates.
    """

    def __init__(self, folder: Path, *, is_begun: bool = False) -> None:
        """`is_begun`: there are finished shards, so there is a file that knows their documents."""
        path = folder / FILE
        if is_begun and not path.exists():
            raise _lost(path, "it is gone")
        self._database = sqlite3.connect(path)
        try:
            self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._database.execute(_TABLE)
        except sqlite3.DatabaseError as error:
            self.close()
            if type(error) is not sqlite3.DatabaseError:
                raise  # a disk that fails: the file may be as it should
            raise _lost(path, str(error)) from None

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

    def close(self) -> None:
        """Without what was not committed. A connection that is left to the garbage collector would
        keep others in this process waiting."""
        self._database.close()

    def _place(self, digest: bytes) -> int:
        row = self._database.execute("SELECT place FROM seen WHERE hash = ?", (digest,)).fetchone()
        return int(row[0])


def forget(folder: Path) -> None:
    """A finished set needs it no more."""
    (folder / FILE).unlink(missing_ok=True)


def _lost(path: Path, why: str) -> BadInput:
    return BadInput(
        f"{path} says which documents are in the finished shards, and cannot be used: {why}",
        "bring it back, or delete the folder and prepare the set again",
    )


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
