"""Making damaged shards again from their sources."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from headway.data.making.encode import Encoder
from headway.data.making.pieces import Position, unit_chunks
from headway.data.making.recipe import Recipe, Unit, differences, read_recipe, units_of
from headway.data.making.roles import fetched_tokenizer
from headway.data.making.sources import find_sources
from headway.data.making.writer import ShardRecord, ShardWriter, read_records
from headway.data.shards import read_manifest, shard_file
from headway.errors import BadInput
from headway.state.code import has_code
from headway.state.store import Store


def repair(location: str, shards: Sequence[str], repaired: Callable[[str], None]) -> None:
    """Each of `shards`, by its name, with exactly the content that the manifest has it with."""
    store = Store(location)
    manifest = read_manifest(location)
    recipe = read_recipe(store)
    if recipe is None or recipe.digest != manifest.recipe_digest:
        raise BadInput(f"{location} does not say what it was made from", "prepare the set again")
    _refuse_changed(recipe)
    units = {unit.number: unit for unit in units_of(recipe)}
    wanted = {shard.name: shard for shard in manifest.shards}
    records = {record.shard.name: record for record in read_records(store).values() if record.shard}
    with fetched_tokenizer(store) as folder:
        encoder = Encoder(recipe, folder)
        for name in shards:
            if name not in records:
                raise BadInput(f"shard {name} has no record beside it", "prepare the set again")
            # Beside its place: runs may be reading the damaged one, and know no better.
            beside = store.path() if store.is_local else None
            with tempfile.TemporaryDirectory(dir=beside, prefix=".repair-") as scratch:
                made = _make_again(
                    Store(scratch), recipe, units[records[name].unit], records[name], encoder
                )
                if made.shard != wanted[name]:
                    raise BadInput(
                        f"shard {name} was made again and came out different",
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
    if recipe.settings.code_digest is not None and (
        recipe.code is None or not has_code(Path(recipe.code), recipe.settings.code_digest)
    ):
        changes.append(f"{recipe.code}: the transform's code has changed")
    if changes:
        raise BadInput(
            "the sources are not what they were:\n  " + "\n  ".join(changes),
            "put them back, or prepare the set again",
        )


def _make_again(
    store: Store, recipe: Recipe, unit: Unit, record: ShardRecord, encoder: Encoder
) -> ShardRecord:
    chunks = unit_chunks(unit, recipe, Position())
    with ShardWriter(store, recipe, unit.number, record.index, record.first_chunk) as shard:
        for number, chunk in enumerate(
            islice(chunks, record.first_chunk, record.end_chunk), start=record.first_chunk
        ):
            shard.add(encoder.encode(chunk), record.duplicates.get(number, []))
        return shard.close(is_last=record.is_last)
