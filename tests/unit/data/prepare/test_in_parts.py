"""Processes that prepare a set together, in any order and with any of them killed or doubled, make
what one preparation makes; what cannot be mended ends them all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.prepare.in_parts import (
    ATTEMPTS,
    OTHERS_SECONDS,
    PLAN_SECONDS,
    Attempts,
    PreparationFailed,
    prepare_in_parts,
    put_tokenizer,
)
from headway.data.prepare.job import PrepareJob
from headway.data.set_format import SetManifest
from headway.data.tiny_stories import stories
from headway.errors import BadInput, NotFound, RunFailed
from headway.state.store import Store
from support.clock import Patient
from support.fake_s3 import fake_s3
from support.prepared import files_of, folder_in_memory, job_for, run, write_lines

NUM_UNITS = 6


@pytest.fixture(scope="module")
def whole(tokenizer: Path) -> Iterator[PrepareJob]:
    with folder_in_memory() as folder:
        lines: list[object] = [{"text": one} for one in stories(20_000, 1)]
        lines[20] = "{not JSON"
        write_lines(folder / "a.jsonl", lines)
        job = job_for(["a.jsonl"], folder / "set", tokenizer, unit_bytes=3_000)
        made = run(job)
        assert made.num_shards >= NUM_UNITS
        yield job


def part(
    job: PrepareJob,
    into: str | Path,
    index: int,
    num_parts: int,
    clock: Patient | None = None,
    nodes: int | None = None,
) -> SetManifest | None:
    there, clock = PrepareJob(**{**vars(job), "into": str(into)}), clock or Patient()
    nodes = nodes or num_parts
    return prepare_in_parts(there, index, num_parts, nodes, lambda _: None, clock, lambda _: None)


@settings(max_examples=15)
@given(num_parts=st.integers(1, NUM_UNITS + 2), nodes=st.integers(1, 8), data=st.data())
def test_in_whatever_order_they_end(
    whole: PrepareJob, num_parts: int, nodes: int, data: st.DataObject
) -> None:
    """The first plans; each of the others once or twice, as when it was taken for dead."""
    twice = [*range(1, num_parts), *range(1, num_parts)]
    order = [0, *data.draw(st.permutations(twice))]
    with folder_in_memory() as folder:
        made = [part(whole, folder / "set", index, num_parts, nodes=nodes) for index in order]
        assert made[-1] is not None
        assert files_of(folder / "set") == files_of(Path(whole.into)), "byte for byte"


def test_whoever_is_last_completes_the_set(whole: PrepareJob, folder: Path) -> None:
    clock = Patient()
    assert part(whole, folder / "set", 0, 2, clock) is None
    assert clock.passed >= OTHERS_SECONDS
    assert part(whole, folder / "set", 1, 2, Patient()) is not None
    assert part(whole, folder / "set", 0, 2) is not None, "nothing is left to do"


def test_what_killed_parts_have_begun_is_removed_at_the_end(
    whole: PrepareJob, folder: Path
) -> None:
    part(whole, folder / "set", 0, 2)
    (folder / "set/shards/.00001-000.tokens.partial-0123456789ab").write_bytes(b"half")
    part(whole, folder / "set", 1, 2)
    assert files_of(folder / "set") == files_of(Path(whole.into))


def test_in_a_bucket(whole: PrepareJob) -> None:
    with fake_s3():
        for index in range(3):
            part(whole, "s3://bucket/set", index, 3)
        store = Store("s3://bucket/set")
        found = {name: store.read(name) for name in store.names("")}
        assert found == files_of(Path(whole.into))


def test_a_trained_tokenizer(whole: PrepareJob, folder: Path) -> None:
    """The others take what the first has trained."""
    job = job_for(["a.jsonl"], folder / "one", 400, beside=whole.beside, unit_bytes=3_000)
    run(job)
    for index in range(3):
        part(job, folder / "many", index, 3)
    assert files_of(folder / "many") == files_of(folder / "one")


def test_two_that_plan_at_the_same_time_agree(
    whole: PrepareJob, folder: Path, tokenizer: Path
) -> None:
    """One was taken for dead after it had written its tokenizer; it makes another than the next
    one would, and the next one takes it."""
    job = job_for(["a.jsonl"], folder / "one", tokenizer, beside=whole.beside, unit_bytes=3_000)
    run(job)
    put_tokenizer(tokenizer, Store(folder / "set"))
    other = job_for(["a.jsonl"], folder / "set", 400, beside=whole.beside, unit_bytes=3_000)
    made = part(other, folder / "set", 0, 1)
    assert made is not None
    mine = (folder / "set/tokenizer/tokenizer.json").read_bytes()
    assert mine == (folder / "one/tokenizer/tokenizer.json").read_bytes()
    shards = {name for name in files_of(folder / "one") if name.endswith(".tokens")}
    found, wanted = files_of(folder / "set"), files_of(folder / "one")
    assert all(found[name] == wanted[name] for name in shards)


def test_a_recipe_that_exists_is_final(whole: PrepareJob, folder: Path) -> None:
    """The source has grown since: the set that was begun does not."""
    beside = folder / "beside"
    shutil.copytree(whole.beside, beside, ignore=shutil.ignore_patterns("set"))
    job = PrepareJob(**{**vars(whole), "beside": beside})
    assert part(job, folder / "set", 0, 2) is None
    with (beside / "a.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    assert part(job, folder / "set", 0, 2) is None
    assert part(job, folder / "set", 1, 2) is not None


# --- what ends it


def test_the_others_wait_for_the_plan_and_say_so(whole: PrepareJob, folder: Path) -> None:
    clock, said = Patient(), []
    there = PrepareJob(**{**vars(whole), "into": str(folder / "set")})
    with pytest.raises(RunFailed, match="no recipe for 30 minutes"):
        prepare_in_parts(there, 1, 2, 2, lambda _: None, clock, said.append)
    assert clock.passed > PLAN_SECONDS
    assert len(said) == 30
    assert not (folder / "set/failed.txt").exists(), "the next attempt may find it"


def test_what_cannot_be_mended_ends_all(whole: PrepareJob, folder: Path) -> None:
    job = PrepareJob(**{**vars(whole), "sources": ["nowhere.jsonl"]})
    with pytest.raises(NotFound):
        part(job, folder / "set", 0, 2)
    words = (folder / "set/failed.txt").read_text()
    assert "nowhere.jsonl" in words
    with pytest.raises(PreparationFailed, match=r"nowhere\.jsonl"):
        part(whole, folder / "set", 1, 2)
    with pytest.raises(PreparationFailed):
        part(whole, folder / "set", 0, 2)


def test_a_failure_elsewhere_is_seen_in_the_middle(whole: PrepareJob, folder: Path) -> None:
    class Hours(Patient):
        def monotonic(self) -> float:
            self.passed += 10
            return self.passed

    assert part(whole, folder / "set", 0, 2) is None

    def fail(_: object) -> None:
        (folder / "set/failed.txt").write_text("no more disk")

    there = PrepareJob(**{**vars(whole), "into": str(folder / "set")})
    with pytest.raises(PreparationFailed, match="no more disk"):
        prepare_in_parts(there, 1, 2, 2, fail, Hours(), lambda _: None)


def test_the_last_attempt_tells_those_who_wait(whole: PrepareJob, folder: Path) -> None:
    def fail(_: object) -> None:
        raise OSError("the network is away")

    there = PrepareJob(**{**vars(whole), "into": str(folder / "set")})
    for attempt in range(ATTEMPTS):
        assert not (folder / "set/failed.txt").exists(), attempt
        with pytest.raises(OSError, match="the network"):
            prepare_in_parts(there, 0, 2, 2, fail, Patient(), lambda _: None)
    assert "the network is away" in (folder / "set/failed.txt").read_text()


def test_an_attempt_that_finishes_a_shard_is_not_counted(whole: PrepareJob, folder: Path) -> None:
    """One that finds only what others have finished is: it may be killed by the same record."""
    there = PrepareJob(**{**vars(whole), "into": str(folder / "set")})
    done: list[int] = []

    def fail(_: object) -> None:
        if len(list((folder / "set/shards").glob("*.json"))) >= len(done) + 1:
            raise OSError("the network is away")

    def attempt() -> None:
        with pytest.raises(OSError, match="the network"):
            prepare_in_parts(there, 0, 2, 2, fail, Patient(), lambda _: None)

    counted = folder / "set/progress/attempts/0"
    for _ in range(2):
        attempt()
        assert not counted.exists()
        done.append(1)
    done.pop()
    for number in range(1, ATTEMPTS + 1):
        assert not (folder / "set/failed.txt").exists()
        attempt()
        assert counted.read_text() == str(number)
    assert (folder / "set/failed.txt").exists()


def test_pods_that_end_without_a_word_end_it_unless_they_were_told_to(
    whole: PrepareJob, folder: Path
) -> None:
    """As those do that have too little memory. What is told to end is on a machine that is lost."""
    store = Store(folder / "set")
    for _ in range(3 * ATTEMPTS):
        attempts = Attempts(store, 0)
        attempts.begin()
        attempts.take_back()
    for _ in range(ATTEMPTS):
        Attempts(store, 0).begin()
    with pytest.raises(BadInput, match="ended 10 times without a word"):
        part(whole, folder / "set", 0, 2)
    assert "memory" in (folder / "set/failed.txt").read_text()


def test_one_process_is_needed_for_duplicates(whole: PrepareJob, folder: Path) -> None:
    settings = whole.settings.model_copy(update={"deduplicate": True})
    with pytest.raises(BadInput, match="cannot be prepared in parts"):
        part(PrepareJob(**{**vars(whole), "settings": settings}), folder / "set", 0, 2)
