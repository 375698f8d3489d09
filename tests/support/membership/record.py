"""A record with compare-and-swap, which may be away, slow, or read from an old copy."""

from __future__ import annotations

from dataclasses import dataclass

from headway.member.protocol.generation import Generation, nobody


@dataclass(frozen=True)
class Entry:
    version: int
    incarnation: int
    generation: Generation


class Record:
    def __init__(self) -> None:
        self.entries = [Entry(0, 0, nobody(0))]
        self.is_away = False
        self.is_stale = False

    def read(self) -> Entry:
        return self.entries[max(0, len(self.entries) - 3) if self.is_stale else -1]

    def swap(self, version: int, entry: Entry) -> bool:
        if self.entries[-1].version != version:
            return False
        self.entries.append(entry)
        return True
