"""The first records of a source: whether they have the columns that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from headway.data.formats.chunks import Problem
from headway.data.formats.readers import file_chunks
from headway.data.prepare.columns import BadRecord, column_of, named, text_of
from headway.errors import INSTALL_TRAIN

NUM_RECORDS = 16
LIKELY = ("text", "content", "body", "document", "story", "sentence")
"""Names that a column of text often has."""


class NeedsExtra(Exception):
    """The format needs a package that is not installed."""


@dataclass(frozen=True)
class FirstRecords:
    file: str
    count: int
    """Number of records that were read."""
    records: Sequence[Any]
    """Values of those that are readable."""
    unreadable: Problem | None
    """The first problem, if no record is readable."""

    @property
    def columns(self) -> list[str]:
        first = named(self.records[0])
        return [str(name) for name in first] if isinstance(first, Mapping) else []

    @property
    def text_columns(self) -> list[str]:
        """Columns that hold text, the likeliest first."""
        first = named(self.records[0])
        names = [name for name in self.columns if isinstance(first[name], str)]
        return sorted(names, key=lambda name: (name not in LIKELY, -len(first[name])))

    def column_problem(self, columns: Sequence[str], only_text: bool) -> str | None:
        """What is wrong with the columns of every record; None if one of them is right."""
        of = text_of if only_text else column_of
        problem = None
        for record in self.records:
            try:
                for column in columns:
                    of(named(record), column)
            except BadRecord as bad:
                problem = problem or bad.message
            else:
                return None
        return problem


def first_records(file: str, beside: Path) -> FirstRecords:
    """Of a file; raises NeedsExtra for a format that cannot be read here."""
    try:
        each = (one for chunk in file_chunks(file, beside) for one in chunk.records())
        items = list(islice(each, NUM_RECORDS))
    except ImportError as error:
        raise NeedsExtra(f"{file} needs {error.name} to be read ({INSTALL_TRAIN})") from None
    records = [item.value for item in items if not isinstance(item, Problem)]
    problems = [item for item in items if isinstance(item, Problem)]
    return FirstRecords(
        file, len(items), records, problems[0] if problems and not records else None
    )
