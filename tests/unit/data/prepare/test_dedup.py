"""Of documents that are the same to the letter the first in the order of the sources stays, whoever
prepares them and however often they are stopped."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.prepare.dedup import DuplicateFinder, without_documents
from headway.data.prepare.encode import EncodedChunk
from headway.data.prepare.job import PrepareJob
from headway.data.prepare.progress import PrepareProgress
from headway.data.statistics import Statistics
from headway.data.tiny_stories import stories
from headway.errors import BadInput
from support.prepared import files_of, folder_in_memory, job_for, run, texts_of, write_lines

DATABASE = "seen.sqlite"


def chunk(documents: list[bytes], parts: frozenset[int] = frozenset()) -> EncodedChunk:
    """Documents of one letter each, which is their token; `parts` are of longer documents."""
    count = len(documents)
    return EncodedChunk(
        tokens=np.array([one[0] for one in documents], dtype=np.uint16),
        mask=np.ones(count, dtype=np.uint8),
        lengths=np.ones(count, dtype=np.int64),
        num_bytes=np.ones(count, dtype=np.int64),
        hashes=tuple(b"" if n in parts else one for n, one in enumerate(documents)),
        opens=False,
        continues=False,
        statistics=Statistics(num_blank=1),
        problems=(),
        file="a file",
        first_line=1,
        num_lines=0,
    )


letters = st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), max_size=8)
units = st.lists(st.lists(letters, max_size=4), max_size=4)


def kept_of(seen: DuplicateFinder, number: int, unit: list[list[bytes]]) -> list[int]:
    found: list[int] = []
    for at, documents in enumerate(unit):
        one = chunk(documents)
        found += without_documents(one, seen.duplicates(one, number, at)).tokens.tolist()
    return found


@given(drawn=units, killed=st.lists(st.booleans(), min_size=4, max_size=4))
def test_the_first_copy_stays_also_in_units_that_are_prepared_twice(
    drawn: list[list[list[bytes]]], killed: list[bool]
) -> None:
    with folder_in_memory() as folder:
        seen = DuplicateFinder(folder)
        kept: list[int] = []
        for number, unit in enumerate(drawn):
            mine = kept_of(seen, number, unit)
            if killed[number]:
                # Before its record was written, on every other unit before its end was noted too.
                if number % 2:
                    seen.commit()
                seen.close()
                seen = DuplicateFinder(folder, is_begun=number > 0)
                assert kept_of(seen, number, unit) == mine
            seen.commit()
            kept += mine
        seen.close()
    everything = [one[0] for unit in drawn for documents in unit for one in documents]
    assert kept == list(dict.fromkeys(everything))


def test_what_is_left_of_a_chunk(folder: Path) -> None:
    seen = DuplicateFinder(folder)
    one = chunk([b"a", b"b", b"a", b"c", b"c"], parts=frozenset({4}))
    duplicates = seen.duplicates(one, 0, 0)
    assert duplicates == [2], "a part of a long document is never one"
    left = without_documents(one, duplicates)
    assert bytes(left.tokens.tolist()) == b"abcc"
    assert left.mask is not None
    assert len(left.mask) == len(left.lengths) == len(left.num_bytes) == 4
    assert left.statistics == Statistics(num_blank=1, num_duplicates=1)
    assert without_documents(one, []) is one


@pytest.mark.long("a measurement of memory")
def test_memory_does_not_grow_with_the_documents(folder: Path) -> None:
    seen = DuplicateFinder(folder)
    draw = random.Random(1).randbytes

    def add(first: int, end: int) -> None:
        for number in range(first, end):
            assert seen.duplicates(chunk([draw(16) for _ in range(1000)]), 0, number) == []
        seen.commit()

    add(0, 5)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        add(5, 45)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 100_000, "40,000 hashes alone are 640,000 bytes"
    assert (folder / DATABASE).stat().st_size > 640_000


# --- in a preparation

STORIES = list(stories(25_000, 1))


@pytest.fixture(scope="module")
def corpus(tokenizer: Path) -> Iterator[tuple[PrepareJob, list[str]]]:
    """Three files with copies inside each, of each other, and across units; and what is to stay."""
    drawn = random.Random(1)
    with folder_in_memory() as folder:
        told = []
        for name in ("a", "b", "c"):
            mine = [*drawn.choices(STORIES, k=60), f"only in {name}", " ", f"only in {name} "]
            write_lines(folder / f"{name}.jsonl", [{"text": one} for one in mine])
            told += mine
        sources = ["b.jsonl", "a.jsonl", "c.jsonl"]
        told = told[63:126] + told[:63] + told[126:]
        job = job_for(sources, folder / "set", tokenizer, deduplicate=True, unit_bytes=4_000)
        run(job)
        yield job, [one for one in dict.fromkeys(told) if one != " "]


def test_the_first_copy_stays_in_the_order_of_the_sources(
    corpus: tuple[PrepareJob, list[str]],
) -> None:
    job, told = corpus
    assert texts_of(Path(job.into)) == told
    made = run(job)
    assert made.statistics.num_duplicates == 3 * 63 - 3 - len(told)
    assert made.statistics.num_blank == 3, "white space is blank, not a duplicate"
    assert made.num_shards > 6
    assert DATABASE not in files_of(Path(job.into)), "a finished set needs it no more"


@pytest.mark.parametrize("change", [{"processes": 2}, {"unit_bytes": 1_500}, {"unit_bytes": 2**27}])
def test_who_prepares_it_and_in_which_pieces_does_not_matter(
    corpus: tuple[PrepareJob, list[str]], folder: Path, change: dict[str, int]
) -> None:
    job, told = corpus
    other = replace(job, into=str(folder / "set"), processes=change.get("processes", 1))
    sizes = {name: size for name, size in change.items() if name == "unit_bytes"}
    run(replace(other, settings=job.settings.model_copy(update=sizes)))
    assert texts_of(folder / "set") == told
    if not sizes:
        assert files_of(folder / "set") == files_of(Path(job.into))


@pytest.mark.parametrize(
    ("first", "other", "settings"),
    [
        ({"q": "Why?", "a": "So."}, {"q": "Why?", "a": "No."}, {"template": "{q} {a}"}),
        ({"ids": [1, 2, 3]}, {"ids": [1, 2]}, {"ids": "ids"}),
        (
            {"m": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]},
            {"m": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "No."}]},
            {"messages": "m"},
        ),
    ],
    ids=["template", "ids", "messages"],
)
def test_what_counts_is_what_training_would_see(
    folder: Path, tokenizer: Path, first: Any, other: Any, settings: dict[str, str]
) -> None:
    twice = [{**first, "id": 1}, {**other, "id": 2}, {**first, "id": 3}]
    write_lines(folder / "a.jsonl", twice)
    made = run(job_for(["a.jsonl"], folder / "set", tokenizer, deduplicate=True, **settings))
    assert (made.num_documents, made.statistics.num_duplicates) == (2, 1)


# --- stopped


def killed_in(job: PrepareJob, after: int) -> bool:
    """Prepares in another process, which is gone at once after so many chunks; whether it was."""
    pid = os.fork()
    if pid == 0:
        left = iter(range(after))

        def show(_: PrepareProgress) -> None:
            if next(left, None) is None:
                os._exit(9)

        try:
            run(job, show)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


@pytest.mark.parametrize("after", [0, 1, 4])
def test_killed_repeatedly_it_makes_the_same_set(
    corpus: tuple[PrepareJob, list[str]], folder: Path, after: int
) -> None:
    job = replace(corpus[0], into=str(folder / "set"))
    for _ in range(4):
        assert killed_in(job, after)
    run(job)
    assert files_of(folder / "set") == files_of(Path(corpus[0].into))


def stopped(job: PrepareJob, after: int) -> None:
    assert killed_in(job, after)
    assert (Path(job.into) / DATABASE).is_file()
    assert list(Path(job.into).glob("shards/*.json"))


def overwrite(path: Path) -> None:
    path.write_bytes(b"anything" * 1000)


@pytest.mark.parametrize("harm", [Path.unlink, overwrite], ids=["gone", "damaged"])
def test_without_its_list_of_documents_it_does_not_resume(
    corpus: tuple[PrepareJob, list[str]], folder: Path, harm: Callable[[Path], None]
) -> None:
    """It would keep copies of what is in the finished shards."""
    job = replace(corpus[0], into=str(folder / "set"))
    stopped(job, 6)
    harm(folder / "set" / DATABASE)
    for _ in range(2):
        with pytest.raises(BadInput, match=DATABASE) as caught:
            run(job)
        assert "delete the folder" in (caught.value.hint or "")


def test_after_an_interruption_nothing_is_locked(
    corpus: tuple[PrepareJob, list[str]], folder: Path
) -> None:
    """In the same process, which still holds what it was raised with."""
    job = replace(corpus[0], into=str(folder / "set"))

    def stop(_: PrepareProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(job, stop)
    run(job)
    assert files_of(folder / "set") == files_of(Path(corpus[0].into))


def test_a_finished_set_that_lost_a_record_is_not_rebuilt_with_duplicates(
    corpus: tuple[PrepareJob, list[str]], folder: Path
) -> None:
    job = replace(corpus[0], into=str(folder / "set"))
    run(job)
    (folder / "set" / "manifest.json").unlink()
    run(job)
    assert files_of(folder / "set") == files_of(Path(corpus[0].into)), "nothing was to be made"
    (folder / "set" / "manifest.json").unlink()
    (folder / "set" / "shards" / "00004.json").unlink()
    with pytest.raises(BadInput, match=DATABASE):
        run(job)


def test_what_is_only_needed_on_the_way_is_gone_when_nothing_is_left(
    folder: Path, tokenizer: Path
) -> None:
    write_lines(folder / "a.jsonl", [json.dumps({"body": "no text"})] * 3)
    with pytest.raises(BadInput, match=r"no text in a\.jsonl: 3 no column"):
        run(job_for(["a.jsonl"], folder / "set", tokenizer, deduplicate=True))
    assert DATABASE not in files_of(folder / "set")
