"""Which sequences an evaluation takes is written with each checkpoint; a change is said once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headway.state.checkpoints import find_checkpoint
from headway.state.run_directory import RunDirectory
from headway.train.evaluate import note_new_sample, sample_of
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


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, "512 sequences drawn by seed 3", 1),  # by a version that took the first sequences
        ({}, "all", 0),
        ({"evaluation": "512 sequences drawn by seed 3"}, "512 sequences drawn by seed 3", 0),
        # Its settings were changed.
        ({"evaluation": "all"}, "512 sequences drawn by seed 3", 0),
    ],
)
def test_a_run_begun_before_says_it_once(
    directory: RunDirectory, before: dict[str, Any], now: str, said: int
) -> None:
    little = Little(directory)
    manifest: Any = SimpleNamespace(step=7, scalars=before)
    note_new_sample(little.journal, manifest, now)
    events = little.events("evaluation_changed")
    assert len(events) == said
    if said:
        assert events[0]["step"] == 7
        assert "cannot be compared" in events[0]["reason"]


def test_a_checkpoint_knows_its_sample(directory: RunDirectory) -> None:
    little = Little(directory, sample="512 sequences drawn by seed 3")
    little.begin()
    little.advance(1)
    little.save()
    assert find_checkpoint(directory)[1].scalars["evaluation"] == "512 sequences drawn by seed 3"
