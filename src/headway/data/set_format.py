"""The format of prepared sets, version 2.

    FOLDER/
      manifest.json            written last: without it there is no set
      recipe.json              sources and settings
      problems.jsonl           what could not be read, if anything
      tokenizer/               tokenizer.json and its companions
      shards/00000.tokens      little-endian uint16 (vocabulary up to 65,536) or uint32
      shards/00000.documents   little-endian uint64: where documents start, counted from the shard's
                               first token
      shards/00000.mask        optional, one byte per token: 1 counts for the loss

A set is one stream of tokens; shards are a storage detail, and samples may cross them.
`docs/reference/shard-format.md` describes every field; `shard_writer.py` writes shards,
`token_set.py` reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headway.data.shard_table import Part, Shard
from headway.data.statistics import Statistics
from headway.errors import BadInput, NotFound
from headway.state.set_files import MANIFEST as MANIFEST
from headway.state.store import Store

VERSION = 2
SHARDS = "shards"
TOKENIZER = "tokenizer"

Layout = Literal["stream", "windows"]
TokenDtype = Literal["uint16", "uint32"]

BLOCK_TOKENS = 2**20
"""Tokens per block: 2 MiB of uint16, large enough for an object store or a spinning disk to read at
full speed."""
WINDOW_BLOCKS = 64
"""Blocks per window. Samples are mixed over 64 Mi tokens: more than a global batch, but few enough
to keep."""

_HASH_CHUNK_BYTES = 2**22


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SpecialIds(Frozen):
    """Ids of the tokens that have a meaning for training."""

    end_of_text: int | None = None
    """Token that ends every document of a stream."""
    mask: int | None = None
    """Token that replaces a token to be predicted (masked language models)."""
    special: tuple[int, ...] = ()
    """All special tokens: never masked, never drawn as a replacement."""


class SetManifest(Frozen):
    version: Literal[2] = 2
    layout: Layout
    """`stream`: consecutive documents, cut in training. `windows`: cut beforehand (masked LM)."""
    window_tokens: int | None = None
    """Length of a window, including special tokens; only for the layout `windows`."""
    vocab_size: int = Field(ge=1)
    token_dtype: TokenDtype
    num_tokens: int = Field(ge=1)
    num_documents: int = Field(ge=0)
    num_bytes: int = Field(ge=0)
    """Size of the text in UTF-8."""
    num_tokens_left_out: int = Field(default=0, ge=0)
    """Tokens left out at the ends of shards because they did not fill a window. (The tail of a
    stream depends on the sequence length, so it is not stored: `TokenSet.tail_tokens`.)"""
    block_tokens: int = Field(default=BLOCK_TOKENS, ge=1)
    window_blocks: int = Field(default=WINDOW_BLOCKS, ge=1)
    """Blocks per window: with `block_tokens`, the two levels of the order; frozen with the set."""
    in_sequence: bool = False
    """Whether windows of blocks keep their sequence, with samples mixed only inside each window:
    such a set can be trained on while it is being prepared."""
    special_ids: SpecialIds
    tokenizer_digest: str
    """xxh3_128 of tokenizer/tokenizer.json."""
    recipe_digest: str | None = None
    """Digest of recipe.json: equal for equal sources and settings. None: made of no sources."""
    statistics: Statistics = Statistics()
    """Counts of what went in and what was left out."""
    shards: tuple[Shard, ...] = Field(min_length=1)
    created_by: str
    """`headway VERSION`."""

    @property
    def digest(self) -> str:
        """The identity of the content: equal for equal content, wherever and whenever it was made.
        For a set in sequence, the digest of its recipe, which is known before the content is."""
        if self.in_sequence:
            assert self.recipe_digest is not None
            return self.recipe_digest
        facts = self.model_dump(
            mode="json",
            include={
                *("version", "layout", "window_tokens", "vocab_size", "token_dtype"),
                *("block_tokens", "window_blocks", "special_ids", "tokenizer_digest"),
            },
        )
        facts["shards"] = [
            [shard.num_tokens, shard.num_documents, sorted(shard.digests.items())]
            for shard in self.shards
        ]
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return xxhash.xxh3_128_hexdigest(text.encode())

    @property
    def token_bytes(self) -> int:
        return token_bytes(self.token_dtype)

    def problems(self) -> list[str]:
        """Contradictions within the manifest."""
        problems = []
        if sum(shard.num_tokens for shard in self.shards) != self.num_tokens:
            problems.append(f"{MANIFEST}: the shards' tokens do not add up to num_tokens")
        if sum(shard.num_documents for shard in self.shards) != self.num_documents:
            problems.append(f"{MANIFEST}: the shards' documents do not add up to num_documents")
        if self.token_dtype != token_dtype(self.vocab_size):
            problems.append(f"{MANIFEST}: token_dtype does not fit the vocabulary")
        if (self.layout == "windows") != (self.window_tokens is not None):
            problems.append(
                f"{MANIFEST}: window_tokens belongs to the layout `windows`, and only there"
            )
        elif self.window_tokens and self.num_tokens % self.window_tokens:
            problems.append(f"{MANIFEST}: num_tokens is not a whole number of windows")
        return problems


def token_dtype(vocab_size: int) -> TokenDtype:
    return "uint16" if vocab_size <= 2**16 else "uint32"


def token_bytes(dtype: TokenDtype) -> int:
    return 2 if dtype == "uint16" else 4


def shard_file(name: str, part: Part) -> str:
    """The path of a shard's file relative to the set's folder."""
    return f"{SHARDS}/{name}.{part}"


def read_manifest(store: Store) -> SetManifest:
    path = store.location(MANIFEST)
    try:
        content = store.read(MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"{store.root} is not a prepared set: it has no {MANIFEST}",
            "check the path, or run the same headway data prepare again to resume it",
        ) from None
    again = "prepare the set again, or fetch an intact copy"
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise BadInput(f"{path} is not valid JSON: {error}", again) from None
    version = fields.get("version") if isinstance(fields, dict) else None
    if version != VERSION:
        raise BadInput(
            f"{path} has format version {version!r}; this Headway reads version {VERSION}",
            "use the Headway that made the set, or prepare it again with this one",
        )
    try:
        return SetManifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{path}: {where}: {first['msg']}", again) from None


def file_digest(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()
