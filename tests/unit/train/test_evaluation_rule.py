"""Which sequences an evaluation takes is written with each checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from headway.state.checkpoints import find_checkpoint
from headway.state.run_directory import RunDirectory
from headway.train.evaluate import sample_of
from support.little import Little


@pytest.mark.parametrize(
    ("sequences", "sizes", "sample"),
    [
        (512, [100, 600], "512 sequences drawn by seed 3"),
        (64, [100, 600], "64 sequences drawn by seed 3"),
        (512, [100, 512], "all"),
        ("all", [100, 600], "all"),
        (512, [], "all"),
    ],
)
def test_what_is_evaluated_in_words(sequences: Any, sizes: list[int], sample: str) -> None:
    assert sample_of(3, sequences, sizes) == sample


def test_a_checkpoint_knows_its_sample(directory: RunDirectory) -> None:
    little = Little(directory, sample="512 sequences drawn by seed 3")
    little.begin()
    little.advance(1)
    little.save()
    assert find_checkpoint(directory)[1].scalars["evaluation"] == "512 sequences drawn by seed 3"
