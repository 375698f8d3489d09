"""From (seed, step) to the micro-batches that a worker computes. Any step can be asked for.

While a step computes, the rows of the next one are prefetched: read and masked in a background
thread. That changes when they are made, never what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np
import torch
import xxhash

from headway.clock import Clock
from headway.data.masking import mask_tokens
from headway.data.reading.compatibility import require_fit
from headway.data.reading.draw_ahead import DrawAheadOrder
from headway.data.reading.growing_set import GrowingSet
from headway.data.reading.look_ahead import BatchShare
from headway.data.reading.sample_set import SampleSet, open_set
from headway.data.reading.token_set import ReadOptions
from headway.plan.batch_division import MicroBatchShare, micro_batch_rows, num_micro_batches
from headway.spec.resolve import Resolved
from headway.state.store import Store
from headway.train.batches import IGNORED, Batch
from headway.train.device import copied_to

PORTION_TOKENS = 2**20
"""Tokens of an evaluation that are read at once: a whole set need not fit into memory."""
SAY_SECONDS = 60.0
"""Between two lines in the log while data is waited for."""
CLOSE_SECONDS = 5.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class Masking:
    """How a masked objective hides tokens."""

    probability: float
    mask_id: int
    special_ids: tuple[int, ...]
    vocab_size: int


@dataclass(frozen=True)
class PreparedRows:
    """Rows of a share, before they are tensors: both int64 (rows, length)."""

    inputs: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class PrefetchedStep:
    """The rows of a step, being prepared in the background."""

    step: int
    share: MicroBatchShare
    rows: Future[PreparedRows]


class Prefetcher:
    """One background thread. It starts with the first task, and never keeps the process alive."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        """The task's result; an error is raised where the result is asked for."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="prefetch", daemon=True)
            self._thread.start()
        future: Future[Result] = Future()
        self._tasks.put((future, task))
        return future

    def close(self) -> None:
        self._tasks.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (queued := self._tasks.get()) is not None:
            future, task = queued
            try:
                future.set_result(task())
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                future.set_exception(error)
            del queued, future, task  # a batch is large, and the next task may be long in coming


def open_feed(
    resolved: Resolved,
    location: str,
    device: torch.device,
    reading: ReadOptions,
    log: Callable[[str], None] = lambda line: None,
) -> Feed:
    """The feed of one of the run's sets. `log`: gets a line now and then while it waits for data
    that is being prepared."""
    run = resolved.run
    return Feed(
        open_set(Store(location), reading),
        sequence_length=run.data.sequence_length,
        global_batch=resolved.global_batch,
        micro=resolved.micro,
        seed=run.seed,
        device=device,
        objective=run.objective.type,
        masking=run.objective.mask_probability if run.objective.type == "masked" else None,
        clock=reading.clock,
        local_workers=reading.local_workers,
        log=log,
    )


def micro_batch_seed(seed: int, step: int, index: int) -> int:
    """Key of the randomness of one micro-batch, 63 bits."""
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
        local_workers: int = 1,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.set = samples
        self.num_workers = 1
        """Number of workers that share a global batch; `local_workers` of them on this machine."""
        self._local_workers = local_workers
        self._log = log
        self.sequence_length = sequence_length
        self.clock = clock
        self._prepared_at = -math.inf
        began = clock.monotonic()
        self._wait_for(1)
        require_fit(self.set, objective, sequence_length)
        self.global_batch = global_batch
        self.micro = micro
        self.seed = seed
        self.device = device
        self.num_samples = self.set.num_samples(sequence_length)
        order = self.set.order(seed, sequence_length)
        # A set that grows cannot be drawn ahead: its next samples may not be prepared yet.
        self.order = order if self.set.in_sequence else DrawAheadOrder(order)
        self.masking = _masking(self.set, masking)
        self.waited_seconds = 0.0
        """Seconds that training has waited for batches since the feed was opened."""
        self.unprepared_seconds = self._unprepared_since(began)
        """Seconds that it has waited for samples which were not prepared yet. Those until the first
        one was are the only ones that are not in `waited_seconds`."""
        self._prefetcher = Prefetcher()
        self._prefetched: PrefetchedStep | None = None

    @property
    def epoch_samples(self) -> int | None:
        """Samples of one epoch, if known when the run started."""
        return None if self.set.in_sequence else self.num_samples

    @property
    def num_micro_batches(self) -> int:
        return num_micro_batches(self.global_batch, self.micro)

    def prefetch(self, step: int, share: MicroBatchShare) -> None:
        """Starts to prepare the rows of a step. Not behind those of a step that was prefetched
        before a worker was lost: they may wait for data which is not needed yet."""
        before, self._prefetched = self._prefetched, None
        if before is not None and not before.rows.done():
            if (before.step, before.share) == (step, share):
                self._prefetched = before
            return
        self._prefetched = PrefetchedStep(
            step, share, self._prefetcher.submit(partial(self._read_next, step, share))
        )

    def step(self, step: int, share: MicroBatchShare) -> Iterator[Batch]:
        """The micro-batches of `share` in the global batch of `step`, then its empty ones."""
        # An earlier step, for activations or because it is computed again, leaves the prefetched
        # one.
        is_earlier = self._prefetched is not None and step < self._prefetched.step
        began = self.clock.monotonic()
        rows = self._read_step(step, share) if is_earlier else self._take_prefetched(step, share)
        self.waited_seconds += self.clock.monotonic() - began
        self.unprepared_seconds += self._unprepared_since(began)
        if not is_earlier:
            self.prefetch(step + 1, share)
        yield from self._micro_batches(rows, share, step)

    def fixed(self, num_rows: int, share: MicroBatchShare) -> Iterator[Batch]:
        """The micro-batches of `share` in `num_rows` samples: the whole set in its own order, or
        the first ones in the order that the seed gives. A set's own first ones are of its first
        documents."""
        prefetched: Future[PreparedRows] | None = None
        portions = _portions(share, max(1, PORTION_TOKENS // (self.micro * self.sequence_length)))
        for number, portion in enumerate(portions):
            began = self.clock.monotonic()
            rows = prefetched.result() if prefetched else self._read_fixed(num_rows, portion)
            self.waited_seconds += self.clock.monotonic() - began
            if number + 1 < len(portions):
                read_next = partial(self._read_fixed, num_rows, portions[number + 1])
                prefetched = self._prefetcher.submit(read_next)
            yield from self._micro_batches(rows, portion, 0)

    def close(self) -> None:
        self.set.close()  # first: the thread may be waiting for it
        self._prefetcher.close()

    def _take_prefetched(self, step: int, share: MicroBatchShare) -> PreparedRows:
        """The prefetched rows, if they are those of this step and share; else they are read now."""
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and (prefetched.step, prefetched.share) == (step, share):
            return prefetched.rows.result()
        return self._read_next(step, share)

    def _read_next(self, step: int, share: MicroBatchShare) -> PreparedRows:
        first, count = _rows(share, self.global_batch, self.micro)
        of_machine = min(1.0, self._local_workers / self.num_workers)
        ahead = BatchShare(self.global_batch, first, count, of_machine)
        self.set.prefetch(self.seed, self.sequence_length, step, ahead)
        return self._read_step(step, share)

    def _read_step(self, step: int, share: MicroBatchShare) -> PreparedRows:
        # For the whole batch: no worker waits in a collective for one that still waits for data.
        self._wait_for((step + 1) * self.global_batch)
        first, count = _rows(share, self.global_batch, self.micro)
        epochs, samples = self.order.at(step * self.global_batch + first, count)
        return self._read(epochs, samples)

    def _wait_for(self, end: int) -> None:
        """Waits for the positions before `end`, which may not be prepared yet; the log says so."""
        said, has_waited = self.clock.monotonic(), False

        def show(growing: GrowingSet) -> None:
            nonlocal said, has_waited
            has_waited = True
            if self.clock.monotonic() - said >= SAY_SECONDS:
                said = self.clock.monotonic()
                done, units = growing.progress
                self._log(
                    f"waiting for data: {done} of {units} units of the sources of "
                    f"{growing.location} are prepared"
                )

        self.set.wait_for(end, self.sequence_length, show)
        if has_waited:
            self._prepared_at = self.clock.monotonic()

    def _unprepared_since(self, began: float) -> float:
        """Of a wait that has just ended: the part until its samples were prepared. What remains is
        reading them."""
        return max(0.0, self._prepared_at - began)

    def _read_fixed(self, num_rows: int, share: MicroBatchShare) -> PreparedRows:
        first, count = _rows(share, num_rows, self.micro)
        if num_rows < self.num_samples:
            _, samples = self.order.at(first, count)
        else:
            samples = np.arange(first, first + count, dtype=np.int64)
        return self._read(np.zeros_like(samples), samples)

    def _micro_batches(
        self, prepared: PreparedRows, share: MicroBatchShare, step: int
    ) -> Iterator[Batch]:
        for index in range(share.num_passes):
            rows = slice(index * self.micro, (index + 1) * self.micro)
            seed = micro_batch_seed(self.seed, step, share.first + index)
            yield self._batch(prepared.inputs[rows], prepared.targets[rows], seed)

    def _batch(self, inputs: np.ndarray, targets: np.ndarray, seed: int) -> Batch:
        real = len(inputs)
        if real < self.micro:
            # Shapes never change, so nothing recompiles and dropout draws the same numbers.
            lacking = ((0, self.micro - real), (0, 0))
            inputs = np.pad(inputs, lacking)
            targets = np.pad(targets, lacking, constant_values=IGNORED)
        return Batch(
            inputs=copied_to(self.device, inputs),
            targets=copied_to(self.device, targets),
            is_real=torch.arange(self.micro, device=self.device) < real,
            seed=seed,
        )

    def _read(self, epochs: np.ndarray, samples: np.ndarray) -> PreparedRows:
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
            return PreparedRows(inputs, targets)
        if rows.tokens.shape[1] == self.sequence_length:
            # A windowed set without masking (a user's objective): inputs are their own targets.
            return PreparedRows(rows.tokens, rows.tokens.copy())
        targets = rows.tokens[:, 1:].copy()
        if rows.mask is not None:
            targets[~rows.mask[:, 1:]] = IGNORED
        return PreparedRows(np.ascontiguousarray(rows.tokens[:, :-1]), targets)


def _portions(share: MicroBatchShare, num_micro_batches: int) -> list[MicroBatchShare]:
    """The share in portions of so many micro-batches, in order; the empty micro-batches come
    last."""
    portions = []
    for begin in range(0, share.num_passes, num_micro_batches):
        passes = min(num_micro_batches, share.num_passes - begin)
        count = max(0, min(passes, share.count - begin))
        portions.append(
            MicroBatchShare(first=share.first + begin, count=count, padded=passes - count)
        )
    return portions


def _rows(share: MicroBatchShare, total_rows: int, micro: int) -> tuple[int, int]:
    """First row and number of real rows of a share."""
    if share.count == 0:
        return 0, 0
    first, _ = micro_batch_rows(share.first, total_rows, micro)
    last, real = micro_batch_rows(share.first + share.count - 1, total_rows, micro)
    return first, last + real - first


def _masking(samples: SampleSet, probability: float | None) -> Masking | None:
    if probability is None:
        return None
    ids = samples.special_ids
    assert ids.mask is not None, "preparation gives windows a mask token"
    return Masking(probability, ids.mask, ids.special, samples.vocab_size)
