"""From (seed, step) to the slices a worker computes. Any step can be asked for.

While a step computes, the rows of the next one are read and masked in the background. It changes
when they are made, never what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import xxhash

from headway.clock import Clock
from headway.data.masking import mask_tokens
from headway.data.reading.drawn import DrawnAhead
from headway.data.reading.fit import require_fit
from headway.data.reading.sets import SampleSet, open_set
from headway.data.reading.tokenset import Reading
from headway.plan.batch import Share, num_slices, rows_of_slice
from headway.spec.resolve import Resolved
from headway.train.ahead import Ahead
from headway.train.batches import IGNORED, Batch

PORTION_TOKENS = 2**20
"""Of a fixed set that are read at once: a whole one need not fit into memory."""


@dataclass(frozen=True)
class Masking:
    """How a masked objective hides tokens."""

    probability: float
    mask_id: int
    special_ids: tuple[int, ...]
    vocab_size: int


@dataclass(frozen=True)
class Made:
    """Rows of a share, before they are tensors: both int64 (rows, length)."""

    inputs: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class Upcoming:
    """What is being made in the background."""

    step: int
    share: Share
    made: Future[Made]


def open_feed(resolved: Resolved, location: str, device: torch.device, reading: Reading) -> Feed:
    """The feed of one of the run's sets."""
    run = resolved.run
    return Feed(
        open_set(location, reading),
        sequence_length=run.data.sequence_length,
        global_batch=resolved.global_batch,
        micro=resolved.micro,
        seed=run.seed,
        device=device,
        objective=run.objective.type,
        masking=run.objective.mask_probability if run.objective.type == "masked" else None,
        clock=reading.clock,
    )


def slice_seed(seed: int, step: int, index: int) -> int:
    """Key of one slice's randomness, 63 bits."""
    return xxhash.xxh3_64_intdigest(f"{seed}/{step}/{index}".encode()) >> 1


class Feed:
    """Batches of one set. `global_batch` rows from position step * global_batch on make step."""

    def __init__(
        self,
        samples: SampleSet,
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
        self.set = samples
        require_fit(self.set, objective, sequence_length)
        self.sequence_length = sequence_length
        self.global_batch = global_batch
        self.micro = micro
        self.seed = seed
        self.device = device
        self.num_samples = self.set.num_samples(sequence_length)
        order = self.set.order(seed, sequence_length)
        # Of a set that grows, what lies ahead may not be there yet.
        self.order = order if self.set.in_sequence else DrawnAhead(order)
        self.masking = _masking(self.set, masking)
        self.clock = clock
        self.waited_seconds = 0.0
        """Spent on waiting for batches, and so not on computing them, since it was opened."""
        self._ahead = Ahead()
        self._upcoming: Upcoming | None = None

    @property
    def epoch_samples(self) -> int | None:
        """Samples of one epoch, where that was known when the run began."""
        return None if self.set.in_sequence else self.num_samples

    @property
    def num_slices(self) -> int:
        return num_slices(self.global_batch, self.micro)

    def expect(self, step: int, share: Share) -> None:
        """Begins to make what will be asked for first, while there is something else to do. Not
        behind what was expected before a loss: that may wait for data which is not needed yet."""
        before, self._upcoming = self._upcoming, None
        if before is not None and not before.made.done():
            if (before.step, before.share) == (step, share):
                self._upcoming = before
            return
        self._upcoming = Upcoming(
            step, share, self._ahead.submit(partial(self._read_next, step, share))
        )

    def step(self, step: int, share: Share) -> Iterator[Batch]:
        """The slices of `share` in the global batch of `step`, then its empty ones."""
        # A look back, for activations or for a step that is done again, leaves what is ready.
        looks_back = self._upcoming is not None and step < self._upcoming.step
        began = self.clock.monotonic()
        made = self._read_step(step, share) if looks_back else self._expected(step, share)
        self.waited_seconds += self.clock.monotonic() - began
        if not looks_back:
            self.expect(step + 1, share)
        yield from self._slices(made, share, step)

    def fixed(self, num_rows: int, share: Share) -> Iterator[Batch]:
        """The slices of `share` in `num_rows` samples: the whole set in its own order, or the first
        ones in the order that the seed gives. A set's own first ones are of its first documents."""
        upcoming: Future[Made] | None = None
        portions = _portions(share, max(1, PORTION_TOKENS // (self.micro * self.sequence_length)))
        for number, portion in enumerate(portions):
            began = self.clock.monotonic()
            made = upcoming.result() if upcoming else self._read_fixed(num_rows, portion)
            self.waited_seconds += self.clock.monotonic() - began
            if number + 1 < len(portions):
                read_next = partial(self._read_fixed, num_rows, portions[number + 1])
                upcoming = self._ahead.submit(read_next)
            yield from self._slices(made, portion, 0)

    def close(self) -> None:
        self.set.close()  # first: the thread may be waiting for it
        self._ahead.close()

    def _expected(self, step: int, share: Share) -> Made:
        """As made beforehand, if this is what was expected."""
        upcoming, self._upcoming = self._upcoming, None
        if upcoming is not None and (upcoming.step, upcoming.share) == (step, share):
            return upcoming.made.result()
        return self._read_next(step, share)

    def _read_next(self, step: int, share: Share) -> Made:
        self._prefetch(step)
        return self._read_step(step, share)

    def _prefetch(self, step: int) -> None:
        first = step * self.global_batch
        self.set.prefetch(self.seed, self.sequence_length, first, self.global_batch)

    def _read_step(self, step: int, share: Share) -> Made:
        # For the whole batch: no worker waits in a collective for one that still waits for data.
        self.set.wait_for((step + 1) * self.global_batch, self.sequence_length)
        first, count = _rows(share, self.global_batch, self.micro)
        epochs, samples = self.order.at(step * self.global_batch + first, count)
        return self._read(epochs, samples)

    def _read_fixed(self, num_rows: int, share: Share) -> Made:
        first, count = _rows(share, num_rows, self.micro)
        if num_rows < self.num_samples:
            _, samples = self.order.at(first, count)
        else:
            samples = np.arange(first, first + count, dtype=np.int64)
        return self._read(np.zeros_like(samples), samples)

    def _slices(self, made: Made, share: Share, step: int) -> Iterator[Batch]:
        for index in range(share.passes):
            rows = slice(index * self.micro, (index + 1) * self.micro)
            seed = slice_seed(self.seed, step, share.first + index)
            yield self._batch(made.inputs[rows], made.targets[rows], seed)

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

    def _read(self, epochs: np.ndarray, samples: np.ndarray) -> Made:
        rows = self.set.read(samples, self.sequence_length)
        if self.masking is not None:
            how = self.masking
            inputs, targets = mask_tokens(
                rows.tokens,
                samples,
                epochs,
                self.seed,
                mask_id=how.mask_id,
                vocab_size=how.vocab_size,
                special_ids=how.special_ids,
                probability=how.probability,
            )
            return Made(inputs, targets)
        if rows.tokens.shape[1] == self.sequence_length:
            # A windowed set without masking (an own objective): inputs are their own targets.
            return Made(rows.tokens, rows.tokens.copy())
        targets = rows.tokens[:, 1:].copy()
        if rows.mask is not None:
            targets[~rows.mask[:, 1:]] = IGNORED
        return Made(np.ascontiguousarray(rows.tokens[:, :-1]), targets)


def _portions(share: Share, num_slices: int) -> list[Share]:
    """The share in pieces of so many slices, in order; the empty slices come last."""
    portions = []
    for begin in range(0, share.passes, num_slices):
        passes = min(num_slices, share.passes - begin)
        count = max(0, min(passes, share.count - begin))
        portions.append(Share(first=share.first + begin, count=count, padded=passes - count))
    return portions


def _rows(share: Share, total_rows: int, micro: int) -> tuple[int, int]:
    """First row and number of real rows of a share."""
    if share.count == 0:
        return 0, 0
    first, _ = rows_of_slice(share.first, total_rows, micro)
    last, real = rows_of_slice(share.first + share.count - 1, total_rows, micro)
    return first, last + real - first


def _masking(samples: SampleSet, probability: float | None) -> Masking | None:
    if probability is None:
        return None
    ids = samples.special_ids
    assert ids.mask is not None, "preparation gives windows a mask token"
    return Masking(probability, ids.mask, ids.special, samples.vocab_size)
