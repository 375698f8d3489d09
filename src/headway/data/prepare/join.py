"""Joins parts that were prepared separately into one set. Reads records, never tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from headway.data.prepare.job import refuse_finished
from headway.data.prepare.manifest import (
    ShardRecords,
    is_finished,
    recipe_records,
    write_set_manifest,
)
from headway.data.prepare.recipe import Recipe, SourceUnit, differences, read_recipe, source_units
from headway.data.prepare.shard_writer import ShardRecord, record_file, shard_name
from headway.data.set_format import TOKENIZER, SetManifest, shard_file
from headway.errors import BadInput, NotFound
from headway.state.store import Store

SHOWN = 5


def join_parts(
    parts: Sequence[Store], into: Store, *, allow_unreadable: bool = False
) -> SetManifest:
    """Joins parts that are in `into` itself, or in folders on the same disk, into one set.

    Refuses parts of different recipes, duplicate shards and gaps, naming each.
    """
    refuse_finished(into)
    _refuse_far_apart(parts, into)
    recipe = _common_recipe(parts)
    units = source_units(recipe)
    records: ShardRecords = {}
    sources: dict[tuple[int, int], Store] = {}
    for part in parts:
        for key, record in recipe_records(part, recipe).items():
            if key in sources:
                raise BadInput(
                    f"shard {shard_name(*key)} is in {sources[key].root} and in {part.root}",
                    "list each part once; if an earlier version of Headway has begun some of them, "
                    "prepare all with one version: they divided the sources otherwise",
                )
            records[key], sources[key] = record, part
    _refuse_gaps(units, records)
    begun = read_recipe(into)
    if begun is not None and begun.digest != recipe.digest:
        raise BadInput(f"{into.root} holds a different preparation", "join into another folder")
    if begun is None:
        for name in parts[0].names(TOKENIZER):
            into.write(name, parts[0].read(name))
        recipe.save(into)
    for key, part in sources.items():
        if part.root != into.root:
            _link(records[key], part, into)
    return write_set_manifest(into, recipe, units, records, allow_unreadable=allow_unreadable)


def _refuse_far_apart(stores: Sequence[Store], store: Store) -> None:
    """Refuses parts that cannot be hard-linked: only a file system has hard links."""
    for part in stores:
        if part.root != store.root and not (part.is_local and store.is_local):
            raise BadInput(
                f"{part.root} cannot be joined into {store.root}: only local folders can be linked",
                "prepare all parts into one location, and join that",
            )


def _common_recipe(stores: Sequence[Store]) -> Recipe:
    first: Recipe | None = None
    for store in stores:
        recipe = read_recipe(store)
        if recipe is None:
            raise NotFound(
                f"{store.root} is not a part of a set",
                "prepare parts with headway data prepare --part I/N",
            )
        if first is not None and recipe.digest != first.digest:
            changes = "\n  ".join(differences(first, recipe)[:SHOWN])
            raise BadInput(
                f"{store.root} and {stores[0].root} are parts of different sets:\n  {changes}",
                "prepare all parts from the same sources with the same settings",
            )
        first = first or recipe
    assert first is not None, "the command line asks for at least one"
    return first


def _refuse_gaps(units: Sequence[SourceUnit], records: ShardRecords) -> None:
    missing = [unit for unit in units if not is_finished(records, unit.number)]
    if missing:
        # Consecutive units on one line.
        runs = groupby(enumerate(missing), key=lambda pair: pair[1].number - pair[0])
        names = [_name([unit for _, unit in run]) for _, run in runs]
        more = f"\n  and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise BadInput(
            f"{len(missing)} of {len(units)} units of the sources are not prepared:\n  "
            + "\n  ".join(names[:SHOWN])
            + more,
            "run the same headway data prepare --part again to resume it, and list all parts",
        )


def _name(run: Sequence[SourceUnit]) -> str:
    first, last = run[0], run[-1]
    if first is last:
        return f"{first.number:05d}: {first.name}"
    return f"{first.number:05d} to {last.number:05d}: {first.name} to {last.name}"


def _link(record: ShardRecord, part: Store, store: Store) -> None:
    """Hard-links the files of a shard, the record last: nothing is copied."""
    names = [record_file(record.unit, record.index)]
    if record.shard is not None:
        names = [*(shard_file(record.shard.name, kind) for kind in record.shard.digests), *names]
    for name in names:
        store.path(name).parent.mkdir(parents=True, exist_ok=True)
        try:
            if _is_same(part.path(name), store.path(name)):
                continue  # from an interrupted join
            # A killed preparation may have left an unfinished file.
            store.path(name).unlink(missing_ok=True)
            os.link(part.path(name), store.path(name))
        except OSError as error:
            raise BadInput(
                f"{part.path(name)} cannot be linked to {store.path(name)}: {error}",
                "parts and joined set must be on one disk; or prepare all parts into one folder",
            ) from None


def _is_same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)
