"""What training needs of a set of samples, and opening one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from headway.data.order import Window
from headway.data.reading.growing import GrowingSet
from headway.data.reading.mixture import MixtureSet, is_mixture
from headway.data.reading.tokenset import Reading, Rows, TokenSet
from headway.data.shards import MANIFEST, Layout, SpecialIds
from headway.state.store import Store


class SampleOrder(Protocol):
    """Which sample stands at which position, epoch after epoch, without end."""

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, samples), both int64, of the positions first .. first + count - 1."""
        ...

    def window_at(self, position: int) -> Window: ...


class SampleSet(Protocol):
    """Samples of any length L out of one prepared set or of several."""

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        ...

    @property
    def digest(self) -> str:
        """Its identity: of the content, not of the place."""
        ...

    @property
    def layout(self) -> Layout: ...

    @property
    def window_tokens(self) -> int | None:
        """The only length there is; None for a stream, which has any."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> SpecialIds: ...

    @property
    def tokenizer_digest(self) -> str: ...

    @property
    def tokenizer_folder(self) -> Path:
        """On this machine, wherever the set is."""
        ...

    @property
    def in_sequence(self) -> bool:
        """Whether it may have been opened before it was finished: then nobody can tell from the
        beginning how many samples an epoch has."""
        ...

    def num_samples(self, sequence_length: int) -> int:
        """Positions of one epoch; of a set that is still being prepared, those there are."""
        ...

    def wait_for(self, end: int, sequence_length: int) -> None:
        """Until the positions before `end` can be read."""
        ...

    def tail_tokens(self, sequence_length: int) -> int:
        """Tokens that no sample of this length holds."""
        ...

    def order(self, seed: int, sequence_length: int) -> SampleOrder: ...

    def read(self, samples: np.ndarray, sequence_length: int) -> Rows:
        """By any thread. Waits for what is not at hand."""
        ...

    def prefetch(self, seed: int, sequence_length: int, first: int, count: int) -> None:
        """Reading has come to these positions of `order(seed, L)`: what they need, and the mixing
        window after them, is fetched in the background and kept. Returns at once."""
        ...

    def close(self) -> None: ...


def open_set(location: str | Path, reading: Reading | None = None) -> SampleSet:
    """A folder or a URL. Kinds of sets are told apart here, by the file that each has."""
    if is_mixture(location, reading.clock if reading else None):
        return MixtureSet.open(location, reading)
    if Store(location).size(MANIFEST) is None and (growing := GrowingSet.open(location, reading)):
        return growing
    return TokenSet.open(location, reading)
