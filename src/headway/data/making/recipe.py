"""What a set is made from, and how: all that decides its content, and nothing else.

    recipe    sources and settings, in recipe.json: the same recipe makes the same bytes
    unit      a fixed amount of source text, the same however the work is divided; makes one shard
              (more if it is compressed text or very large)
    piece     what a unit takes of one file

Because units follow from the sources alone, shards do not depend on how many processes work, on
what was killed when, or on how the work is divided into parts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import xxhash
from pydantic import ValidationError

from headway.data.formats.chunks import Problem
from headway.data.formats.readers import is_splittable
from headway.data.making.sources import SourceFile
from headway.data.shards import BLOCK_TOKENS, WINDOW_BLOCKS, Frozen, Layout, SpecialIds
from headway.errors import BadInput
from headway.state.store import Store

RECIPE = "recipe.json"

UNIT_BYTES = 2**27
"""128 MiB of text make a shard of about 64 MiB: few files, and short work to make again."""


class Settings(Frozen):
    """How records become tokens."""

    layout: Layout = "stream"
    window_tokens: int | None = None
    column: str = "text"
    """The column that holds the text."""
    template: str | None = None
    """Text made of several columns: `{question} {answer}`."""
    messages: str | None = None
    """The column that holds a conversation; the loss counts on the answers only."""
    transform: str | None = None
    """The user's own function, `module:function`."""
    code_digest: str | None = None
    """Of the folder that `transform` is in."""
    ids: str | None = None
    """The column that holds token ids, taken over as they are."""
    mask: str | None = None
    """With `ids`: the column that says which of them count for the loss."""
    train_vocab: int | None = None
    """Size of the tokenizer that was trained on the text itself, where one was."""
    deduplicate: bool = False
    hold_out: float | None = None
    """The share of the documents on the other side of the split."""
    side: Literal["train", "held_out"] = "train"
    in_sequence: bool = False
    """Windows of blocks in the order of the sources: see growing.py."""
    unit_bytes: int = UNIT_BYTES
    block_tokens: int = BLOCK_TOKENS
    window_blocks: int = WINDOW_BLOCKS

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The only columns that are needed; None if any may be."""
        if self.transform is not None:
            return None
        if self.ids is not None:
            return (self.ids,) if self.mask is None else (self.ids, self.mask)
        if self.template is not None:
            return template_columns(self.template)
        return (self.messages or self.column,)


class Tokens(Frozen):
    """The tokenizer in the set's folder, and what its special tokens are."""

    digest: str
    """xxh3_128 of tokenizer/tokenizer.json."""
    vocab_size: int
    special_ids: SpecialIds
    start: int | None
    """[CLS], for windows."""
    separator: int | None
    """[SEP], for windows."""
    unknown: int | None
    """Stands for text that the tokenizer does not know."""
    chat_digest: str | None = None
    """Of the files beside tokenizer.json, where conversations are written by what they say."""


class Recipe(Frozen):
    version: Literal[1] = 1
    settings: Settings
    tokens: Tokens
    files: tuple[SourceFile, ...]
    beside: str
    """Where relative names start. Not part of the digest: sources may move."""
    code: str | None = None
    """The folder of the user's own code. Not part of the digest: `settings.code_digest` is."""
    anonymous: bool = False
    """Whether stores are asked without credentials. Not part of the digest."""
    left_out: tuple[Problem, ...] = ()
    """Files in the sources' folders that cannot be read. Not part of the digest."""

    @property
    def digest(self) -> str:
        facts = self.model_dump(mode="json", include={"version", "settings", "tokens", "files"})
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return xxhash.xxh3_128_hexdigest(text.encode())

    def save(self, store: Store) -> None:
        store.write(RECIPE, self.model_dump_json(indent=2).encode() + b"\n")


def read_recipe(store: Store) -> Recipe | None:
    """None when nothing was begun there, or it was made before recipes were kept."""
    try:
        return Recipe.model_validate_json(store.read(RECIPE))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(
            f"{store.location(RECIPE)}: {where}: {first['msg']}",
            "it was written by another version of Headway: prepare into a new folder",
        ) from None


def differences(old: Recipe, new: Recipe) -> list[str]:
    """What would make another set, in words."""
    found = []
    for name in Settings.model_fields:
        before, now = getattr(old.settings, name), getattr(new.settings, name)
        if before != now:
            found.append(f"{name}: {now}, was {before}")
    if old.tokens != new.tokens:
        found.append("the tokenizer is another one")
    files, known = ({file.name: file for file in recipe.files} for recipe in (new, old))
    found += [f"{name}: was not there" for name in sorted(files.keys() - known.keys())]
    found += [f"{name}: is gone" for name in sorted(known.keys() - files.keys())]
    found += [
        f"{name}: has changed since"
        for name in sorted(files.keys() & known.keys())
        if files[name] != known[name]
    ]
    if not found and old.digest != new.digest:
        found.append("the files are in another order")
    return found


@dataclass(frozen=True)
class Piece:
    file: str
    begin: int
    end: int | None
    """A range of bytes; None is the end of the file."""
    part: int | None = None
    """For a dataset of the hub: which of its parts."""


@dataclass(frozen=True)
class Unit:
    number: int
    pieces: tuple[Piece, ...]
    num_bytes: int
    """Of source, as stored."""

    @property
    def name(self) -> str:
        """For people."""
        first = self.pieces[0]
        more = f" and {len(self.pieces) - 1} more" if len(self.pieces) > 1 else ""
        if first.part is not None:
            return f"{first.file}, part {first.part}{more}"
        place = f" from byte {first.begin}" if first.begin else ""
        return f"{first.file}{place}{more}"


def units_of(recipe: Recipe) -> list[Unit]:
    """Small files together, large ones in pieces where their format allows it."""
    size = recipe.settings.unit_bytes
    units: list[Unit] = []
    held: list[Piece] = []
    held_bytes = 0

    def close() -> None:
        nonlocal held, held_bytes
        if held:
            units.append(Unit(len(units), tuple(held), held_bytes))
        held, held_bytes = [], 0

    for file in recipe.files:
        for piece, num_bytes in _pieces(file, size):
            if held_bytes + num_bytes > size or piece.part is not None:
                close()
            held.append(piece)
            held_bytes += num_bytes
    close()
    return units


def units_of_part(units: list[Unit], part: int, num_parts: int) -> list[Unit]:
    """The units whose middle lies in part `part` of `num_parts` equal amounts of source."""
    total = sum(max(1, unit.num_bytes) for unit in units)
    chosen, before = [], 0
    for unit in units:
        weight = max(1, unit.num_bytes)
        if (2 * before + weight) * num_parts // (2 * total) == part:
            chosen.append(unit)
        before += weight
    return chosen


def _pieces(file: SourceFile, unit_bytes: int) -> list[tuple[Piece, int]]:
    if file.num_parts > 1:
        return [(Piece(file.name, 0, None, part), 0) for part in range(file.num_parts)]
    num_pieces = max(1, round(file.size / unit_bytes)) if is_splittable(file.name) else 1
    bounds = [file.size * number // num_pieces for number in range(num_pieces + 1)]
    return [
        (
            Piece(
                file.name, bounds[number], None if number + 1 == num_pieces else bounds[number + 1]
            ),
            bounds[number + 1] - bounds[number],
        )
        for number in range(num_pieces)
    ]


def template_columns(template: str) -> tuple[str, ...]:
    """The columns that a template names, each once."""
    from string import Formatter

    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise BadInput(f"template {template!r}: {error}", "write {{ and }} for braces") from None
    if not fields or "" in fields:
        raise BadInput(f"template {template!r} names no column", 'such as "{question} {answer}"')
    return tuple(dict.fromkeys(fields))
