"""Rebuilds damaged shards from their sources."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from headway.data.prepare.encode import Encoder
from headway.data.prepare.recipe import Recipe, SourceUnit, differences, read_recipe, source_units
from headway.data.prepare.set_tokenizer import fetched_tokenizer
from headway.data.prepare.shard_writer import ShardRecord, ShardWriter, read_records
from headway.data.prepare.sources import find_sources
from headway.data.prepare.unit_chunks import SourcePosition, unit_chunks
from headway.data.set_format import read_manifest, shard_file
from headway.errors import BadInput
from headway.state.store import Store
from headway.state.transform_code import has_transform


def repair_shards(store: Store, shards: Sequence[str], repaired: Callable[[str], None]) -> None:
    """Rebuilds each of `shards`, by name, with exactly the content that the manifest records."""
    manifest = read_manifest(store)
    recipe = read_recipe(store)
    if recipe is None or recipe.digest != manifest.recipe_digest:
        raise BadInput(
            f"{store.root} has no recipe to rebuild shards from", "prepare the set again"
        )
    _refuse_changed(recipe)
    units = {unit.number: unit for unit in source_units(recipe)}
    wanted = {shard.name: shard for shard in manifest.shards}
    records = {record.shard.name: record for record in read_records(store).values() if record.shard}
    with fetched_tokenizer(store) as folder:
        encoder = Encoder(recipe, folder)
        for name in shards:
            if name not in records:
                raise BadInput(f"shard {name} has no record", "prepare the set again")
            # In a separate folder: runs may be reading the damaged shard.
            beside = store.path() if store.is_local else None
            with tempfile.TemporaryDirectory(dir=beside, prefix=".repair-") as scratch:
                made = _make_again(
                    Store(scratch), recipe, units[records[name].unit], records[name], encoder
                )
                if made.shard != wanted[name]:
                    raise BadInput(
                        f"the rebuilt shard {name} differs from the recorded one",
                        "the sources or the tokenizer have changed: prepare the set again",
                    )
                for part in made.shard.digests:
                    file = shard_file(name, part)
                    store.adopt(Path(scratch, file), file)
            repaired(name)


def _refuse_changed(recipe: Recipe) -> None:
    names = [file.name for file in recipe.files]
    found = find_sources(names, Path(recipe.beside), recipe.anonymous)
    now = recipe.model_copy(update={"files": tuple(found.files)})
    changes = differences(recipe, now)
    transform, digest = recipe.settings.transform, recipe.settings.code_digest
    if digest is not None and (
        recipe.code is None
        or transform is None
        or not has_transform(Path(recipe.code), transform, digest)
    ):
        changes.append(f"{recipe.code}: the transform's code has changed")
    if changes:
        raise BadInput(
            "the sources have changed:\n  " + "\n  ".join(changes),
            "restore them, or prepare the set again",
        )


def _make_again(
    store: Store, recipe: Recipe, unit: SourceUnit, record: ShardRecord, encoder: Encoder
) -> ShardRecord:
    chunks = unit_chunks(unit, recipe, SourcePosition())
    with ShardWriter(store, recipe, unit.number, record.index, record.first_chunk) as shard:
        for number, chunk in enumerate(
            islice(chunks, record.first_chunk, record.end_chunk), start=record.first_chunk
        ):
            shard.add(encoder.encode(chunk), record.duplicates.get(number, []))
        return shard.close(is_last=record.is_last)
