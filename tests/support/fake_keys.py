"""The keys of a generation, without a coordinator."""

from __future__ import annotations

from collections.abc import Sequence


class FakeKeys:
    def __init__(self) -> None:
        self.known: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}

    def missing(self, names: Sequence[str], seconds: float = 0.0) -> list[str]:
        return [name for name in names if name not in self.known]

    def set(self, name: str, value: bytes) -> None:
        self.known[name] = value

    def get(self, name: str, seconds: float) -> bytes:
        return self.known[name]

    def compare_set(self, name: str, expected: bytes, wanted: bytes) -> bytes:
        if self.known.get(name, b"") == expected:
            self.known[name] = wanted
        return self.known[name]

    def add(self, name: str, number: int) -> int:
        self.counts[name] = self.counts.get(name, 0) + number
        return self.counts[name]
