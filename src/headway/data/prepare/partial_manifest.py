"""Publishes what of a set is prepared without a gap, from its first unit on, in a few objects.
Whoever joins the parts of a preparation, trains on it or watches it reads these, and not a record a
shard.

    progress/manifest       a line of sums, then the shards since the last table
    progress/table-00000    the first TABLE_SHARDS shards, and so on
    progress/parts/1-97-4   records of a finished part, which made the units 1, 5, 9, ... 93

Shards are stored as in shard_table.py; after them come the lines of problems.jsonl about them.
Every part may write these files. What two of them write under one name is the same, except that one
manifest may reach further: either can be continued. `progress/` is removed with the last part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial, reduce
from typing import Literal

from pydantic import ValidationError

import headway
from headway.clock import Clock
from headway.data.formats.chunks import Problem
from headway.data.prepare.recipe import Recipe, SourceUnit, source_units
from headway.data.prepare.shard_writer import ShardRecord, parsed_record, read_record
from headway.data.set_format import Frozen, SetManifest, token_dtype
from headway.data.shard_table import SHARD_BYTES, Shard, ShardTable
from headway.data.statistics import Statistics
from headway.state.set_files import PROGRESS
from headway.state.store import NUM_REQUESTS, Store, in_parallel

PARTIAL_MANIFEST = f"{PROGRESS}/manifest"
PART_RECORDS = f"{PROGRESS}/parts"
TABLE_SHARDS = 2**14
"""Shards per table of 1.6 MB: 10^5 shards have six."""
PUBLISH_SECONDS = 5.0
PUBLISHED_BYTES_PER_SECOND = 2**20
"""Limit for a partial manifest with many problems."""
HEAD_BYTES = 2**16
"""Bytes of the first read of the partial manifest: several times the line of sums."""


class PartialSums(Frozen):
    format_version: Literal[3] = 3
    """Version of the format of shards and their tables."""
    recipe_digest: str
    next: tuple[int, int] = (0, 0)
    """Unit and index of the first shard that is not finished."""
    num_shards: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    num_tokens_left_out: int = 0
    num_problems: int = 0
    statistics: Statistics = Statistics()
    lines_before: int = 0
    """Lines that earlier units have read from the first file of the next shard's unit."""
    first_line: int | None = None
    """Line on which that file's first chunk in the unit starts."""
    last_lines: int = 0
    """Lines that the unit's shards have read so far from its last file."""


class PartialManifest:
    def __init__(
        self, recipe: Recipe, keeps: Literal["sums", "shards", "everything"] = "everything"
    ) -> None:
        self.recipe = recipe
        self.sums = PartialSums(recipe_digest=recipe.digest)
        self.units = source_units(recipe)
        self._keeps = keeps
        self._tables: list[ShardTable] = []
        self._shards: list[Shard] = []
        """Shards since the last table."""
        self._problems: list[list[bytes]] = [[]]
        """Lines of problems.jsonl, for each table and for these shards."""
        self._num_stored = 0
        """Number of tables that are in the store."""

    @property
    def is_complete(self) -> bool:
        return self.sums.next[0] == len(self.units)

    @property
    def table(self) -> ShardTable:
        return reduce(ShardTable.followed_by, [*self._tables, ShardTable.of(self._shards)])

    @property
    def problem_lines(self) -> list[bytes]:
        """Lines of problems.jsonl, with line numbers counted from the beginning of their files."""
        return [line for lines in self._problems for line in lines]

    @property
    def problems(self) -> list[Problem]:
        return parsed_problems(self.problem_lines)

    def set_manifest(self, table: ShardTable) -> SetManifest:
        """The manifest as if the set ended here, with the shards of `self.table`."""
        settings, tokens, sums = self.recipe.settings, self.recipe.tokens, self.sums
        return SetManifest(
            layout=settings.layout,
            window_tokens=settings.window_tokens,
            vocab_size=tokens.vocab_size,
            token_dtype=token_dtype(tokens.vocab_size),
            num_tokens=sums.num_tokens,
            num_documents=sums.num_documents,
            num_bytes=sums.num_bytes,
            num_tokens_left_out=sums.num_tokens_left_out,
            block_tokens=settings.block_tokens,
            window_blocks=settings.window_blocks,
            in_sequence=settings.in_sequence,
            special_ids=tokens.special_ids,
            tokenizer_digest=tokens.digest,
            recipe_digest=sums.recipe_digest,
            statistics=sums.statistics,
            num_shards=len(table),
            shard_table_digest=table.digest,
            created_by=f"headway {headway.__version__}",
        )

    def add(self, record: ShardRecord) -> None:
        """Adds the shard that comes next."""
        old, shard = self.sums, record.shard
        assert (record.unit, record.index) == old.next
        ranges = self.units[record.unit].ranges
        first_line = old.first_line
        if first_line is None:
            first_line = record.first_lines.get(ranges[0].file)
        if shard is not None and self._keeps != "sums":
            self._shards.append(shard)
        if self._keeps == "everything":
            shift = old.lines_before + 1 - (first_line or 1)
            for problem in record.problems:
                is_shifted = ranges[0].begin > 0 and problem.file == ranges[0].file
                if is_shifted and problem.line is not None:
                    problem = replace(problem, line=problem.line + shift)
                self._problems[-1].append(problem_line(problem))
        last_lines = old.last_lines + record.lines.get(ranges[-1].file, 0)
        changes: dict[str, object] = {
            "next": (record.unit, record.index + 1),
            "first_line": first_line,
            "last_lines": last_lines,
        }
        if record.is_last:
            # The next unit may continue this one's last file, as this one may have continued it.
            is_same = ranges[0].file == ranges[-1].file and ranges[0].begin > 0
            before = old.lines_before if is_same else 0
            changes = {"next": (record.unit + 1, 0), "lines_before": before + last_lines}
            changes |= {"first_line": None, "last_lines": 0}
        self.sums = old.model_copy(
            update={
                "num_shards": old.num_shards + (shard is not None),
                "num_documents": old.num_documents + (shard.num_documents if shard else 0),
                "num_tokens": old.num_tokens + (shard.num_tokens if shard else 0),
                "num_bytes": old.num_bytes + record.num_bytes,
                "num_tokens_left_out": old.num_tokens_left_out + record.num_tokens_left_out,
                "num_problems": old.num_problems + len(record.problems),
                "statistics": old.statistics + record.statistics,
                **changes,
            }
        )
        if len(self._shards) == TABLE_SHARDS:
            self._tables.append(ShardTable.of(self._shards))
            self._shards = []
            self._problems.append([])

    def refresh(self, store: Store) -> None:
        """Reads on. Records of shards are read where that costs no requests, and where another
        version of Headway prepares, which publishes nothing."""
        if self.read(store) is None or store.is_local:
            self.read_records(store)

    def read(self, store: Store) -> PartialSums | None:
        """Takes over what is published, if it reaches further. Returns None if nothing is."""
        sums = published_sums(store, self.sums.recipe_digest)
        if sums is None or sums.next <= self.sums.next:
            return sums
        if self._keeps != "sums":
            try:
                line, _, content = store.read(PARTIAL_MANIFEST).partition(b"\n")
                sums = PartialSums.model_validate_json(line)
                if sums.next <= self.sums.next:  # another part has written in between
                    return sums
                new = range(len(self._tables), sums.num_shards // TABLE_SHARDS)
                tables = [store.read(_table_file(number)) for number in new]
            except FileNotFoundError:  # the set is complete by now
                return sums
            for number, table in zip(new, tables, strict=True):
                self._tables.append(self._taken(number, table))
                self._num_stored = number + 1
            size = sums.num_shards % TABLE_SHARDS
            self._shards = list(self._taken(len(self._tables), content, size))
        self.sums = sums
        return sums

    def _taken(self, number: int, content: bytes, num_shards: int = TABLE_SHARDS) -> ShardTable:
        end = num_shards * SHARD_BYTES
        lines = content[end:].splitlines(keepends=True) if self._keeps == "everything" else []
        self._problems[number:] = [lines]
        return ShardTable.from_bytes(content[:end])

    def read_records(self, store: Store) -> None:
        """Adds the records that follow, until one is missing."""
        found: dict[tuple[int, int], ShardRecord] = {}
        num_read, parts = 0, None
        read = partial(read_record, store, self.sums.recipe_digest)
        while not self.is_complete:
            unit, index = self.sums.next
            if (unit, index) not in found:
                if num_read > NUM_REQUESTS and parts is None:
                    parts = finished_parts(store)  # a part that was late held up the others
                for part in [part for part in parts or () if unit in part]:
                    parts = [other for other in parts or () if other != part]
                    found |= _read_part(store, part, self.sums.recipe_digest)
            if (unit, index) not in found:
                ahead = NUM_REQUESTS if num_read else 1
                keys = [(unit, index), *((unit + n, 0) for n in range(1, ahead))]
                keys = [key for key in keys if key[0] < len(self.units) and key not in found]
                records = in_parallel(lambda key: read(*key), keys, NUM_REQUESTS)
                found |= {(one.unit, one.index): one for one in records if one is not None}
                num_read += len(keys)
            record = found.pop((unit, index), None)
            if record is None:
                return
            self.add(record)

    def write(self, store: Store) -> int:
        """Publishes it. Returns its size in bytes."""
        for number in range(self._num_stored, len(self._tables)):
            content = self._tables[number].to_bytes() + b"".join(self._problems[number])
            store.write(_table_file(number), content)
            self._num_stored = number + 1
        line, shards = self.sums.model_dump_json().encode(), ShardTable.of(self._shards).to_bytes()
        content = b"".join([line, b"\n", shards, *self._problems[-1]])
        store.write(PARTIAL_MANIFEST, content)
        return len(content)


class Publisher:
    """Publishes the partial manifest while a part is prepared.

    A part that sees no change of it for PUBLISH_SECONDS writes it. The others then see changes, so
    one part continues to write; when that is lost, another sees no change."""

    def __init__(self, store: Store, manifest: PartialManifest, clock: Clock) -> None:
        self.manifest = manifest
        self._store = store
        self._clock = clock
        self._due = clock.monotonic()
        self._seen: tuple[int, int] | None = None

    def shard_finished(self, record: ShardRecord) -> None:
        if (record.unit, record.index) == self.manifest.sums.next:
            self.manifest.add(record)
        if self._clock.monotonic() >= self._due:
            with suppress(OSError):  # the record of the shard is written
                self._publish_if_nobody_does(record)

    def _publish_if_nobody_does(self, record: ShardRecord) -> None:
        published, size = published_sums(self._store, record.recipe_digest), 0
        seen, self._seen = self._seen, None if published is None else published.next
        if self._seen == seen:
            size = self.publish()
        pause = max(PUBLISH_SECONDS, size / PUBLISHED_BYTES_PER_SECOND)
        self._due = self._clock.monotonic() + pause

    def publish(self) -> int:
        """Publishes what is finished by now. Returns the number of bytes written."""
        published = self.manifest.read(self._store)
        self.manifest.read_records(self._store)
        self._seen = self.manifest.sums.next
        is_new = published is None or published.next < self._seen
        return self.manifest.write(self._store) if is_new else 0


def published_sums(store: Store, recipe_digest: str) -> PartialSums | None:
    size = HEAD_BYTES
    try:
        while b"\n" not in (content := store.read_range(PARTIAL_MANIFEST, 0, size)):
            if len(content) < size:
                return None
            size *= 4
        sums = PartialSums.model_validate_json(content.partition(b"\n")[0])
    except (FileNotFoundError, ValidationError):  # of another version: its records are read
        return None
    return sums if sums.recipe_digest == recipe_digest else None


def finished_units(store: Store, manifest: PartialManifest) -> list[SourceUnit]:
    """Units that are published, or of finished parts."""
    parts, until = finished_parts(store), manifest.sums.next[0]
    ahead = {unit for part in parts for unit in part if unit >= until}
    return [unit for unit in manifest.units if unit.number < until or unit.number in ahead]


def write_part(store: Store, units: range, records: Iterable[bytes]) -> None:
    """Writes the record of a finished part, of the records of its shards that are not published."""
    name = f"{units.start}-{units.stop}-{units.step}"
    store.write(f"{PART_RECORDS}/{name}", b"\n".join(records))


def finished_parts(store: Store) -> list[range]:
    names = [name.removeprefix(f"{PART_RECORDS}/") for name in store.names(PART_RECORDS)]
    return [range(*map(int, name.split("-"))) for name in names]


def _read_part(store: Store, part: range, recipe_digest: str) -> dict[tuple[int, int], ShardRecord]:
    try:
        content = store.read(f"{PART_RECORDS}/{part.start}-{part.stop}-{part.step}")
    except FileNotFoundError:  # the set is complete by now
        return {}
    records = [parsed_record(line, recipe_digest) for line in content.splitlines()]
    return {(one.unit, one.index): one for one in records if one is not None}


def problem_line(problem: Problem) -> bytes:
    """Line of problems.jsonl, without fields that say nothing about the problem."""
    needed = ("kind", "file", "line", "message")
    facts = {name: fact for name, fact in asdict(problem).items() if name in needed or fact}
    return json.dumps(facts, ensure_ascii=False).encode() + b"\n"


def parsed_problems(lines: Iterable[bytes]) -> list[Problem]:
    return [Problem(**json.loads(line)) for line in lines]


def _table_file(number: int) -> str:
    return f"{PROGRESS}/table-{number:05d}"
