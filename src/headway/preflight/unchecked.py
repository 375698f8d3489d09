"""What could not be checked."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Unchecked:
    """Each with the reason, in the order found."""

    notes: list[str] = field(default_factory=list)

    def add(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
