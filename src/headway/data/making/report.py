"""Counting what goes by, for whoever shows it; and saying that nothing came by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headway.clock import Clock
from headway.data.formats.chunks import Problem
from headway.errors import BadInput

HINTS = {
    "no column": "name the column that holds the text: column: NAME in the run file, --column NAME",
    "not UTF-8": "convert it first: iconv -f latin1 -t utf-8 OLD > NEW",
}
"""By kind of problem."""
Stage = Literal["tokenizer", "tokens"]


@dataclass(frozen=True)
class Progress:
    stage: Stage
    """Training a tokenizer reads the text once, without tokens; writing the set reads it again."""
    documents: int
    bytes: int
    """Of text, in UTF-8."""
    tokens: int
    """Written to the set, special tokens included."""
    seconds: float
    """Since this stage began."""
    share: float | None
    """Of the source that is done; None where nobody knows how much there is."""
    share_before: float
    """What was done already when this stage began, by an earlier attempt."""
    problems: int
    """Records that could not be read."""


class Reporter:
    def __init__(self, progress: Callable[[Progress], None], clock: Clock) -> None:
        self._progress = progress
        self._clock = clock
        self.begin("tokens", 0, 0)

    def begin(self, stage: Stage, total_bytes: int, done_bytes: int) -> None:
        """`done_bytes` of the source were finished by an earlier attempt."""
        self._stage: Stage = stage
        self._since = self._clock.monotonic()
        self._total_bytes = total_bytes
        self._done_before = done_bytes
        self.source_bytes = done_bytes
        self.documents = self.bytes = self.tokens = self.problems = 0

    def count(
        self, documents: int = 0, num_bytes: int = 0, tokens: int = 0, problems: int = 0
    ) -> None:
        self.documents += documents
        self.bytes += num_bytes
        self.tokens += tokens
        self.problems += problems

    def show(self) -> None:
        total = self._total_bytes
        self._progress(
            Progress(
                self._stage,
                self.documents,
                self.bytes,
                self.tokens,
                self._clock.monotonic() - self._since,
                min(1.0, self.source_bytes / total) if total else None,
                self._done_before / total if total else 0.0,
                self.problems,
            )
        )


def nothing_readable(names: str, num_problems: int, first: Problem) -> BadInput:
    """None of the records of the files `names` could be read."""
    return BadInput(
        f"no text in {names}: none of {num_problems} records could be read; the first: "
        f"{first.where}: {first.message}",
        HINTS.get(first.kind),
    )
