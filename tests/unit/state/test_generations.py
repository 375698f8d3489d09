"""Each start has a number of its own, and whoever is behind is fenced."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.clock import SystemClock
from headway.errors import BadInput, StillRunning
from headway.state.checkpoints import FoundCheckpoint, fenced
from headway.state.generations import (
    Fences,
    GenerationStart,
    begin_generation,
    generations,
    next_generation,
    taken_over_by,
)
from headway.state.run_directory import RunDirectory
from support.fake_s3 import fake_s3


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "it", SystemClock())


def known(*first_steps: int) -> list[GenerationStart]:
    return [
        GenerationStart(generation=number, first_step=step, workers=1, began="")
        for number, step in enumerate(first_steps, start=1)
    ]


def test_numbers_from_one_on(directory: RunDirectory) -> None:
    assert (next_generation(directory), generations(directory)) == (1, [])
    begin_generation(directory, 1, 0, 2, SystemClock().now())
    assert next_generation(directory) == 2
    begin_generation(directory, 2, 300, 3, SystemClock().now())
    assert [(g.generation, g.first_step, g.workers) for g in generations(directory)] == [
        (1, 0, 2),
        (2, 300, 3),
    ]
    assert directory.store.names("generations") == [
        "generations/0000/000001.json",
        "generations/0000/000002.json",
    ]


def test_a_number_is_not_used_again(directory: RunDirectory) -> None:
    for number in (1, 2, 3):
        begin_generation(directory, number, 0, 1, SystemClock().now())
    directory.store.remove("generations/0000/000001.json")
    assert next_generation(directory) == 4
    directory.store.write("generations/notes.txt", b"")
    directory.store.write("generations/notes.json", b"{}")
    assert (next_generation(directory), len(generations(directory))) == (4, 2)


def test_two_starts_cannot_have_the_same_number(directory: RunDirectory) -> None:
    begin_generation(directory, 1, 0, 1, SystemClock().now())
    with pytest.raises(StillRunning, match="generation 1 was started elsewhere at the same time"):
        begin_generation(directory, 1, 300, 1, SystemClock().now())
    assert generations(directory)[0].first_step == 0


def test_a_beginning_whose_answer_was_lost_is_no_other_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    class Standing(SystemClock):
        def now(self) -> float:
            return 1_800_000_000.0

    with fake_s3() as s3:
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        s3.troubles.append("answer lost")
        with pytest.raises(OSError, match="answer"):
            begin_generation(directory, 1, 0, 1, Standing().now())
        begin_generation(directory, 1, 0, 1, Standing().now())
        with pytest.raises(StillRunning):
            begin_generation(directory, 1, 5, 1, Standing().now())


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"version": 2}', b"[]"])
def test_a_damaged_record_is_named(directory: RunDirectory, content: bytes) -> None:
    directory.store.write("generations/000001.json", content)
    with pytest.raises(BadInput, match=r"generations/000001\.json is damaged: "):
        generations(directory)


@pytest.mark.parametrize(
    ("first_steps", "generation", "step", "counts"),
    [
        ((0,), 1, 900, True),
        ((0, 300), 1, 300, True),
        ((0, 300), 1, 301, False),
        ((0, 300), 1, 100, True),
        ((0, 300), 2, 900, True),
        ((0, 300, 400), 2, 400, True),
        ((0, 300, 400), 2, 401, False),
        # The third found the checkpoint at 300 damaged and began at 200: the first's 300 is of a
        # past that was done again.
        ((0, 300, 200), 1, 300, False),
        ((0, 300, 200), 1, 200, True),
        ((0, 300, 200), 3, 300, True),
        # What a fork begins with is of generation 0.
        ((300, 300), 0, 300, True),
        ((300, 400), 0, 301, False),
    ],
)
def test_what_a_generation_wrote_counts_up_to_where_a_later_one_began(
    first_steps: tuple[int, ...], generation: int, step: int, counts: bool
) -> None:
    assert (fenced(FoundCheckpoint(step, generation), known(*first_steps)) is None) == counts


def test_the_reason_names_the_one_that_took_over() -> None:
    assert fenced(FoundCheckpoint(300, 1), known(0, 300, 200)) == (
        "generation 1 wrote it, but generation 3 resumed from step 200 without it"
    )


@given(first_steps=st.lists(st.integers(0, 20), min_size=1, max_size=6), step=st.integers(0, 20))
def test_fencing_is_by_every_later_generation(first_steps: list[int], step: int) -> None:
    for number in range(1, len(first_steps) + 1):
        passed = any(step > first for first in first_steps[number:])
        assert (fenced(FoundCheckpoint(step, number), known(*first_steps)) is not None) == passed
    assert taken_over_by(known(*first_steps), len(first_steps)) is None


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_summary_of_many_generations_fences_as_all_of_them_do(seed: int) -> None:
    """Numbers are left out; some go back; summaries are written at times, or lost."""
    chance = random.Random(seed)
    with fake_s3() as s3:
        directory = RunDirectory("s3://bucket/it")
        number = step = 0
        kept = Fences(directory)
        for _ in range(350):
            number += chance.choice([1, 1, 1, 2, 60])
            step = max(0, step + chance.choice([5, 5, 5, 5, -40]))
            begin_generation(directory, number, step, 1, 0.0)
            if chance.random() < 0.05:
                chance.choice([kept, Fences(directory)]).summarize()
            if chance.random() < 0.01:
                directory.store.remove("generations/fences.json")
        everything = generations(directory)
        saves = [
            FoundCheckpoint(chance.randint(0, step + 50), chance.randint(0, number + 2))
            for _ in range(60)
        ]
        for fences in (kept, Fences(directory)):
            known = fences.of(one.generation for one in saves)
            for one in saves:
                assert fenced(one, known) == fenced(one, everything)
        s3.store.clear()
