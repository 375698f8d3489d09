"""Rows of token ids that were made for a masked model, as plain text in ids: what was masked is put
back, and what the packer adds itself is taken off. BERT's files have such rows: [CLS] A [SEP] B
[SEP], then padding; [MASK] and random ids where the model is to predict; and beside each row the
positions and the true ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.data.prepare.columns import BadRecord, column_of
from headway.data.prepare.recipe import TokenizerFacts
from headway.spec.data_config import UnmaskConfig


class MaskedRows:
    def __init__(self, tokens: TokenizerFacts, unmask: UnmaskConfig | None) -> None:
        self._tokens = tokens
        self._unmask = unmask
        self._mask_id = tokens.special_ids.mask

    def unmasked(self, ids: np.ndarray, record: Any) -> np.ndarray:
        """The row with its true ids. Without `unmask`, as it is."""
        if self._unmask is None:
            return ids
        positions = np.asarray(column_of(record, self._unmask.positions))
        true_ids = np.asarray(column_of(record, self._unmask.ids))
        for name, values in (
            (self._unmask.positions, positions),
            (self._unmask.ids, true_ids),
        ):
            if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
                raise BadRecord("not token ids", f"`{name}` must be a list of integers")
        if len(positions) != len(true_ids):
            raise BadRecord(
                "positions of another length", f"{len(positions)} for {len(true_ids)} ids"
            )
        # Zero after the last one. No row has a token to predict there: it begins with [CLS].
        used = positions != 0
        positions, true_ids = positions[used].astype(np.int64), true_ids[used].astype(np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= len(ids)):
            bad = int(positions.min() if positions.min() < 0 else positions.max())
            raise BadRecord("position outside the row", f"{bad}; the row has {len(ids)} tokens")
        if true_ids.size and (true_ids.min() < 0 or true_ids.max() >= self._tokens.vocab_size):
            bad = int(true_ids.min() if true_ids.min() < 0 else true_ids.max())
            raise BadRecord(
                "id outside the vocabulary",
                f"{bad}; the tokenizer has {self._tokens.vocab_size} tokens",
            )
        made = ids.copy()
        made[positions] = true_ids
        if left := self.num_masked(made):
            raise BadRecord(
                "still masked", f"{left} [MASK] at positions that `unmask` does not name"
            )
        return made

    def num_masked(self, ids: np.ndarray) -> int:
        return int(np.count_nonzero(ids == self._mask_id)) if self._mask_id is not None else 0

    def text_of(self, ids: np.ndarray) -> np.ndarray:
        """A whole row without [CLS], padding and the last [SEP]; a [SEP] between its pieces stays,
        for the packer puts the same between documents."""
        tokens = self._tokens
        begin, end = 0, len(ids)
        # Padding is whatever special token the row ends with; [UNK] is text.
        not_padding = (tokens.separator, tokens.start, tokens.unknown)
        if end and int(ids[-1]) in tokens.special_ids.special and int(ids[-1]) not in not_padding:
            differs = np.flatnonzero(ids != ids[-1])
            end = int(differs[-1]) + 1 if len(differs) else 0
        while end and ids[end - 1] == tokens.separator:
            end -= 1
        while begin < end and ids[begin] in (tokens.start, tokens.separator):
            begin += 1
        row = ids[begin:end]
        is_separator = row == tokens.separator
        # An empty piece is no document.
        return row[~(is_separator & np.roll(is_separator, 1))] if len(row) else row
