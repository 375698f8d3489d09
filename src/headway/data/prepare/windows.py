"""Packs the tokens of consecutive documents into the windows of masked models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.data.prepare.encode import EncodedChunk
from headway.data.prepare.recipe import TokenizerFacts


@dataclass(frozen=True)
class PackedTokens:
    """Tokens to write to a shard."""

    tokens: np.ndarray
    mask: np.ndarray | None
    starts: np.ndarray
    """Where documents start, counted from the first of these tokens."""


class WindowPacker:
    """[CLS] + (window_tokens - 2) tokens + [SEP], with a [SEP] between documents too.

    Tokens that do not fill the last window of a shard are left out and counted.
    """

    def __init__(self, tokens: TokenizerFacts, window_tokens: int) -> None:
        assert tokens.start is not None
        assert tokens.separator is not None
        self._start, self._separator = tokens.start, tokens.separator
        self._room = window_tokens - 2
        self._held = np.empty(0, dtype=np.int64)
        self._begins = np.empty(0, dtype=np.int64)
        self._is_first = True

    @property
    def num_held(self) -> int:
        return len(self._held)

    def add(self, encoded: EncodedChunk, continues_previous: bool) -> PackedTokens:
        """`continues_previous`: the first document here continues one that already has tokens."""
        self._append(encoded, continues_previous)
        num_windows = len(self._held) // self._room
        used = num_windows * self._room
        windows = np.empty((num_windows, self._room + 2), dtype=np.int64)
        windows[:, 0], windows[:, -1] = self._start, self._separator
        windows[:, 1:-1] = self._held[:used].reshape(num_windows, self._room)
        begins = self._begins[self._begins < used]
        # Each window up to a token's own puts one [CLS] before it; each earlier one, a [SEP].
        starts = begins + 2 * (begins // self._room) + 1
        self._held = self._held[used:]
        self._begins = self._begins[self._begins >= used] - used
        return PackedTokens(windows.reshape(-1), None, starts)

    def _append(self, encoded: EncodedChunk, continues_previous: bool) -> None:
        parts = [self._held]
        begins = []
        length = len(self._held)
        ends = np.cumsum(encoded.lengths)
        for number, end in enumerate(ends.tolist()):
            ids = encoded.tokens[end - encoded.lengths[number] : end].astype(np.int64)
            if len(ids) == 0:
                continue
            if not (continues_previous and number == 0):
                if not self._is_first:
                    parts.append(np.array([self._separator], dtype=np.int64))
                    length += 1
                begins.append(length)
            self._is_first = False
            parts.append(ids)
            length += len(ids)
        self._held = np.concatenate(parts)
        self._begins = np.append(self._begins, np.array(begins, dtype=np.int64))
