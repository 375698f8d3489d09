"""What a run that restarts keeps between two generations: the checkpoints that count, as its chain
records them, and the ledger."""

from __future__ import annotations

from headway.state.rewinds import Record as Line
from headway.state.rewinds import apply_rewinds
from support.membership.training import Held


class Storage:
    def __init__(self) -> None:
        self.is_away = False
        self.checkpoints: dict[tuple[int, int], Held] = {(0, 0): Held()}
        """By step and by the generation that wrote it."""
        self._begun = 0
        """The newest generation that has begun."""
        self._ledger: list[Line] = []

    def save(self, held: Held, generation: int) -> bool:
        if self.is_away:
            return False
        if generation >= self._begun:  # what a replaced leader writes is in no link
            self.checkpoints[held.step, generation] = held
        return True

    def newest(self) -> Held | None:
        """The newest checkpoint; None if it cannot be read now."""
        return None if self.is_away else self.checkpoints[max(self.checkpoints)]

    def begin(self, generation: int, held: Held) -> None:
        self._ledger.append({"rewind": held.step, "generation": generation})
        self._begun = generation
        for name in [name for name in self.checkpoints if name[0] > held.step]:
            del self.checkpoints[name]

    def note(self, held: Held, generation: int) -> None:
        self._ledger.append({"step": held.step, "generation": generation, "held": held})

    def ledger(self) -> list[Held]:
        """The steps that count."""
        return [line["held"] for line in apply_rewinds(self._ledger)]
