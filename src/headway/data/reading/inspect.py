"""Facts about a prepared set, the progress of a preparation, and tokens as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headway.data.order import Permutation
from headway.data.prepare.partial_manifest import PartialManifest, finished_units
from headway.data.prepare.recipe import Recipe, read_recipe
from headway.data.reading.token_set import TokenRows, TokenSet
from headway.data.set_format import SetManifest
from headway.data.shard_table import ShardTable
from headway.errors import BadInput
from headway.state.set_files import FAILED
from headway.state.store import Store

LENGTH = 1024
"""Default length of a sample, in tokens."""
HALF = "\ufffd"
"""Replacement that decoding gives for incomplete characters."""


def default_length(window_tokens: int | None) -> int:
    """The default sample length; windows have only one."""
    return window_tokens or LENGTH


def set_bytes(manifest: SetManifest, table: ShardTable) -> int:
    """Size of all files of the shards."""
    return sum(sum(shard.sizes(manifest.token_bytes).values()) for shard in table)


@dataclass(frozen=True)
class PreparationStatus:
    """Progress of a set that has no manifest yet. Shards, tokens, documents and problems are those
    up to the first piece that is not finished."""

    recipe: Recipe
    num_units: int
    """Number of units that the sources are divided into; each makes about one shard."""
    num_finished: int
    source_bytes: int
    finished_bytes: int
    num_shards: int
    num_tokens: int
    num_documents: int
    num_problems: int
    failure: str | None
    """Reason why preparation in the background failed, if it did."""

    @property
    def share(self) -> float:
        # Of a dataset on the hub, sizes are not known.
        if not self.source_bytes:
            return self.num_finished / self.num_units
        return self.finished_bytes / self.source_bytes


def preparation_status(
    store: Store, partial: PartialManifest | None = None
) -> PreparationStatus | None:
    """The progress; None if no preparation was started there. `partial` is read on from."""
    if partial is None:
        recipe = read_recipe(store)
        if recipe is None:
            return None
        partial = PartialManifest(recipe, "sums")
    partial.refresh(store)
    finished, sums = finished_units(store, partial), partial.sums
    return PreparationStatus(
        recipe=partial.recipe,
        num_units=len(partial.units),
        num_finished=len(finished),
        source_bytes=sum(unit.num_bytes for unit in partial.units),
        finished_bytes=sum(unit.num_bytes for unit in finished),
        num_shards=sums.num_shards,
        num_tokens=sums.num_tokens,
        num_documents=sums.num_documents,
        num_problems=sums.num_problems,
        failure=store.read(FAILED).decode() if store.size(FAILED) is not None else None,
    )


@dataclass(frozen=True)
class HistogramBar:
    """A row of a histogram: documents of `low` to 2 low - 1 tokens."""

    low: int
    count: int
    drawn: str


def histogram_bars(counts: Sequence[int], width: int) -> list[HistogramBar]:
    """One bar per power of two from the shortest to the longest document. The largest count is
    `width` characters; a count below half a character is drawn as a dot, not as nothing."""
    there = [power for power, count in enumerate(counts) if count]
    if not there:
        return []
    largest = max(counts)
    found = []
    for power in range(there[0], there[-1] + 1):
        drawn = "#" * round(width * counts[power] / largest)
        if counts[power] and not drawn:
            drawn = "."
        found.append(HistogramBar(2**power, counts[power], drawn))
    return found


@dataclass(frozen=True)
class SampledDocument:
    number: int
    """Number of the document in the set, from 0."""
    shard: str
    num_tokens: int
    rows: TokenRows
    """First tokens of the document, as one row."""


def sample_documents(
    tokens: TokenSet, count: int, seed: int, most_tokens: int
) -> Iterator[SampledDocument]:
    """Different documents from all over the set, each cut to at most `most_tokens` tokens."""
    total = tokens.manifest.num_documents
    if total == 0 or tokens.manifest.num_tokens < 2:
        raise BadInput(
            f"{tokens.location} has no documents", "leave out --documents to show samples"
        )
    chosen = Permutation(total, "look/documents", seed).forward(np.arange(min(count, total)))
    for number in chosen.tolist():
        shard, begin, end = _document_range(tokens, number)
        rows = _token_range(tokens, begin, min(end, begin + most_tokens))
        yield SampledDocument(number, tokens.table.name(shard), end - begin, rows)


def _document_range(tokens: TokenSet, number: int) -> tuple[int, int, int]:
    """(shard, begin, end) of a document, as tokens of the set. It ends where the next one starts,
    which may be in another shard."""
    table = tokens.table

    def position(document: int) -> tuple[int, int]:
        """Its shard, which is the first that ends beyond it, and its first token."""
        shard = int(np.searchsorted(table.document_ends, document, side="right"))
        inside = document - table.first_document(shard)
        return shard, table.first_token(shard) + int(tokens.document_starts(shard)[inside])

    shard, begin = position(number)
    is_last = number + 1 == table.num_documents
    return shard, begin, table.num_tokens if is_last else position(number + 1)[1]


def _token_range(tokens: TokenSet, begin: int, end: int) -> TokenRows:
    """The tokens [begin, end) of a set, regardless of its samples."""
    window = tokens.window_tokens
    parts: list[np.ndarray | None]
    if window is not None:
        first = begin // window * window
        rows = tokens.read(np.arange(first // window, -(-end // window)), window)
        parts = [None if part is None else part.reshape(-1) for part in (rows.tokens, rows.mask)]
    else:
        # Samples of one token and its successor; there is one fewer of these than tokens.
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
    return TokenRows(ids, mask)


def loss_spans(
    decode: Callable[[list[int]], str], ids: Sequence[int], counts: Sequence[bool]
) -> list[tuple[str, bool]]:
    """The text of each run of tokens that count for the loss, or do not, and whether they do.

    Joined, they give the whole text: each is what its tokens add to the text before them, since a
    single token may be half a character, or lose the space before it.
    """
    ids = list(ids)
    changes = np.flatnonzero(np.diff(np.asarray(counts, dtype=np.int8))) + 1
    runs = list(pairwise([0, *changes.tolist(), len(ids)]))
    whole = decode(ids)
    found, done = [], ""
    for begin, end in runs:
        # A character that is split here belongs to the run that completes it.
        until = whole if end == len(ids) else decode(ids[:end]).rstrip(HALF)
        if not (until.startswith(done) and whole.startswith(until)):
            # The decoder changes text that it has already returned.
            return [(decode(ids[begin:end]), bool(counts[begin])) for begin, end in runs]
        found.append((until[len(done) :], bool(counts[begin])))
        done = until
    return found


def visible(text: str) -> str:
    """The text with characters escaped that would control a terminal's cursor or colours."""
    return text.translate(_ESCAPED)


_ESCAPED = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\n\t"
}
