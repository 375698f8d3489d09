"""Finds duplicate documents by their hash, with a database on disk: memory is bounded."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np

from headway.data.prepare.encode import EncodedChunk
from headway.errors import BadInput

FILE = "seen.sqlite"
CACHE_KIB = 65536
_TABLE = "CREATE TABLE IF NOT EXISTS seen (hash BLOB PRIMARY KEY, place INTEGER) WITHOUT ROWID"


class DuplicateFinder:
    """Stores the first place where each hash occurred.

    Places, not just hashes: a shard that was unfinished when the process was killed is rebuilt, and
    its own documents, which are already in the database, are not duplicates.
    """

    def __init__(self, folder: Path, *, is_begun: bool = False) -> None:
        """`is_begun`: there are finished shards, so the database must exist."""
        path = folder / FILE
        if is_begun and not path.exists():
            raise _lost(path, "it is missing")
        self._database = sqlite3.connect(path)
        try:
            self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._database.execute(_TABLE)
        except sqlite3.DatabaseError as error:
            self.close()
            if type(error) is not sqlite3.DatabaseError:
                raise  # a failing disk: the file itself may be intact
            raise _lost(path, str(error)) from None

    def duplicates(self, encoded: EncodedChunk, unit: int, chunk: int) -> list[int]:
        """Numbers of the documents in a chunk that are duplicates of earlier ones."""
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
        """Called before the shard's record is written: its documents must be known by then."""
        self._database.commit()

    def close(self) -> None:
        """Drops what was not committed. A connection left to the garbage collector would block
        others in this process."""
        self._database.close()

    def _place(self, digest: bytes) -> int:
        row = self._database.execute("SELECT place FROM seen WHERE hash = ?", (digest,)).fetchone()
        return int(row[0])


def remove_database(folder: Path) -> None:
    """Deletes the database, which a finished set does not need."""
    (folder / FILE).unlink(missing_ok=True)


def _lost(path: Path, why: str) -> BadInput:
    return BadInput(
        f"{path}, which lists the documents of finished shards, cannot be used: {why}",
        "restore the file, or delete the folder and prepare the set again",
    )


def without_documents(encoded: EncodedChunk, duplicates: list[int]) -> EncodedChunk:
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
