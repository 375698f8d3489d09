"""Prepared sets on disk, format version 1: what they are and how they are read.

    FOLDER/
      manifest.json            written last: without it there is no set
      tokenizer/               tokenizer.json and its companions
      shards/00000.tokens      little-endian uint16 (vocabulary up to 65,536) or uint32
      shards/00000.documents   little-endian uint64: where documents start, as indices of the stream
      shards/00000.mask        optional, one byte a token: 1 counts for the loss

A set is one stream of tokens; shards are a detail of storage, and samples cross them freely.
`docs/reference/shard-format.md` describes every field; `writer.py` writes them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headway.data.order import Order
from headway.errors import BadInput, NotFound

VERSION = 1
MANIFEST = "manifest.json"
SHARDS = "shards"
TOKENIZER = "tokenizer"

Layout = Literal["stream", "windows"]
TokenDtype = Literal["uint16", "uint32"]
Part = Literal["tokens", "documents", "mask"]

BLOCK_TOKENS = 2**20
"""2 MiB of uint16: large enough that an object store or a spinning disk reads at full speed."""
WINDOW_BLOCKS = 64
"""Samples are mixed over 64 Mi tokens: more than a global batch, little enough to keep."""

MAX_OPEN_MAPS = 1024
"""Linux allows a process 65,530 mappings; a set of 10^13 tokens has more files than that."""
_HASH_CHUNK_BYTES = 2**22


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SpecialIds(_Frozen):
    """Tokens that mean something to training, by id."""

    end_of_text: int | None = None
    """Ends every document of a stream."""
    mask: int | None = None
    """Stands for a token to be guessed (masked language models)."""
    special: tuple[int, ...] = ()
    """All special tokens: never masked, never drawn as a replacement."""


class Shard(_Frozen):
    name: str = Field(pattern=r"^[0-9]{5,}$")
    """The files' name without suffix. Digits only: a manifest cannot point outside its folder."""
    num_tokens: int = Field(ge=1)
    num_documents: int = Field(ge=0)
    """Documents that start in this shard."""
    has_mask: bool
    digests: dict[Part, str]
    """xxh3_128 of each file, in hexadecimal."""

    def sizes(self, token_bytes: int) -> dict[Part, int]:
        """The bytes each file must have."""
        sizes: dict[Part, int] = {
            "tokens": self.num_tokens * token_bytes,
            "documents": self.num_documents * 8,
        }
        if self.has_mask:
            sizes["mask"] = self.num_tokens
        return sizes


class SetManifest(_Frozen):
    version: Literal[1] = 1
    layout: Layout
    """`stream`: documents in a row, cut at training. `windows`: cut at preparation (masked LM)."""
    window_tokens: int | None = None
    """Length of a window, special tokens included; only for the layout `windows`."""
    vocab_size: int = Field(ge=1)
    token_dtype: TokenDtype
    num_tokens: int = Field(ge=1)
    num_documents: int = Field(ge=0)
    num_bytes: int = Field(ge=0)
    """Of the text, in UTF-8."""
    num_tokens_left_out: int = Field(default=0, ge=0)
    """At the end, because they did not fill a window. (A stream's tail depends on the sequence
    length, so it is not stored: `TokenSet.tail_tokens`.)"""
    block_tokens: int = Field(default=BLOCK_TOKENS, ge=1)
    window_blocks: int = Field(default=WINDOW_BLOCKS, ge=1)
    """With `block_tokens`, the two levels of the order; frozen with the set."""
    special_ids: SpecialIds
    tokenizer_digest: str
    """xxh3_128 of tokenizer/tokenizer.json."""
    shards: tuple[Shard, ...] = Field(min_length=1)
    created_by: str
    """`headway VERSION`."""

    @property
    def digest(self) -> str:
        """The identity of the content: equal for equal content, wherever and whenever made."""
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
        return 2 if self.token_dtype == "uint16" else 4


@dataclass(frozen=True)
class Rows:
    tokens: np.ndarray
    """int64: (n, L + 1) of a stream, (n, L) of windows."""
    mask: np.ndarray | None
    """bool, the same shape, True where a token counts for the loss; None if all count."""


def token_dtype(vocab_size: int) -> TokenDtype:
    return "uint16" if vocab_size <= 2**16 else "uint32"


def shard_path(folder: Path, name: str, part: Part) -> Path:
    return folder / SHARDS / f"{name}.{part}"


def read_manifest(folder: Path) -> SetManifest:
    path = folder / MANIFEST
    try:
        content = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"{folder} is not a prepared set: it has no {MANIFEST}",
            "prepare it again if preparation was interrupted; otherwise check the path",
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


class TokenSet:
    """A prepared set, open for reading. Files are memory-mapped when first needed."""

    def __init__(
        self, folder: Path, manifest: SetManifest, max_open_maps: int = MAX_OPEN_MAPS
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        # Where each shard ends, as an index of the stream.
        self._ends = np.cumsum([shard.num_tokens for shard in manifest.shards], dtype=np.int64)
        self._has_mask = any(shard.has_mask for shard in manifest.shards)
        self._max_open_maps = max_open_maps
        self._maps: dict[tuple[int, Part], np.memmap] = {}

    @classmethod
    def open(cls, folder: Path) -> TokenSet:
        """Checks the manifest and every file's size; `verify` also reads their content."""
        manifest = read_manifest(folder)
        problems = [*_arithmetic_problems(manifest), *_size_problems(folder, manifest)]
        if problems:
            raise BadInput(problems[0], "prepare the set again, or fetch an intact copy")
        return cls(folder, manifest)

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / TOKENIZER

    def num_samples(self, sequence_length: int) -> int:
        """Samples of one epoch. May be zero for a stream shorter than one sample."""
        assert sequence_length >= 1
        if self.manifest.layout == "stream":
            # Sample i is tokens [iL, iL + L]: neighbours share one token.
            return (self.manifest.num_tokens - 1) // sequence_length
        window = self._window_tokens(sequence_length)
        return self.manifest.num_tokens // window

    def tail_tokens(self, sequence_length: int) -> int:
        """Tokens at the end that no sample of this length holds."""
        num_samples = self.num_samples(sequence_length)
        used = num_samples * sequence_length
        if self.manifest.layout == "stream" and num_samples:
            used += 1
        return self.manifest.num_tokens - used

    def order(self, seed: int, sequence_length: int) -> Order:
        num_samples = self.num_samples(sequence_length)
        if num_samples == 0:
            raise BadInput(
                f"{self.folder} has {self.manifest.num_tokens} tokens, "
                f"too few for one sample of sequence_length {sequence_length}",
                "use more text or a shorter sequence_length",
            )
        return Order(
            seed=seed,
            num_samples=num_samples,
            samples_per_block=max(1, self.manifest.block_tokens // sequence_length),
            window_blocks=self.manifest.window_blocks,
        )

    def read(self, samples: np.ndarray, sequence_length: int) -> Rows:
        num_samples = self.num_samples(sequence_length)
        assert samples.ndim == 1
        assert samples.size == 0 or (samples.min() >= 0 and samples.max() < num_samples)
        width = sequence_length + (1 if self.manifest.layout == "stream" else 0)
        tokens = np.empty((len(samples), width), dtype=np.int64)
        mask = np.ones((len(samples), width), dtype=np.bool_) if self._has_mask else None
        for row, sample in enumerate(samples.tolist()):
            self._fill(tokens[row], None if mask is None else mask[row], sample * sequence_length)
        return Rows(tokens, mask)

    def _fill(self, tokens: np.ndarray, mask: np.ndarray | None, start: int) -> None:
        """One row from the stream at `start`, out of as many shards as it crosses."""
        number = int(np.searchsorted(self._ends, start, side="right"))
        filled = 0
        while filled < len(tokens):
            shard = self.manifest.shards[number]
            begin = start + filled - (int(self._ends[number]) - shard.num_tokens)
            count = min(len(tokens) - filled, shard.num_tokens - begin)
            here, there = slice(filled, filled + count), slice(begin, begin + count)
            tokens[here] = self._map(number, "tokens")[there]
            if mask is not None and shard.has_mask:
                mask[here] = self._map(number, "mask")[there] != 0
            filled += count
            number += 1

    def _map(self, number: int, part: Part) -> np.memmap:
        found = self._maps.get((number, part))
        if found is None:
            if len(self._maps) >= self._max_open_maps:
                del self._maps[next(iter(self._maps))]
            name = self.manifest.shards[number].name
            dtype = f"<u{self.manifest.token_bytes}" if part == "tokens" else "u1"
            found = np.memmap(shard_path(self.folder, name, part), dtype=dtype, mode="r")
            self._maps[number, part] = found
        return found

    def _window_tokens(self, sequence_length: int) -> int:
        window = self.manifest.window_tokens
        assert window is not None
        if sequence_length != window:
            raise BadInput(
                f"{self.folder} was prepared in windows of {window} tokens, "
                f"but sequence_length is {sequence_length}",
                f"set sequence_length to {window}, or prepare the set again",
            )
        return window


def verify(folder: Path) -> list[str]:
    """What is wrong with a set's files, by reading all of them; empty if nothing is."""
    manifest = read_manifest(folder)
    problems = [*_arithmetic_problems(manifest), *_size_problems(folder, manifest)]
    expected = {folder / TOKENIZER / "tokenizer.json": manifest.tokenizer_digest}
    for shard in manifest.shards:
        for part in shard.sizes(manifest.token_bytes):
            expected[shard_path(folder, shard.name, part)] = shard.digests.get(part, "")
    for path, digest in expected.items():
        if not path.is_file():
            # A shard's missing file is among the sizes' problems already.
            if path.parent.name == TOKENIZER:
                problems.append(f"{path} is missing")
        elif file_digest(path) != digest:
            problems.append(f"{path} is damaged: its content does not have the recorded digest")
    return problems


def file_digest(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def _arithmetic_problems(manifest: SetManifest) -> list[str]:
    """Where the manifest contradicts itself."""
    problems = []
    if sum(shard.num_tokens for shard in manifest.shards) != manifest.num_tokens:
        problems.append(f"{MANIFEST}: the shards' tokens do not add up to num_tokens")
    if sum(shard.num_documents for shard in manifest.shards) != manifest.num_documents:
        problems.append(f"{MANIFEST}: the shards' documents do not add up to num_documents")
    if manifest.token_dtype != token_dtype(manifest.vocab_size):
        problems.append(f"{MANIFEST}: token_dtype does not fit the vocabulary")
    if (manifest.layout == "windows") != (manifest.window_tokens is not None):
        problems.append(
            f"{MANIFEST}: window_tokens belongs to the layout `windows`, and only there"
        )
    elif manifest.window_tokens and manifest.num_tokens % manifest.window_tokens:
        problems.append(f"{MANIFEST}: num_tokens is not a whole number of windows")
    return problems


def _size_problems(folder: Path, manifest: SetManifest) -> list[str]:
    problems = []
    for shard in manifest.shards:
        for part, size in shard.sizes(manifest.token_bytes).items():
            path = shard_path(folder, shard.name, part)
            if not path.is_file():
                problems.append(f"{path} is missing")
            elif (found := path.stat().st_size) != size:
                problems.append(f"{path} has {found} bytes, the manifest says {size}")
    return problems
