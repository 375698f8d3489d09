"""Which records of a log count after a rewind or a change of writer.

A log is never rewritten. Steps that are repeated are announced by a record `{"rewind": c}`, and
readers drop the records of steps beyond c. A writer that was suspended can resume at any moment,
even while its successor takes over. The records it then appends carry an older generation, and
readers drop them; a record that both have written counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from typing import Any

Record = dict[str, Any]
"""One line of a log."""


def apply_rewinds(records: list[Record]) -> list[Record]:
    """The records that count: each step once, as it was committed last."""
    kept: list[Record] = []
    for record in without_stale(records):
        if "rewind" in record:
            while kept and kept[-1]["step"] > record["rewind"]:
                kept.pop()
            continue
        if not kept or kept[-1]["step"] < record["step"]:
            kept.append(record)  # nearly all: a long run has millions
            continue
        # A generation may evaluate the step that it resumed from again.
        while kept and kept[-1]["step"] >= record["step"] and _is_older(kept[-1], record):
            kept.pop()
        if not any(map(partial(_is_same, record), _of_step(kept, record["step"]))):
            kept.append(record)  # else both have written it
    return kept


def without_stale(records: list[Record]) -> list[Record]:
    """Without the records that a leader appended after the leader of a newer generation."""
    kept: list[Record] = []
    newest = 0
    for record in records:
        written = writer_generation(record)
        writer = written if isinstance(written, int) else newest
        if writer >= newest:
            newest = writer
            kept.append(record)
    return kept


def writer_generation(record: Record) -> Any:
    """The generation whose leader wrote the record: its own, unless a later leader added it."""
    return record.get("writer", record.get("generation", record.get("begin")))


def step_after(record: Record) -> int:
    """The last committed step of a log that ends with this record."""
    return int(record["rewind"] if "rewind" in record else record["step"])


def _is_older(record: Record, than: Record) -> bool:
    return bool(record.get("generation", 0) < than.get("generation", 0))


def _of_step(records: list[Record], step: int) -> Iterator[Record]:
    """The last records, as far as they are of this step or a later one; newest first."""
    return takewhile(lambda record: record["step"] >= step, reversed(records))


def _is_same(one: Record, other: Record) -> bool:
    return all(one.get(key) == other.get(key) for key in ("step", "set", "block", "prompt"))
