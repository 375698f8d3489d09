"""Which tokens a masked language model has to predict.

A counter-based hash of (seed, epoch, sample, position) decides, not a stateful generator: a sample
is masked the same way by every worker and in every batch, and differently in every epoch. Like
those of the order, the values are frozen: a resumed run must continue with the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.data.order import derive_keys, mix64

NOT_A_TARGET = -100
"""The target that torch's cross entropy ignores by default."""

_BITS = 53
"""Bits of a draw. Draws are compared as 53-bit integers: exactly what a Python float can hold."""


def mask_tokens(
    tokens: np.ndarray,
    samples: np.ndarray,
    epochs: np.ndarray,
    seed: int,
    *,
    mask_id: int,
    vocab_size: int,
    special_ids: Sequence[int],
    probability: float = 0.15,
) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, targets) for rows of tokens (n, L), as in BERT.

    A fraction `probability` of the non-special tokens is chosen; of these, 80 % become the mask
    token, 10 % a random ordinary token, and 10 % stay. Targets are the true tokens where chosen and
    -100 elsewhere.
    """
    assert tokens.ndim == 2
    assert samples.shape == epochs.shape == tokens.shape[:1]
    special = np.unique(np.array([*special_ids, mask_id], dtype=np.int64))
    num_ordinary = vocab_size - len(special)
    assert num_ordinary > 0, "a vocabulary of special tokens only"

    choose, act, draw = _draws(seed, epochs, samples, tokens.shape[1])
    chosen = (choose < np.uint64(int(probability * 2**_BITS))) & ~np.isin(tokens, special)
    to_mask = chosen & (act < np.uint64(int(0.8 * 2**_BITS)))
    to_random = chosen & ~to_mask & (act < np.uint64(int(0.9 * 2**_BITS)))

    # The r-th ordinary token is r, shifted up by one for each special token at or below it. Special
    # token number k (sorted) has special[k] - k ordinary tokens before it.
    rank = (draw % np.uint64(num_ordinary)).astype(np.int64)
    ordinary = rank + np.searchsorted(special - np.arange(len(special)), rank, side="right")

    inputs = np.where(to_mask, np.int64(mask_id), np.where(to_random, ordinary, tokens))
    targets = np.where(chosen, tokens, np.int64(NOT_A_TARGET))
    return inputs, targets


def _draws(
    seed: int, epochs: np.ndarray, samples: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three independent 53-bit draws for every (epoch, sample, position)."""
    keys = derive_keys("masking/1", seed, count=6)
    # One keyed pass per coordinate, with the key added before mixing, so that no two coordinates
    # are interchangeable.
    rows = mix64(mix64(epochs.astype(np.uint64) + keys[0]) ^ (samples.astype(np.uint64) + keys[1]))
    places = mix64(np.arange(length, dtype=np.uint64) + keys[2])
    state = mix64(rows[:, None] ^ places[None, :])
    shift = np.uint64(64 - _BITS)
    choose, act, draw = (mix64(state + key) >> shift for key in keys[3:])
    return choose, act, draw
