"""The first records of a source: whether they have the columns that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from headway.data.formats.chunks import Problem
from headway.data.formats.readers import file_chunks
from headway.data.prepare.columns import BadRecord, column_of, named, text_of
from headway.errors import INSTALL_TRAIN

NUM_RECORDS = 256
LIKELY = ("text", "content", "body", "document", "story", "sentence")
"""Names that a column of text often has."""


Way = Literal["column", "template", "messages", "ids"]
"""How a record becomes tokens."""


class NeedsExtra(Exception):
    """The format needs a package that is not installed."""


@dataclass(frozen=True)
class FirstRecords:
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

    def column_problem(self, columns: Sequence[str], way: Way) -> str | None:
        """What is wrong with the columns of every record; None if one of them is right."""
        problem = None
        for record in self.records:
            try:
                _require_columns(record, columns, way)
            except BadRecord as bad:
                problem = problem or bad.message
            else:
                return None
        return problem


def _require_columns(record: Any, columns: Sequence[str], way: Way) -> None:
    """As the preparation takes a record: plain text is a column's, an array its token ids."""
    if isinstance(record, str) and way == "column":
        return
    if not isinstance(record, str | Mapping) and way == "ids":
        return
    for column in columns:
        if way in ("column", "template"):
            text_of(named(record), column)
        else:
            column_of(named(record), column)


def first_records(file: str, beside: Path, columns: tuple[str, ...] | None) -> FirstRecords:
    """Of a file; raises NeedsExtra for a format that cannot be read here. `columns`: those that are
    asked for, or None if any may be."""
    # In HDF5 they are found by name only; of other formats all are read, to be named in a hint.
    wanted = columns if file.endswith((".h5", ".hdf5")) else None
    try:
        chunks = file_chunks(file, beside, columns=wanted)
        items = list(islice((one for chunk in chunks for one in chunk.records()), NUM_RECORDS))
    except ImportError as error:
        raise NeedsExtra(f"{file} needs {error.name} to be read ({INSTALL_TRAIN})") from None
    records = [item.value for item in items if not isinstance(item, Problem)]
    problems = [item for item in items if isinstance(item, Problem)]
    return FirstRecords(len(items), records, problems[0] if problems and not records else None)
