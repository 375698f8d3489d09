"""HDF5 files as NVIDIA's scripts for BERT make them, of known documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

PAD, CLS, SEP, MASK = 0, 2, 3, 4
"""Ids of a tokenizer that is trained here for a masked model."""
UNMASK = {"positions": "masked_lm_positions", "ids": "masked_lm_ids"}


def write_bert_file(
    path: Path,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    length: int,
    vocab: int,
    predictions: int = 20,
    seed: int = 1,
) -> None:
    """Each pair is a row: [CLS] A [SEP] B [SEP], then padding; 15 % of it masked as BERT's is."""
    draw = np.random.default_rng(seed)
    rows = np.full((len(pairs), length), PAD, np.int32)
    segments = np.zeros((len(pairs), length), np.int8)
    positions = np.zeros((len(pairs), predictions), np.int32)
    true_ids = np.zeros((len(pairs), predictions), np.int32)
    for number, (one, other) in enumerate(pairs):
        row = [CLS, *one, SEP, *other, SEP]
        assert len(row) <= length
        rows[number, : len(row)] = row
        segments[number, len(one) + 2 : len(row)] = 1
        places = [place for place, token in enumerate(row) if token not in (CLS, SEP)]
        count = min(predictions, max(1, round(0.15 * len(row))))
        chosen = np.sort(draw.choice(places, count, replace=False))
        positions[number, :count] = chosen
        true_ids[number, :count] = rows[number, chosen]
        for place in chosen:
            kind = draw.random()
            if kind < 0.8:
                rows[number, place] = MASK
            elif kind < 0.9:
                rows[number, place] = draw.integers(MASK + 1, vocab)
    with h5py.File(path, "w") as file:
        for name, values in {
            "input_ids": rows,
            "input_mask": (rows != PAD).astype(np.int8),
            "segment_ids": segments,
            "masked_lm_positions": positions,
            "masked_lm_ids": true_ids,
            "next_sentence_labels": np.zeros(len(pairs), np.int8),
        }.items():
            file.create_dataset(name, data=values, compression="gzip")
