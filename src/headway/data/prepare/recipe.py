"""What a set is made from, and how: everything that determines its content, and nothing else.

    recipe    sources and settings, in recipe.json: the same recipe makes the same bytes
    unit      a fixed amount of source text, however the work is divided; makes one shard
              (more if it is compressed text or very large)
    piece     the part of a file that belongs to a unit

Because units depend on the sources alone, shards do not depend on the number of processes, on when
a process was killed, or on how the work is divided into parts.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any, Literal

import xxhash
from pydantic import SerializerFunctionWrapHandler, ValidationError, model_serializer

from headway.data.formats.chunks import Problem
from headway.data.formats.readers import is_splittable
from headway.data.prepare.columns import needed_columns
from headway.data.prepare.sources import SourceFile
from headway.data.set_format import BLOCK_TOKENS, WINDOW_BLOCKS, Frozen, Layout, SpecialIds
from headway.errors import BadInput
from headway.spec.data_config import RecordConfig
from headway.state.store import Store

RECIPE = "recipe.json"

UNIT_BYTES = 2**27
"""Source text per unit. 128 MiB make a shard of about 64 MiB: few files, each quick to rebuild."""


PARTS_PER_NODE = 20
PART_BYTES = 2**31
"""Least source text of a part, if there are several per node: eight processors take a minute."""

TOKEN_BYTES = 4
"""Text per token, about."""


class RecipeSettings(RecordConfig):
    """How the records of the sources become a set."""

    layout: Layout = "stream"
    window_tokens: int | None = None
    code_digest: str | None = None
    """Digest of the files that `transform` is made of."""
    train_vocab: int | None = None
    """Vocabulary size of the tokenizer trained on the text itself, if any."""
    deduplicate: bool = False
    hold_out: float | None = None
    """Fraction of the documents that is held out."""
    side: Literal["train", "held_out"] = "train"
    in_sequence: bool = False
    """Whether windows of blocks keep the order of the sources: see growing_set.py."""
    unit_bytes: int = UNIT_BYTES
    first_bytes: int | None = None
    """Source text, as stored, after which nothing more is read. None: all is read."""
    block_tokens: int = BLOCK_TOKENS
    window_blocks: int = WINDOW_BLOCKS

    def streamed(self, window_tokens: int) -> RecipeSettings:
        """The same, in sequence, with samples mixed within so many tokens. Units are then no larger
        than such a window: training starts with the first."""
        return self.model_copy(
            update={
                "in_sequence": True,
                "block_tokens": max(1, window_tokens // WINDOW_BLOCKS),
                "window_blocks": WINDOW_BLOCKS,
                "unit_bytes": min(UNIT_BYTES, TOKEN_BYTES * window_tokens),
            }
        )

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The only columns needed; None if any may be needed."""
        return None if self.transform is not None else needed_columns(self)

    @model_serializer(mode="wrap")
    def _without_new_keys(self, serialized: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a key that came after digests had been recorded, unless it is used."""
        written: dict[str, Any] = serialized(self)
        for key in ("unmask", "first_bytes"):
            if getattr(self, key) is None:
                written.pop(key, None)
        return written


class TokenizerFacts(Frozen):
    """The tokenizer in the set's folder, and the ids of its special tokens."""

    digest: str
    """xxh3_128 of tokenizer/tokenizer.json."""
    vocab_size: int
    special_ids: SpecialIds
    start: int | None
    """Id of [CLS], for windows."""
    separator: int | None
    """Id of [SEP], for windows."""
    unknown: int | None
    """Id of the token for text that the tokenizer does not know."""
    chat_digest: str | None = None
    """Digest of the files beside tokenizer.json, if conversations are rendered with them."""


class Recipe(Frozen):
    version: Literal[1] = 1
    settings: RecipeSettings
    tokens: TokenizerFacts
    files: tuple[SourceFile, ...]
    beside: str
    """Folder that relative names start from. Not part of the digest: sources may move."""
    code: str | None = None
    """Folder of the user's own code. Not part of the digest: `settings.code_digest` is."""
    anonymous: bool = False
    """Whether stores are accessed without credentials. Not part of the digest."""
    left_out: tuple[Problem, ...] = ()
    """Files in the sources' folders that cannot be read. Not part of the digest."""

    @property
    def digest(self) -> str:
        facts = self.model_dump(mode="json", include={"version", "settings", "tokens", "files"})
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return xxhash.xxh3_128_hexdigest(text.encode())

    @property
    def content(self) -> bytes:
        """As it is stored."""
        return self.model_dump_json(indent=2).encode() + b"\n"

    def save(self, store: Store) -> None:
        store.write(RECIPE, self.content)


def read_recipe(store: Store) -> Recipe | None:
    """The recipe; None if no preparation was started there."""
    try:
        return Recipe.model_validate_json(store.read(RECIPE))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(
            f"{store.location(RECIPE)}: {where}: {first['msg']}",
            "another version of Headway wrote it: prepare into a new folder",
        ) from None


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The differences that would make a different set, in words."""
    found = []
    for name in RecipeSettings.model_fields:
        before, now = getattr(old.settings, name), getattr(new.settings, name)
        if before != now:
            found.append(f"{name}: {now}, was {before}")
    if old.tokens != new.tokens:
        found.append("the tokenizer has changed")
    files, known = ({file.name: file for file in recipe.files} for recipe in (new, old))
    found += [f"{name}: is new" for name in sorted(files.keys() - known.keys())]
    found += [f"{name}: is missing" for name in sorted(known.keys() - files.keys())]
    found += [
        f"{name}: has changed"
        for name in sorted(files.keys() & known.keys())
        if files[name] != known[name]
    ]
    if not found and old.digest != new.digest:
        found.append("the order of the files has changed")
    return found


@dataclass(frozen=True, slots=True)
class SourceRange:
    file: str
    begin: int
    end: int | None
    """End of the byte range; None is the end of the file."""
    part: int | None = None
    """Number of the part, for a dataset on the hub."""


@dataclass(frozen=True, slots=True)
class SourceUnit:
    number: int
    ranges: tuple[SourceRange, ...]
    num_bytes: int
    """Size of the source, as stored."""

    @property
    def name(self) -> str:
        """Name shown to people."""
        first = self.ranges[0]
        more = f" and {len(self.ranges) - 1} more" if len(self.ranges) > 1 else ""
        if first.part is not None:
            return f"{first.file}, part {first.part}{more}"
        place = f" from byte {first.begin}" if first.begin else ""
        return f"{first.file}{place}{more}"


def source_units(recipe: Recipe) -> list[SourceUnit]:
    """The units of a recipe: small files combined, large ones split if their format allows."""
    size = recipe.settings.unit_bytes
    units: list[SourceUnit] = []
    held: list[SourceRange] = []
    held_bytes = 0

    def close() -> None:
        nonlocal held, held_bytes
        if held:
            units.append(SourceUnit(len(units), tuple(held), held_bytes))
        held, held_bytes = [], 0

    for file in recipe.files:
        for source, num_bytes in _ranges(file, size):
            if held_bytes + num_bytes > size or source.part is not None:
                close()
            held.append(source)
            held_bytes += num_bytes
    close()
    return _first_units(units, recipe.settings)


def _first_units(units: list[SourceUnit], settings: RecipeSettings) -> list[SourceUnit]:
    """The units that begin within `first_bytes`. One whose size is not known counts as a full
    one."""
    if settings.first_bytes is None:
        return units
    sizes = (unit.num_bytes or settings.unit_bytes for unit in units)
    begins = itertools.accumulate(sizes, initial=0)
    return [
        unit for unit, begin in zip(units, begins, strict=False) if begin < settings.first_bytes
    ]


def parts_for(units: list[SourceUnit], nodes: int, unit_bytes: int) -> int:
    """How many parts these units are divided into for so many nodes: many, so that a lost machine
    holds up little, but each worth the start of a pod. `unit_bytes`: for units of unknown size."""
    num_bytes = sum(unit.num_bytes or unit_bytes for unit in units)
    rounds = min(PARTS_PER_NODE, num_bytes // (nodes * PART_BYTES), len(units) // nodes)
    return min(nodes * max(1, rounds), len(units))


def units_of_part(num_units: int, part: int, num_parts: int, nodes: int) -> range:
    """Numbers of the units of a part. A run that trains meanwhile reads the beginning of the
    sources first: so the parts that run at the same time take the units of one stretch in turn."""
    rounds, number = -(-num_parts // nodes), part // nodes
    at_once = min(nodes, num_parts - number * nodes)
    begin, end = (num_units * edge // rounds for edge in (number, number + 1))
    return range(begin + part % nodes, end, at_once)


def _ranges(file: SourceFile, unit_bytes: int) -> list[tuple[SourceRange, int]]:
    if file.num_parts > 1:
        return [(SourceRange(file.name, 0, None, part), 0) for part in range(file.num_parts)]
    num_ranges = max(1, round(file.size / unit_bytes)) if is_splittable(file.name) else 1
    bounds = [file.size * number // num_ranges for number in range(num_ranges + 1)]
    return [
        (
            SourceRange(
                file.name, bounds[number], None if number + 1 == num_ranges else bounds[number + 1]
            ),
            bounds[number + 1] - bounds[number],
        )
        for number in range(num_ranges)
    ]
