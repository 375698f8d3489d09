from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headway.data.random_set import write_random_set
from headway.data.reading.compatibility import require_fit
from headway.data.reading.sample_set import open_set
from headway.state.store import Store


@pytest.mark.parametrize(("objective", "is_windowed"), [("causal", False), ("masked", True)])
@pytest.mark.parametrize("vocab_size", [128, 151_936])
def test_a_run_can_train_on_it(
    tmp_path: Path, objective: str, is_windowed: bool, vocab_size: int
) -> None:
    write_random_set(
        tmp_path / "set",
        vocab_size=vocab_size,
        num_sequences=6,
        sequence_length=32,
        is_windowed=is_windowed,
    )
    with closing(open_set(Store(tmp_path / "set"))) as samples:
        require_fit(samples, objective, 32)
        assert samples.num_samples(32) == 6
        assert samples.vocab_size == vocab_size
        assert (samples.special_ids.mask is not None) == is_windowed
