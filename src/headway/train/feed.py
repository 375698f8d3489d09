"""From (seed, step) to the slices a worker computes. No state: any step can be asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xxhash

from headway.clock import Clock
from headway.data.fit import require_fit
from headway.data.masking import mask_tokens
from headway.data.shards import Rows, TokenSet
from headway.plan.batch import Share, num_slices, rows_of_slice
from headway.spec.resolve import Resolved
from headway.train.batches import IGNORED, Batch


@dataclass(frozen=True)
class Masking:
    """How a masked objective hides tokens."""

    probability: float
    mask_id: int
    special_ids: tuple[int, ...]
    vocab_size: int


def open_feed(resolved: Resolved, folder: Path, device: torch.device, clock: Clock) -> Feed:
    """The feed of one of the run's sets."""
    run = resolved.run
    return Feed(
        folder,
        sequence_length=run.data.sequence_length,
        global_batch=resolved.global_batch,
        micro=resolved.micro,
        seed=run.seed,
        device=device,
        objective=run.objective.type,
        masking=run.objective.mask_probability if run.objective.type == "masked" else None,
        clock=clock,
    )


def slice_seed(seed: int, step: int, index: int) -> int:
    """Key of one slice's randomness, 63 bits."""
    return xxhash.xxh3_64_intdigest(f"{seed}/{step}/{index}".encode()) >> 1


class Feed:
    """Batches of one set. `global_batch` rows from position step * global_batch on make step."""

    def __init__(
        self,
        folder: Path,
        *,
        sequence_length: int,
        global_batch: int,
        micro: int,
        seed: int,
        device: torch.device,
        objective: str | None,
        masking: float | None,
        clock: Clock,
    ) -> None:
        self.set = TokenSet.open(folder)
        require_fit(self.set, objective, sequence_length)
        self.sequence_length = sequence_length
        self.global_batch = global_batch
        self.micro = micro
        self.seed = seed
        self.device = device
        self.num_samples = self.set.num_samples(sequence_length)
        self.order = self.set.order(seed, sequence_length)
        self.masking = _masking(self.set, masking)
        self.clock = clock
        self.waited_seconds = 0.0
        """Spent on making batches, and so not on computing them, since the feed was opened."""

    @property
    def num_slices(self) -> int:
        return num_slices(self.global_batch, self.micro)

    def step(self, step: int, share: Share) -> Iterator[Batch]:
        """The slices of `share` in the global batch of `step`, then its empty ones."""
        first, count = _rows(share, self.global_batch, self.micro)
        epochs, samples = self.order.at(step * self.global_batch + first, count)
        return self._slices(epochs, samples, share, step)

    def fixed(self, num_rows: int, share: Share) -> Iterator[Batch]:
        """The slices of `share` in the set's first `num_rows` samples, in their own order."""
        first, count = _rows(share, num_rows, self.micro)
        samples = np.arange(first, first + count, dtype=np.int64)
        return self._slices(np.zeros_like(samples), samples, share, 0)

    def _slices(
        self, epochs: np.ndarray, samples: np.ndarray, share: Share, step: int
    ) -> Iterator[Batch]:
        began = self.clock.monotonic()
        inputs, targets = self._inputs_and_targets(epochs, samples)
        self.waited_seconds += self.clock.monotonic() - began
        for index in range(share.count + share.padded):
            rows = slice(index * self.micro, (index + 1) * self.micro)
            yield self._batch(
                inputs[rows], targets[rows], slice_seed(self.seed, step, share.first + index)
            )

    def _batch(self, inputs: np.ndarray, targets: np.ndarray, seed: int) -> Batch:
        real = len(inputs)
        if real < self.micro:
            # Shapes never change, so nothing recompiles and dropout draws the same numbers.
            lacking = ((0, self.micro - real), (0, 0))
            inputs = np.pad(inputs, lacking)
            targets = np.pad(targets, lacking, constant_values=IGNORED)
        return Batch(
            inputs=torch.from_numpy(inputs).to(self.device, non_blocking=True),
            targets=torch.from_numpy(targets).to(self.device, non_blocking=True),
            is_real=torch.arange(self.micro, device=self.device) < real,
            seed=seed,
        )

    def _inputs_and_targets(
        self, epochs: np.ndarray, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rows: Rows = self.set.read(samples, self.sequence_length)
        if self.masking is not None:
            how = self.masking
            return mask_tokens(
                rows.tokens,
                samples,
                epochs,
                self.seed,
                mask_id=how.mask_id,
                vocab_size=how.vocab_size,
                special_ids=how.special_ids,
                probability=how.probability,
            )
        if rows.tokens.shape[1] == self.sequence_length:
            # A windowed set without masking (an own objective): inputs are their own targets.
            return rows.tokens, rows.tokens.copy()
        targets = rows.tokens[:, 1:].copy()
        if rows.mask is not None:
            targets[~rows.mask[:, 1:]] = IGNORED
        return np.ascontiguousarray(rows.tokens[:, :-1]), targets


def _rows(share: Share, total_rows: int, micro: int) -> tuple[int, int]:
    """First row and number of real rows of a share."""
    if share.count == 0:
        return 0, 0
    first, _ = rows_of_slice(share.first, total_rows, micro)
    last, real = rows_of_slice(share.first + share.count - 1, total_rows, micro)
    return first, last + real - first


def _masking(tokens: TokenSet, probability: float | None) -> Masking | None:
    if probability is None:
        return None
    manifest = tokens.manifest
    assert manifest.special_ids.mask is not None, "preparation gives windows a mask token"
    return Masking(
        probability,
        manifest.special_ids.mask,
        manifest.special_ids.special,
        manifest.vocab_size,
    )
