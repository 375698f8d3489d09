"""Encodes a chunk as tokens. Runs in any number of processes and keeps no state between chunks, so
the result does not depend on which process encoded which chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import xxhash
from tokenizers import Tokenizer

from headway.data.formats.chunks import Chunk, Problem, SourceRecord
from headway.data.prepare.chat import RenderedChat, token_mask
from headway.data.prepare.extract import Content, Extracted, Extractor, Omitted, TokenIds
from headway.data.prepare.fast_bpe import fast_bpe_for
from headway.data.prepare.recipe import Recipe
from headway.data.set_format import token_dtype
from headway.data.statistics import Statistics
from headway.data.tokenizer import TOKENIZER_JSON

PIECE_CHARACTERS = 2**22
"""Longer texts are encoded in pieces, cut before whitespace: the tokenizer needs about a hundred
bytes per character."""
MESSAGE_CHARACTERS = 1000
"""Length limit of a problem's message: there may be one for every record."""

NO_IDS = TokenIds(np.empty(0, dtype=np.int64), None)


@dataclass(frozen=True)
class EncodedChunk:
    """The documents of a chunk, concatenated."""

    tokens: np.ndarray
    mask: np.ndarray | None
    """uint8, 1 where a token counts for the loss; None if all count."""
    lengths: np.ndarray
    """Number of tokens of each document, or of the part of it in this chunk."""
    num_bytes: np.ndarray
    """Size of each document's text, in UTF-8."""
    hashes: tuple[bytes, ...] | None
    """Hash of each document's content, if needed; empty for parts of long documents."""
    opens: bool
    """Whether the first document continues the last one of the previous chunk."""
    continues: bool
    """Whether the last document continues in the next chunk."""
    statistics: Statistics
    problems: tuple[Problem, ...]
    file: str
    first_line: int
    """Line on which the chunk starts, counted as in `SourceRecord`."""
    num_lines: int


@dataclass
class _Kept:
    """The documents of a chunk that are kept, before encoding."""

    contents: list[Content] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


class Encoder:
    def __init__(self, recipe: Recipe, tokenizer_folder: Path) -> None:
        self._settings = recipe.settings
        self._tokens = recipe.tokens
        self._dtype = np.dtype(token_dtype(recipe.tokens.vocab_size))
        code = Path(recipe.code) if recipe.code else None
        self._extractor = Extractor(recipe.settings, recipe.tokens, tokenizer_folder, code)
        # Text that spells a special token stays text: otherwise a document could end itself. In a
        # conversation, special tokens come from the template; messages cannot contain any.
        self._plain = load_encoder(tokenizer_folder, special=False)
        self._special = load_encoder(tokenizer_folder, special=True)
        self._words = fast_bpe_for(self._plain, self._dtype)
        # A document too long for one chunk has no hash of the whole: they are all on one side.
        self._keeps_parts = recipe.settings.hold_out is None or recipe.settings.side == "train"
        end = self._tokens.special_ids.end_of_text
        self._end = [end] if recipe.settings.layout == "stream" and end is not None else []

    def encode(self, chunk: Chunk) -> EncodedChunk:
        kept = self._select(chunk)
        opens, continues = chunk.opens and self._keeps_parts, chunk.continues and self._keeps_parts
        documents = self._documents(kept, opens, continues)
        tokens = [document[0] for document in documents]
        masks = [document[1] for document in documents]
        lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        return EncodedChunk(
            tokens=np.concatenate([np.empty(0, dtype=self._dtype), *tokens]),
            mask=_joined(masks, lengths),
            lengths=lengths,
            num_bytes=np.array([_num_bytes(content) for content in kept.contents], dtype=np.int64),
            hashes=tuple(kept.hashes) if self._settings.deduplicate else None,
            opens=opens,
            continues=continues,
            statistics=Statistics(problems=_by_kind(kept.problems), **kept.counts),
            problems=tuple(kept.problems),
            file=chunk.file,
            # Only a piece of a text starts on another line than its first: at a document.
            first_line=getattr(chunk, "first_line", 1),
            num_lines=chunk.num_lines,
        )

    def _select(self, chunk: Chunk) -> _Kept:
        kept = _Kept()
        items = list(chunk.records())
        for number, item in enumerate(items):
            continues_previous = chunk.opens and number == 0
            is_part = continues_previous or (chunk.continues and number == len(items) - 1)
            found: Extracted = (
                item
                if isinstance(item, Problem)
                else self._extractor.extract(item, chunk.file, is_part)
            )
            if isinstance(found, TokenIds) and not len(found.ids):
                found = Omitted.BLANK
            if isinstance(found, Problem):
                kept.problems.append(replace(found, message=printable(found.message)))
            elif found is Omitted.DROPPED:
                kept.count("num_dropped")
            elif found is Omitted.BLANK and not is_part:
                kept.count("num_blank")
            if is_part:
                self._keep_part(kept, item, found, continues_previous)
            elif not isinstance(found, Problem | Omitted):
                self._keep(kept, found)
        return kept

    def _keep(self, kept: _Kept, content: Content) -> None:
        settings = self._settings
        digest = b""
        if settings.deduplicate or settings.hold_out is not None:
            digest = content_hash(content)
        if settings.hold_out is not None:
            side = "held_out" if is_held_out(digest, settings.hold_out) else "train"
            if side != settings.side:
                kept.count("num_held_out")
                return
        kept.contents.append(content)
        kept.hashes.append(digest)

    def _keep_part(
        self, kept: _Kept, item: SourceRecord | Problem, found: Extracted, continues_previous: bool
    ) -> None:
        """Keeps even an unreadable part: the last one has to end the document."""
        if not continues_previous:
            kept.count("num_long" if self._keeps_parts else "num_held_out")
        if not self._keeps_parts:
            return
        content: Content
        if not isinstance(found, Problem | Omitted):
            content = found
        elif found is Omitted.BLANK and _is_text(item) and self._settings.transform is None:
            content = item.value  # whitespace inside a document is part of it
        else:
            value = item.value if isinstance(item, SourceRecord) else None
            holds_ids = self._settings.ids is not None or isinstance(value, np.ndarray)
            content = NO_IDS if holds_ids else ""
        kept.contents.append(content)
        kept.hashes.append(b"")

    def _documents(
        self, kept: _Kept, opens: bool, continues: bool
    ) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """Tokens and mask of each document."""
        encoded = self._encoded(
            piece
            for content in kept.contents
            if isinstance(content, str)
            for piece in pieces_of(content)
        )
        documents: list[tuple[np.ndarray, np.ndarray | None]] = []
        last = len(kept.contents) - 1
        for number, content in enumerate(kept.contents):
            continues_previous, continues_in_next = (
                opens and number == 0,
                continues and number == last,
            )
            end = [] if continues_in_next else self._end
            if isinstance(content, str):
                pieces = [next(encoded) for _ in pieces_of(content)]
                if len(pieces) > 1 and not continues_previous and not continues_in_next:
                    kept.count("num_long")
                documents.append((np.concatenate([*pieces, self._array(end)]), None))
            elif isinstance(content, RenderedChat):
                documents.append(self._conversation(content, end))
            else:
                documents.append((content.ids.astype(self._dtype), content.mask))
        return documents

    def _encoded(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of each text: word by word where possible, the others in one batch."""
        words = self._words
        by_words = [(text, words.encode(text) if words is not None else None) for text in texts]
        others = [text for text, found in by_words if found is None]
        by_tokenizer = iter(self._plain.encode_batch_fast(others, add_special_tokens=False))
        for _, found in by_words:
            if found is None:
                yield self._array(next(by_tokenizer).ids)
            else:
                yield np.frombuffer(found, dtype=self._dtype)

    def _conversation(self, content: RenderedChat, end: list[int]) -> tuple[np.ndarray, np.ndarray]:
        encoding = self._special.encode(content.text, add_special_tokens=False)
        ids = encoding.ids
        mask = token_mask(encoding.offsets, content.answers)
        if end and ids[-1:] != end:
            # The template does not end with it, but a model has to learn it after its last answer.
            ids = ids + end
            mask = np.append(mask, mask[-1:] if len(mask) else [0]).astype(np.uint8)
        return self._array(ids), mask

    def _array(self, ids: Any) -> np.ndarray:
        return np.fromiter(ids, dtype=self._dtype)


def load_encoder(folder: Path, *, special: bool) -> Tokenizer:
    """`special`: whether text that spells a special token becomes that token."""
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_JSON))
    # Saved tokenizers may truncate or pad to the length of their model.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not special
    return tokenizer


def content_hash(content: Content) -> bytes:
    """128 bits: among 10^10 documents, the chance that two different ones collide is 10^-19."""
    if isinstance(content, TokenIds):
        return xxhash.xxh3_128_digest(content.ids.astype("<i8").tobytes())
    text = content.text if isinstance(content, RenderedChat) else content
    return xxhash.xxh3_128_digest(text.encode())


def is_held_out(digest: bytes, share: float) -> bool:
    """Depends on the document alone: it stays on its side whatever is added or removed."""
    return int.from_bytes(digest[:8], "little") < int(share * 2**64)


def printable(text: str) -> str:
    """The text on one line and of limited length, whatever it quotes from the source: half
    characters and escape sequences are spelled out."""
    quoted = text[:MESSAGE_CHARACTERS] + ("..." if len(text) > MESSAGE_CHARACTERS else "")
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in quoted
    )


def pieces_of(text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Pieces of a text, cut before whitespace where there is any."""
    begin = 0
    while len(text) - begin > size:
        limit = begin + size
        cut = max(text.rfind("\n", begin + 1, limit), text.rfind(" ", begin + 1, limit))
        yield text[begin : cut if cut > 0 else limit]
        begin = cut if cut > 0 else limit
    yield text[begin:]


def _is_text(item: SourceRecord | Problem) -> TypeGuard[SourceRecord]:
    return isinstance(item, SourceRecord) and isinstance(item.value, str)


def _num_bytes(content: Content) -> int:
    if isinstance(content, TokenIds):
        return 0
    return len((content.text if isinstance(content, RenderedChat) else content).encode())


def _joined(masks: list[np.ndarray | None], lengths: np.ndarray) -> np.ndarray | None:
    if all(mask is None for mask in masks):
        return None
    return np.concatenate(
        [
            np.ones(length, dtype=np.uint8) if mask is None else mask
            for mask, length in zip(masks, lengths.tolist(), strict=True)
        ]
    )


def _by_kind(problems: list[Problem]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.kind] = counts.get(problem.kind, 0) + 1
    return counts
