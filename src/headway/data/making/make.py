"""Making the shards of units: chunks go to the processes that tokenise, tokens come back in order,
shards are closed one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from headway.data.formats.chunks import Chunk, Problem
from headway.data.formats.opening import open_raw
from headway.data.making.encode import Encoded
from headway.data.making.finish import Records, is_finished, records_of_unit
from headway.data.making.pieces import Position, unit_chunks
from headway.data.making.pool import EncoderPool
from headway.data.making.recipe import Recipe, Unit
from headway.data.making.report import Reporter
from headway.data.making.seen import Seen, forget
from headway.data.making.writer import ShardRecord, ShardWriter
from headway.errors import BadInput
from headway.state.store import Store

SHARD_UNITS = 2
"""A shard ends when it holds so many units' worth of text: compressed text is several times the
size of its file, and a unit of it makes several shards."""


@dataclass(frozen=True)
class _At:
    """Where a chunk stands."""

    unit: Unit
    number: int
    source_bytes: int


class Maker:
    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        tokenizer_folder: Path,
        reporter: Reporter,
        strict: bool,
    ) -> None:
        self._store = store
        self._recipe = recipe
        self._tokenizer_folder = tokenizer_folder
        self._reporter = reporter
        self._strict = strict
        self._seen: Seen | None = None

    def make(self, units: Sequence[Unit], records: Records, processes: int) -> None:
        """Every shard of `units` that is not finished; `records` gets the new ones."""
        todo = [unit for unit in units if not is_finished(records, unit.number)]
        self._reporter.begin(
            "tokens",
            sum(unit.num_bytes for unit in units),
            sum(unit.num_bytes for unit in units) - sum(unit.num_bytes for unit in todo),
        )
        for unit in units:
            for record in records_of_unit(records, unit.number):
                if self._strict and record.problems:
                    raise self._refuse(record.problems[0], unit)
                self._count(record)
        if not todo:
            return
        with ExitStack() as stack:
            if self._recipe.settings.deduplicate:
                self._seen = Seen(self._store.path(), is_begun=bool(records))
                stack.callback(self._seen.close)
            pool = stack.enter_context(EncoderPool(self._recipe, self._tokenizer_folder, processes))
            encoded = pool.encode(self._tasks(todo, records))
            for unit in todo:
                self._make_unit(unit, encoded, records)

    def clear(self) -> None:
        """Removes what only an unfinished preparation needs."""
        if self._recipe.settings.deduplicate:
            forget(self._store.path())

    def _tasks(self, units: Sequence[Unit], records: Records) -> Iterator[tuple[_At, Chunk | None]]:
        """All chunks that are still to be done; None after the last of each unit."""
        position = Position()
        position.before = self._reporter.source_bytes
        for unit in units:
            finished = records_of_unit(records, unit.number)
            first = finished[-1].end_chunk if finished else 0
            number = 0
            for chunk in unit_chunks(unit, self._recipe, position):
                if number >= first:
                    yield _At(unit, number, position.bytes), chunk
                number += 1
            yield _At(unit, number, position.bytes), None

    def _make_unit(
        self, unit: Unit, encoded: Iterator[tuple[_At, Encoded | None]], records: Records
    ) -> None:
        """Takes from `encoded` until the unit ends."""
        finished = records_of_unit(records, unit.number)
        index = len(finished)
        first = finished[-1].end_chunk if finished else 0
        is_last = False
        while not is_last:
            with ShardWriter(self._store, self._recipe, unit.number, index, first) as shard:
                is_last = self._fill(shard, unit, encoded)
                if self._seen is not None:
                    self._seen.commit()
                record = shard.close(is_last=is_last)
            records[unit.number, index] = record
            index, first = index + 1, record.end_chunk

    def _fill(
        self, shard: ShardWriter, unit: Unit, encoded: Iterator[tuple[_At, Encoded | None]]
    ) -> bool:
        """Until the shard is full, or the unit ends: then True."""
        limit = SHARD_UNITS * self._recipe.settings.unit_bytes
        while shard.size < limit:
            at, tokens = next(encoded)
            assert at.unit is unit
            if tokens is None:
                return True
            if self._strict and tokens.problems:
                raise self._refuse(tokens.problems[0], unit)
            duplicates = []
            if self._seen is not None:
                duplicates = self._seen.duplicates(tokens, unit.number, at.number)
            before = shard.num_documents, shard.num_bytes, shard.num_tokens
            shard.add(tokens, duplicates)
            self._reporter.count(
                documents=shard.num_documents - before[0],
                num_bytes=shard.num_bytes - before[1],
                tokens=shard.num_tokens - before[2],
                problems=len(tokens.problems),
            )
            self._reporter.source_bytes = at.source_bytes
            self._reporter.show()
        return False

    def _count(self, record: ShardRecord) -> None:
        """A shard that an earlier attempt finished."""
        self._reporter.count(
            documents=record.shard.num_documents if record.shard else 0,
            tokens=record.shard.num_tokens if record.shard else 0,
            problems=len(record.problems),
        )

    def _refuse(self, problem: Problem, unit: Unit) -> BadInput:
        """With the line counted from the beginning of the file."""
        line = problem.line
        begin = {piece.file: piece.begin for piece in unit.pieces}.get(problem.file, 0)
        if line is not None and begin:
            line += _num_lines_before(problem.file, self._recipe, begin)
        where = replace(problem, line=line).where
        return BadInput(
            f"{where}: {problem.kind}: {problem.message}",
            "without --strict such records are left out, counted and listed",
        )


def _num_lines_before(file: str, recipe: Recipe, begin: int) -> int:
    """Lines of a file that begin before the first one that begins at `begin` or later."""
    count = 0
    with open_raw(file, Path(recipe.beside), recipe.anonymous) as stream:
        read = 0
        while read < begin - 1 and (data := stream.read(min(2**20, begin - 1 - read))):
            count += data.count(b"\n")
            read += len(data)
    return count + 1
