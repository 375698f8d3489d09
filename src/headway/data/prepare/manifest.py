"""Completes a set from its finished shards: manifest, and list of unreadable records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

import headway
from headway.data.formats.chunks import Problem
from headway.data.prepare.damage import damage_to
from headway.data.prepare.extract import ALL_DROPPED, Omitted
from headway.data.prepare.progress import HINTS, by_count, nothing_readable
from headway.data.prepare.recipe import Recipe, SourceUnit
from headway.data.prepare.shard_writer import ShardRecord, read_records
from headway.data.set_format import MANIFEST, SHARD_TABLE, SHARDS, SetManifest, token_dtype
from headway.data.shard_table import ShardTable
from headway.data.statistics import Statistics
from headway.errors import BadInput
from headway.state.store import Store

PROBLEMS = "problems.jsonl"
ACCEPT = (
    "to accept it: allow_unreadable: true beside sources in the run file, or headway data "
    "prepare --allow-unreadable"
)

ShardRecords = dict[tuple[int, int], ShardRecord]


def recipe_records(
    store: Store, recipe: Recipe, units: Collection[int] | None = None
) -> ShardRecords:
    """The finished shards of this recipe; with `units`, of these alone."""
    return {
        key: record
        for key, record in read_records(store, units).items()
        if record.recipe_digest == recipe.digest
    }


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


def write_set_manifest(
    store: Store,
    recipe: Recipe,
    units: Sequence[SourceUnit],
    records: ShardRecords,
    *,
    allow_unreadable: bool,
) -> SetManifest:
    """Writes problems.jsonl, the table of shards and, last, the manifest. All units must be
    finished. Refuses a set most of whose records were left out, or of damaged files, unless
    allowed; nothing has to be read again then."""
    ordered = [record for unit in units for record in records_of_unit(records, unit.number)]
    table = ShardTable.of(record.shard for record in ordered if record.shard is not None)
    located = [*recipe.left_out, *located_problems(units, records)]
    statistics = Statistics(problems=_counts(recipe.left_out))
    for record in ordered:
        statistics += record.statistics
    if located:
        lines = (json.dumps(_facts(problem), ensure_ascii=False) for problem in located)
        store.write(PROBLEMS, ("\n".join(lines) + "\n").encode())
    left_out = sum(record.num_tokens_left_out for record in ordered)
    if not len(table):
        raise _empty(recipe, statistics, left_out, located)
    settings = recipe.settings
    if not allow_unreadable and not settings.in_sequence:
        unread = located[len(recipe.left_out) :]
        _refuse_damaged(recipe, unread, store)
        _refuse_few(recipe, table.num_documents, statistics, unread, store)
    manifest = SetManifest(
        layout=settings.layout,
        window_tokens=settings.window_tokens,
        vocab_size=recipe.tokens.vocab_size,
        token_dtype=token_dtype(recipe.tokens.vocab_size),
        num_tokens=table.num_tokens,
        num_documents=table.num_documents,
        num_bytes=sum(record.num_bytes for record in ordered),
        num_tokens_left_out=left_out,
        block_tokens=settings.block_tokens,
        window_blocks=settings.window_blocks,
        in_sequence=settings.in_sequence,
        special_ids=recipe.tokens.special_ids,
        tokenizer_digest=recipe.tokens.digest,
        recipe_digest=recipe.digest,
        statistics=statistics,
        num_shards=len(table),
        shard_table_digest=table.digest,
        created_by=f"headway {headway.__version__}",
    )
    store.remove_partial(SHARDS)
    store.write(SHARD_TABLE, table.to_bytes())
    store.write(MANIFEST, manifest.model_dump_json(indent=2).encode() + b"\n")
    return manifest


def located_problems(units: Sequence[SourceUnit], records: ShardRecords) -> list[Problem]:
    """Problems, with lines counted from the beginning of their files, not of their ranges."""
    found = []
    read: dict[str, int] = {}  # lines of each file in the units so far
    for unit in units:
        unit_read: dict[str, int] = {}
        first_lines: dict[str, int] = {}
        begins = {source.file for source in unit.ranges if source.begin > 0}
        for record in records_of_unit(records, unit.number):
            first_lines = record.first_lines | first_lines
            for problem in record.problems:
                line = problem.line
                if line is not None and problem.file in begins:
                    line += read.get(problem.file, 0) + 1 - first_lines[problem.file]
                found.append(replace(problem, line=line))
            for file, lines in record.lines.items():
                unit_read[file] = unit_read.get(file, 0) + lines
        for file, lines in unit_read.items():
            read[file] = read.get(file, 0) + lines
    return found


def read_problems(store: Store) -> list[Problem]:
    try:
        content = store.read(PROBLEMS)
    except FileNotFoundError:
        return []
    return [Problem(**json.loads(line)) for line in content.splitlines()]


def _counts(problems: Sequence[Problem]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.kind] = counts.get(problem.kind, 0) + 1
    return counts


def _facts(problem: Problem) -> dict[str, Any]:
    """Return the fields of a problem, without those that say nothing about it."""
    facts = asdict(problem)
    needed = ("kind", "file", "line", "message")
    return {name: fact for name, fact in facts.items() if name in needed or fact}


def _refuse_damaged(recipe: Recipe, problems: Sequence[Problem], store: Store) -> None:
    damage = damage_to(recipe, problems)
    if damage is None:
        return
    first = next(problem for problem in problems if problem.is_damage)
    raise BadInput(
        f"{_names(recipe)}: {damage}. The first: {first.where}: {first.kind}: {first.message}. "
        f"All are listed in {store.root}/{PROBLEMS}.",
        f"fetch the files again; {ACCEPT}",
    )


def _refuse_few(
    recipe: Recipe,
    num_documents: int,
    statistics: Statistics,
    problems: Sequence[Problem],
    store: Store,
) -> None:
    """Raises if more records could not be used than could. Duplicates, held-out documents and
    whatever the transform dropped were usable; files that are no text at all are not records."""
    unusable = Counter(statistics.problems) - Counter(_counts(recipe.left_out))
    for problem in problems:
        unusable[problem.kind] += (problem.num_rows or 1) - 1
    unusable[Omitted.BLANK.value] += statistics.num_blank
    num_unusable = sum(unusable.values())
    num_usable = (
        num_documents + statistics.num_duplicates + statistics.num_held_out + statistics.num_dropped
    )
    if num_unusable <= num_usable:
        return
    first = f" The first: {problems[0].where}: {problems[0].message}." if problems else ""
    listed = f" All are listed in {store.root}/{PROBLEMS}." if problems else ""
    raise BadInput(
        f"{_names(recipe)}: only {num_usable} of {num_usable + num_unusable} records have text: "
        f"{by_count(unusable)}.{first}{listed}",
        (f"{HINTS[kind]}; " if problems and (kind := problems[0].kind) in HINTS else "") + ACCEPT,
    )


def _names(recipe: Recipe) -> str:
    names = ", ".join(file.name for file in recipe.files[:3])
    return names if len(recipe.files) <= 3 else f"{names} and {len(recipe.files) - 3} more"


def _empty(
    recipe: Recipe, statistics: Statistics, num_left_out: int, problems: Sequence[Problem]
) -> BadInput:
    names = _names(recipe)
    if num_left_out:
        return BadInput(
            f"{names}: {num_left_out} tokens of text are too few for one window of "
            f"{recipe.settings.window_tokens}",
            "use more text or a shorter sequence_length",
        )
    reasons = {
        **statistics.problems,
        Omitted.BLANK.value: statistics.num_blank,
        "on the other side of the hold_out split": statistics.num_held_out,
        "duplicates": statistics.num_duplicates,
        Omitted.DROPPED.value: statistics.num_dropped,
    }
    if problems:
        return nothing_readable(names, reasons, problems[0])
    if any(reasons.values()):
        is_dropped = statistics.num_dropped > 0
        return BadInput(
            f"no text in {names}: {by_count(reasons)}", ALL_DROPPED if is_dropped else None
        )
    return BadInput(f"no text in {names}", "the files are empty or contain only whitespace")
