"""What people want to know of a prepared set: its facts, how far it is, and text out of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headway.data.making.finish import is_finished
from headway.data.making.recipe import Recipe, read_recipe, units_of
from headway.data.making.writer import read_records
from headway.data.order import Permutation
from headway.data.reading.growing import FAILED
from headway.data.reading.tokenset import Rows, TokenSet
from headway.data.shards import Layout, SetManifest
from headway.data.statistics import Statistics
from headway.errors import BadInput
from headway.state.store import Store

LENGTH = 1024
"""Tokens of a sample, where nobody says how many."""
HALF = "\ufffd"
"""What decoding gives for bytes that are no whole character."""


def default_length(window_tokens: int | None) -> int:
    """Windows have one length only."""
    return window_tokens or LENGTH


@dataclass(frozen=True)
class LeftOut:
    """What was in the sources and is not in the set."""

    blank: int
    duplicates: int
    dropped: int
    held_out: int
    tokens: int
    """At the ends of shards, short of a window."""
    problems: dict[str, int]
    """Records that could not be read, by kind."""


@dataclass(frozen=True)
class SetFacts:
    """None: the set does not say, as sets of version 1 do not."""

    layout: Layout
    window_tokens: int | None
    num_tokens: int
    num_documents: int
    num_text_bytes: int
    vocab_size: int
    token_dtype: str
    num_unknown_tokens: int | None
    num_masked_tokens: int | None
    """Outside the loss."""
    num_shards: int
    num_bytes: int
    """Of the shards' files."""
    block_tokens: int
    window_blocks: int
    in_sequence: bool
    """Whether it can be read while it is being prepared: mixed in the order of the sources."""
    sequence_length: int
    num_samples: int
    """In one epoch, of that length."""
    tail_tokens: int
    """In no sample of that length."""
    left_out: LeftOut | None
    lengths: tuple[int, ...] | None
    """Documents of 2^k to 2^(k+1)-1 tokens, for k = 0, 1, 2, ..."""
    digest: str
    tokenizer_digest: str
    created_by: str


def set_facts(tokens: TokenSet, sequence_length: int) -> SetFacts:
    manifest = tokens.manifest
    statistics = manifest.statistics
    return SetFacts(
        layout=manifest.layout,
        window_tokens=manifest.window_tokens,
        num_tokens=manifest.num_tokens,
        num_documents=manifest.num_documents,
        num_text_bytes=manifest.num_bytes,
        vocab_size=manifest.vocab_size,
        token_dtype=manifest.token_dtype,
        num_unknown_tokens=None if statistics is None else statistics.num_unknown,
        num_masked_tokens=None if statistics is None else statistics.num_masked,
        num_shards=len(manifest.shards),
        num_bytes=set_bytes(manifest),
        block_tokens=manifest.block_tokens,
        window_blocks=manifest.window_blocks,
        in_sequence=manifest.in_sequence,
        sequence_length=sequence_length,
        num_samples=tokens.num_samples(sequence_length),
        tail_tokens=tokens.tail_tokens(sequence_length),
        left_out=None if statistics is None else _left_out(manifest, statistics),
        lengths=None if statistics is None else statistics.lengths,
        digest=manifest.digest,
        tokenizer_digest=manifest.tokenizer_digest,
        created_by=manifest.created_by,
    )


def _left_out(manifest: SetManifest, statistics: Statistics) -> LeftOut:
    return LeftOut(
        blank=statistics.num_blank,
        duplicates=statistics.num_duplicates,
        dropped=statistics.num_dropped,
        held_out=statistics.num_held_out,
        tokens=manifest.num_tokens_left_out,
        problems=statistics.problems,
    )


def set_bytes(manifest: SetManifest) -> int:
    """Of all its shards' files."""
    return sum(sum(shard.sizes(manifest.token_bytes).values()) for shard in manifest.shards)


@dataclass(frozen=True)
class Preparation:
    """How far a set is that has no manifest yet."""

    recipe: Recipe
    num_units: int
    """Shards' worth of sources."""
    num_finished: int
    source_bytes: int
    finished_bytes: int
    num_shards: int
    num_tokens: int
    num_documents: int
    num_problems: int
    failure: str | None
    """Why the run that prepared it in the background could not go on, where that happened."""


def preparation(store: Store) -> Preparation | None:
    """None when nothing was begun there."""
    recipe = read_recipe(store)
    if recipe is None:
        return None
    units = units_of(recipe)
    records = {
        key: record
        for key, record in read_records(store).items()
        if record.recipe_digest == recipe.digest
    }
    finished = [unit for unit in units if is_finished(records, unit.number)]
    shards = [record.shard for record in records.values() if record.shard is not None]
    return Preparation(
        recipe=recipe,
        num_units=len(units),
        num_finished=len(finished),
        source_bytes=sum(unit.num_bytes for unit in units),
        finished_bytes=sum(unit.num_bytes for unit in finished),
        num_shards=len(shards),
        num_tokens=sum(shard.num_tokens for shard in shards),
        num_documents=sum(shard.num_documents for shard in shards),
        num_problems=sum(len(record.problems) for record in records.values()),
        failure=store.read(FAILED).decode() if store.size(FAILED) is not None else None,
    )


@dataclass(frozen=True)
class Bar:
    """A row of a histogram: documents of `low` to 2 low - 1 tokens."""

    low: int
    count: int
    drawn: str


def bars(counts: Sequence[int], width: int) -> list[Bar]:
    """One for each power of two between the shortest and the longest there are. The largest count
    is `width` characters; what is less than half of one is a dot, not nothing."""
    there = [power for power, count in enumerate(counts) if count]
    if not there:
        return []
    largest = max(counts)
    found = []
    for power in range(there[0], there[-1] + 1):
        drawn = "#" * round(width * counts[power] / largest)
        if counts[power] and not drawn:
            drawn = "."
        found.append(Bar(2**power, counts[power], drawn))
    return found


@dataclass(frozen=True)
class Document:
    number: int
    """In the set, from 0."""
    shard: str
    num_tokens: int
    rows: Rows
    """Of its first tokens, as one row."""


def some_documents(tokens: TokenSet, count: int, seed: int, most_tokens: int) -> Iterator[Document]:
    """Different ones from all over the set, each up to so many tokens."""
    total = tokens.manifest.num_documents
    if total == 0 or tokens.manifest.num_tokens < 2:
        raise BadInput(f"{tokens.location} has no documents", "show samples instead")
    chosen = Permutation(total, "look/documents", seed).forward(np.arange(min(count, total)))
    for number in chosen.tolist():
        shard, begin, end = _document_range(tokens, number)
        rows = _token_range(tokens, begin, min(end, begin + most_tokens))
        yield Document(number, tokens.manifest.shards[shard].name, end - begin, rows)


def _document_range(tokens: TokenSet, number: int) -> tuple[int, int, int]:
    """(shard, begin, end) of a document: tokens of the set. It ends where the next one starts,
    which may be in another shard."""
    shards = tokens.manifest.shards
    firsts = np.cumsum([0, *(shard.num_tokens for shard in shards)]).tolist()
    before = np.cumsum([0, *(shard.num_documents for shard in shards)])
    # Of shards that begin with the same number of documents only the last one has any.
    shard = int(np.searchsorted(before, number, side="right")) - 1
    inside = number - int(before[shard])
    starts = tokens.document_starts(shard) + firsts[shard]
    begin = int(starts[inside])
    if inside + 1 < len(starts):
        return shard, begin, int(starts[inside + 1])
    for other in range(shard + 1, len(shards)):
        if shards[other].num_documents:
            return shard, begin, int(tokens.document_starts(other)[0]) + firsts[other]
    return shard, begin, tokens.manifest.num_tokens


def _token_range(tokens: TokenSet, begin: int, end: int) -> Rows:
    """The tokens [begin, end) of a set, whatever its samples."""
    window = tokens.window_tokens
    parts: list[np.ndarray | None]
    if window is not None:
        first = begin // window * window
        rows = tokens.read(np.arange(first // window, -(-end // window)), window)
        parts = [None if part is None else part.reshape(-1) for part in (rows.tokens, rows.mask)]
    else:
        # Samples of one token and its successor, of which there are one fewer than tokens.
        first = max(begin - 1, 0)
        rows = tokens.read(np.arange(first, max(end - 1, first + 1)), 1)
        parts = [
            None if part is None else np.concatenate([part[:1, 0], part[:, 1]])
            for part in (rows.tokens, rows.mask)
        ]
    ids, mask = (
        None if part is None else part[None, begin - first : end - first] for part in parts
    )
    assert ids is not None
    return Rows(ids, mask)


def spans(
    decode: Callable[[list[int]], str], ids: Sequence[int], counts: Sequence[bool]
) -> list[tuple[str, bool]]:
    """The text of each run of tokens that count for the loss, or do not, and whether they do.

    Joined, they are the text of all: each is what its tokens add to the text before them, for a
    token alone may be half a character, or lose the space in front of it.
    """
    ids = list(ids)
    changes = np.flatnonzero(np.diff(np.asarray(counts, dtype=np.int8))) + 1
    runs = list(pairwise([0, *changes.tolist(), len(ids)]))
    whole = decode(ids)
    found, done = [], ""
    for begin, end in runs:
        # A character that is cut in two here belongs to the run that completes it.
        until = whole if end == len(ids) else decode(ids[:end]).rstrip(HALF)
        if not (until.startswith(done) and whole.startswith(until)):
            # A decoder that changes what it has said already.
            return [(decode(ids[begin:end]), bool(counts[begin])) for begin, end in runs]
        found.append((until[len(done) :], bool(counts[begin])))
        done = until
    return found


def visible(text: str) -> str:
    """Without characters that would move a terminal's cursor or colour its text."""
    return text.translate(_ESCAPED)


_ESCAPED = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\n\t"
}
