"""Progress of a preparation, and the error when no record could be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from headway.clock import Clock
from headway.data.formats.chunks import Problem
from headway.errors import BadInput

HINTS = {
    "no column": "name the column with the text: column: NAME in the run file, or --column NAME",
    "not UTF-8": "convert it first: iconv -f latin1 -t utf-8 OLD > NEW",
}
"""Hints by kind of problem."""
Stage = Literal["tokenizer", "tokens"]


@dataclass(frozen=True)
class PrepareProgress:
    stage: Stage
    """Stage: training a tokenizer, or writing tokens. Each reads the text once."""
    documents: int
    bytes: int
    """Bytes of text, in UTF-8."""
    tokens: int
    """Tokens written to the set, with special tokens."""
    seconds: float
    """Seconds since this stage began."""
    share: float | None
    """Fraction of the source that is done; None if its size is unknown."""
    share_before: float
    """Fraction that an earlier attempt had done."""
    problems: int
    """Records that could not be read."""


class ProgressReporter:
    def __init__(self, progress: Callable[[PrepareProgress], None], clock: Clock) -> None:
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
            PrepareProgress(
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


def nothing_readable(names: str, problems: Mapping[str, int], first: Problem) -> BadInput:
    """The error when no record of the files `names` could be read. `problems`: number by kind."""
    return BadInput(
        f"no text in {names}: {by_count(problems)}. The first: {first.where}: {first.message}",
        HINTS.get(first.kind),
    )


def by_count(reasons: Mapping[str, int]) -> str:
    """`58 no column, 1 not JSON`: the most frequent first."""
    counted = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count} {reason}" for reason, count in counted if count)
