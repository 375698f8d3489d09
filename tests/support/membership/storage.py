"""What a run that restarts keeps between two generations: checkpoints, starts and the ledger, read
by the product's own rules."""

from __future__ import annotations

from headway.state.chain import Beginning, fenced
from headway.state.rewinds import Record as Line
from headway.state.rewinds import apply_rewinds
from support.membership.training import Held


class Storage:
    def __init__(self) -> None:
        self.is_away = False
        self.checkpoints: dict[tuple[int, int], Held] = {(0, 0): Held()}
        """By step and by the generation that wrote it."""
        self._starts: list[Beginning] = []
        self._ledger: list[Line] = []

    def save(self, held: Held, generation: int) -> bool:
        if self.is_away:
            return False
        self.checkpoints[held.step, generation] = held
        return True

    def newest(self) -> Held | None:
        """The newest checkpoint that is not fenced; None if it cannot be read now."""
        if self.is_away:
            return None
        return next(
            self.checkpoints[key]
            for key in sorted(self.checkpoints, reverse=True)
            if not fenced(key, self._starts)
        )

    def begin(self, generation: int, held: Held, workers: int) -> None:
        self._ledger.append({"rewind": held.step, "generation": generation})
        self._starts.append(Beginning(generation=generation, first_step=held.step))

    def note(self, held: Held, generation: int) -> None:
        self._ledger.append({"step": held.step, "generation": generation, "held": held})

    def ledger(self) -> list[Held]:
        """The steps that count."""
        return [line["held"] for line in apply_rewinds(self._ledger)]
