"""The interface through which training reads a set of samples, and how to open one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from headway.data.reading.growing_set import Show, open_one
from headway.data.reading.look_ahead import BatchShare
from headway.data.reading.mixture import MixtureSet, is_mixture
from headway.data.reading.token_set import ReadOptions, TokenRows
from headway.data.set_format import Layout, SpecialIds
from headway.state.store import Store


class SampleOrder(Protocol):
    """Which sample is at which position, epoch after epoch, without end."""

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, samples), both int64, at the positions first .. first + count - 1."""
        ...


class SampleSet(Protocol):
    """Samples of any length L from one prepared set or several."""

    @property
    def location(self) -> str:
        """The location, for messages."""
        ...

    @property
    def digest(self) -> str:
        """The identity of the content, wherever it is stored."""
        ...

    @property
    def layout(self) -> Layout: ...

    @property
    def window_tokens(self) -> int | None:
        """The only length available; None for a stream, which has any length."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def tokenizer_digest(self) -> str: ...

    @property
    def special_ids(self) -> SpecialIds: ...

    @property
    def tokenizer_folder(self) -> Path:
        """The tokenizer's folder on this machine, wherever the set is."""
        ...

    @property
    def in_sequence(self) -> bool:
        """Whether it can be opened before it is finished: the number of samples in an epoch is then
        not known from the start."""
        ...

    @property
    def is_growing(self) -> bool:
        """Whether it was still being prepared when it was last looked at."""
        ...

    def num_samples(self, sequence_length: int) -> int:
        """Positions of one epoch; for a set that is still being prepared, those available now."""
        ...

    def tail_tokens(self, sequence_length: int) -> int:
        """Number of tokens that are in no sample of this length."""
        ...

    def order(self, seed: int, sequence_length: int) -> SampleOrder: ...

    def wait_for(self, end: int, sequence_length: int, show: Show = lambda growing: None) -> None:
        """Returns when the positions before `end` can be read."""
        ...

    def read(self, samples: np.ndarray, sequence_length: int) -> TokenRows:
        """Thread-safe. Waits for samples that are not available yet."""
        ...

    def prefetch(self, seed: int, sequence_length: int, step: int, share: BatchShare) -> None:
        """Announces that reading has reached this step of `order(seed, L)`: what the worker needs
        next is fetched in the background and kept. Returns at once."""
        ...

    def close(self) -> None: ...


def open_set(store: Store, reading: ReadOptions | None = None) -> SampleSet:
    """Opens a mixture, a set being prepared, or a prepared one, as its files show."""
    if is_mixture(store, reading.clock if reading else None):
        return MixtureSet.open(store, reading)
    return open_one(store, reading)
