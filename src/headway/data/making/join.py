"""Joining parts that were prepared apart into one set. Reads records, never tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from headway.data.making.finish import Records, finish, is_finished
from headway.data.making.prepare import refuse_finished
from headway.data.making.recipe import Recipe, Unit, differences, read_recipe, units_of
from headway.data.making.writer import ShardRecord, read_records, record_file, shard_name
from headway.data.shards import TOKENIZER, SetManifest, shard_file
from headway.errors import BadInput, NotFound
from headway.state.store import Store

SHOWN = 5


def join(parts: Sequence[str], into: str) -> SetManifest:
    """One set out of parts that lie in `into` itself, or in folders on the same disk.

    Refuses parts of different recipes, parts that repeat a shard, and gaps, each by name.
    """
    store = Store(into)
    refuse_finished(store)
    stores = [Store(part) for part in parts]
    _refuse_far_apart(stores, store)
    recipe = _common_recipe(stores)
    units = units_of(recipe)
    records: Records = {}
    sources: dict[tuple[int, int], Store] = {}
    for part in stores:
        for key, record in _records_of(part, recipe).items():
            if key in sources:
                raise BadInput(
                    f"shard {shard_name(*key)} is in {sources[key].root} and in {part.root}",
                    "name each part once",
                )
            records[key], sources[key] = record, part
    _refuse_gaps(units, records)
    begun = read_recipe(store)
    if begun is not None and begun.digest != recipe.digest:
        raise BadInput(
            f"{into} holds a preparation of something else", "join into a folder of its own"
        )
    if begun is None:
        for name in stores[0].names(TOKENIZER):
            store.write(name, stores[0].read(name))
        recipe.save(store)
    for key, part in sources.items():
        if part.root != store.root:
            _bring(records[key], part, store)
    return finish(store, recipe, units, records)


def _refuse_far_apart(stores: Sequence[Store], store: Store) -> None:
    """Only a file system knows second names."""
    for part in stores:
        if part.root != store.root and not (part.is_local and store.is_local):
            raise BadInput(
                f"{part.root} and {store.root} are different places in a store",
                "prepare all parts into one place, and join that",
            )


def _common_recipe(stores: Sequence[Store]) -> Recipe:
    first: Recipe | None = None
    for store in stores:
        recipe = read_recipe(store)
        if recipe is None:
            raise NotFound(
                f"{store.root} holds no part of a preparation",
                "parts are made by headway data prepare --part i/n",
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


def _records_of(store: Store, recipe: Recipe) -> Records:
    return {
        key: record
        for key, record in read_records(store).items()
        if record.recipe_digest == recipe.digest
    }


def _refuse_gaps(units: Sequence[Unit], records: Records) -> None:
    missing = [unit for unit in units if not is_finished(records, unit.number)]
    if missing:
        # Neighbours in one line: a part that is missing is a run of them.
        runs = groupby(enumerate(missing), key=lambda pair: pair[1].number - pair[0])
        names = [_name([unit for _, unit in run]) for _, run in runs]
        more = f"\n  and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise BadInput(
            f"{len(missing)} of {len(units)} shards' worth of sources are not prepared:\n  "
            + "\n  ".join(names[:SHOWN])
            + more,
            "prepare the part again (what is finished is kept), and name all parts",
        )


def _name(run: Sequence[Unit]) -> str:
    first, last = run[0], run[-1]
    if first is last:
        return f"{first.number:05d}: {first.name}"
    return f"{first.number:05d} to {last.number:05d}: {first.name} to {last.name}"


def _bring(record: ShardRecord, part: Store, store: Store) -> None:
    """A second name for the same files: nothing is read or copied. The record last."""
    names = [record_file(record.unit, record.index)]
    if record.shard is not None:
        names = [*(shard_file(record.shard.name, kind) for kind in record.shard.digests), *names]
    for name in names:
        store.path(name).parent.mkdir(parents=True, exist_ok=True)
        try:
            if _is_same(part.path(name), store.path(name)):
                continue  # by a join that was interrupted
            # What a preparation that was killed left behind counts for nothing.
            store.path(name).unlink(missing_ok=True)
            os.link(part.path(name), store.path(name))
        except OSError as error:
            raise BadInput(
                f"{part.path(name)} cannot be linked to {store.path(name)}: {error}",
                "parts and the joined set must be on one disk; or prepare all parts into one place",
            ) from None


def _is_same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)
