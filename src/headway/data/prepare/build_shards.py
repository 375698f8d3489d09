"""Builds the shards of units: sends chunks to the processes that tokenise, receives their tokens in
order, and closes one shard after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from headway.data.formats.chunks import Chunk, Problem
from headway.data.formats.open_files import open_raw
from headway.data.prepare.dedup import DuplicateFinder, remove_database
from headway.data.prepare.encode import EncodedChunk
from headway.data.prepare.encoder_pool import EncoderPool
from headway.data.prepare.progress import ProgressReporter
from headway.data.prepare.recipe import Recipe, SourceUnit
from headway.data.prepare.shard_writer import ShardRecord, ShardWriter
from headway.data.prepare.unit_chunks import SourcePosition, unit_chunks
from headway.errors import BadInput
from headway.state.store import Store

SHARD_UNITS = 2
"""Size limit of a shard, in units of text: compressed text is several times the size of its file,
so a unit of it makes several shards."""

ShardRecords = dict[tuple[int, int], ShardRecord]


@dataclass(frozen=True)
class _ChunkPosition:
    """The position of a chunk in the sources."""

    unit: SourceUnit
    number: int
    source_bytes: int


class ShardBuilder:
    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        tokenizer_folder: Path,
        reporter: ProgressReporter,
        strict: bool,
        shard_finished: Callable[[ShardRecord], None],
    ) -> None:
        self._store = store
        self._recipe = recipe
        self._tokenizer_folder = tokenizer_folder
        self._reporter = reporter
        self._strict = strict
        self._shard_finished = shard_finished
        self._duplicates: DuplicateFinder | None = None

    def build(
        self, units: Sequence[SourceUnit], num_before: int, records: ShardRecords, processes: int
    ) -> None:
        """Builds every shard of `units` that `records` lacks. `num_before`: bytes of the source
        that are finished besides."""
        todo = [unit for unit in units if not is_finished(records, unit.number)]
        total = num_before + sum(unit.num_bytes for unit in units)
        self._reporter.begin("tokens", total, total - sum(unit.num_bytes for unit in todo))
        for unit in units:
            for record in records_of_unit(records, unit.number):
                if self._strict and record.problems:
                    raise self._refuse(record.problems[0], unit)
                self._count(record)
        if not todo:
            return
        with ExitStack() as stack:
            if self._recipe.settings.deduplicate:
                self._duplicates = DuplicateFinder(
                    self._store.path(), is_begun=bool(records) or num_before > 0
                )
                stack.callback(self._duplicates.close)
            pool = stack.enter_context(EncoderPool(self._recipe, self._tokenizer_folder, processes))
            encoded = pool.encode(self._tasks(todo, records))
            for unit in todo:
                self._build_unit(unit, encoded, records)

    def clear(self) -> None:
        """Removes files that only an unfinished preparation needs."""
        if self._recipe.settings.deduplicate:
            remove_database(self._store.path())

    def _tasks(
        self, units: Sequence[SourceUnit], records: ShardRecords
    ) -> Iterator[tuple[_ChunkPosition, Chunk | None]]:
        """All remaining chunks; None after the last chunk of each unit."""
        position = SourcePosition()
        position.before = self._reporter.source_bytes
        for unit in units:
            finished = records_of_unit(records, unit.number)
            first = finished[-1].end_chunk if finished else 0
            number = 0
            for chunk in unit_chunks(unit, self._recipe, position):
                if number >= first:
                    yield _ChunkPosition(unit, number, position.bytes), chunk
                number += 1
            yield _ChunkPosition(unit, number, position.bytes), None

    def _build_unit(
        self,
        unit: SourceUnit,
        encoded: Iterator[tuple[_ChunkPosition, EncodedChunk | None]],
        records: ShardRecords,
    ) -> None:
        """Takes chunks from `encoded` until the unit ends."""
        finished = records_of_unit(records, unit.number)
        index = len(finished)
        first = finished[-1].end_chunk if finished else 0
        is_last = False
        while not is_last:
            with ShardWriter(self._store, self._recipe, unit.number, index, first) as shard:
                is_last = self._fill(shard, unit, encoded)
                if self._duplicates is not None:
                    self._duplicates.commit()
                record = shard.close(is_last=is_last)
            self._shard_finished(record)
            index, first = index + 1, record.end_chunk

    def _fill(
        self,
        shard: ShardWriter,
        unit: SourceUnit,
        encoded: Iterator[tuple[_ChunkPosition, EncodedChunk | None]],
    ) -> bool:
        """Fills the shard until it is full or the unit ends; returns True in the latter case."""
        limit = SHARD_UNITS * self._recipe.settings.unit_bytes
        while shard.size < limit:
            at, tokens = next(encoded)
            assert at.unit is unit
            if tokens is None:
                return True
            if self._strict and tokens.problems:
                raise self._refuse(tokens.problems[0], unit)
            duplicates = []
            if self._duplicates is not None:
                duplicates = self._duplicates.duplicates(tokens, unit.number, at.number)
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
        """Counts a shard that an earlier attempt finished."""
        self._reporter.count(
            documents=record.shard.num_documents if record.shard else 0,
            tokens=record.shard.num_tokens if record.shard else 0,
            problems=len(record.problems),
        )

    def _refuse(self, problem: Problem, unit: SourceUnit) -> BadInput:
        """The error for strict mode, with the line counted from the beginning of the file."""
        line = problem.line
        begin = {source.file: source.begin for source in unit.ranges}.get(problem.file, 0)
        if line is not None and begin:
            line += _num_lines_before(problem.file, self._recipe, begin)
        where = replace(problem, line=line).where
        return BadInput(
            f"{where}: {problem.kind}: {problem.message}",
            "without --strict such records are left out, counted and listed",
        )


def records_of_unit(records: ShardRecords, unit: int) -> list[ShardRecord]:
    """Consecutive finished shards of the unit, starting with its first."""
    found: list[ShardRecord] = []
    while (unit, len(found)) in records:
        found.append(records[unit, len(found)])
        if found[-1].is_last:
            break
    return found


def is_finished(records: ShardRecords, unit: int) -> bool:
    found = records_of_unit(records, unit)
    return bool(found) and found[-1].is_last


def _num_lines_before(file: str, recipe: Recipe, begin: int) -> int:
    """Number of lines before the first line that starts at `begin` or later."""
    count = 0
    with open_raw(file, Path(recipe.beside), recipe.anonymous) as stream:
        read = 0
        while read < begin - 1 and (data := stream.read(min(2**20, begin - 1 - read))):
            count += data.count(b"\n")
            read += len(data)
    return count + 1
