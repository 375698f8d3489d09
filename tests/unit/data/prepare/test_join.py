"""Parts that fit together are the set that one preparation makes; any others are refused by name,
and nothing is begun."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headway.data.prepare.job import PrepareJob
from headway.data.prepare.join import join_parts
from headway.data.reading.verify import verify_set
from headway.data.set_format import read_manifest
from headway.data.tiny_stories import stories
from headway.errors import BadInput, NotFound
from headway.state.store import Store
from support.fake_s3 import fake_s3
from support.prepared import files_of, folder_in_memory, job_for, run, run_part, write_lines

STORIES = list(stories(24_000, 1))
NUM_UNITS = 7


@pytest.fixture(scope="module")
def whole(tokenizer: Path) -> Iterator[PrepareJob]:
    """Some in pieces, some that makes several shards, some bad; prepared undivided."""
    with folder_in_memory() as folder:
        (folder / "a.txt").write_text("\n\n".join(STORIES))
        lines: list[object] = [{"text": one} for one in STORIES]
        lines[20] = lines[-1] = "{not JSON"
        write_lines(folder / "b.jsonl", lines)
        batches = [pa.record_batch({"text": list(stories(17_000, seed))}) for seed in (2, 3, 4)]
        with pa.ipc.new_file(folder / "c.arrow", batches[0].schema) as file:
            for batch in batches:
                file.write_batch(batch)
        sources = ["a.txt", "b.jsonl", "c.arrow"]
        job = job_for(sources, folder / "set", tokenizer, unit_bytes=8_000)
        made = run(job)
        assert len({shard.name.split("-")[0] for shard in made.shards}) == NUM_UNITS
        assert len(made.shards) > NUM_UNITS
        yield job


@pytest.fixture(scope="module")
def parts(whole: PrepareJob) -> Iterator[list[Path]]:
    """Three of them, in folders of their own; not to be changed."""
    with folder_in_memory() as folder:
        yield make_parts(whole, [folder / f"part-{number}" for number in range(3)])


@pytest.fixture
def mine(parts: list[Path], folder: Path) -> list[Path]:
    """A copy to be changed."""
    return [shutil.copytree(part, folder / part.name) for part in parts]


def make_parts(job: PrepareJob, folders: list[Path]) -> list[Path]:
    for number, folder in enumerate(folders):
        run_part(replace(job, into=str(folder), part=(number, len(folders))))
    return folders


def joined(parts: list[Path], into: Path) -> dict[str, bytes]:
    made = join_parts([Store(part) for part in parts], Store(into))
    assert read_manifest(Store(into)) == made
    return files_of(into)


# --- parts that fit


@pytest.mark.parametrize("num_parts", [1, 2, NUM_UNITS + 3])
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "in one folder"])
def test_joined_is_what_one_preparation_makes(
    whole: PrepareJob, folder: Path, num_parts: int, apart: bool
) -> None:
    names = [f"part-{number}" if apart else "set" for number in range(num_parts)]
    made = make_parts(whole, [folder / name for name in names])
    found = joined(list(dict.fromkeys(reversed(made))), folder / "set")
    assert found == files_of(Path(whole.into)), "byte for byte, the records too"
    assert verify_set(Store(folder / "set")) == []


def test_parts_know_what_they_did(whole: PrepareJob, folder: Path) -> None:
    done = [
        run_part(replace(whole, into=str(folder / "set"), part=(number, 3))) for number in range(3)
    ]
    assert sum(one.num_units for one in done) == NUM_UNITS
    assert sum(one.num_tokens for one in done) == read_manifest(Store(whole.into)).num_tokens
    assert not (folder / "set" / "manifest.json").exists(), "it is no set yet"


@pytest.mark.parametrize("place", ["part-1", "part-1/", "part-1/inside", "./part-1", "new/deep"])
def test_wherever_it_is_joined(
    whole: PrepareJob, mine: list[Path], folder: Path, place: str
) -> None:
    join_parts([Store(part) for part in mine], Store(f"{folder}/{place}"))
    found = files_of(folder / place)
    assert found == files_of(Path(whole.into))


def test_no_tokens_are_read_or_copied(whole: PrepareJob, mine: list[Path], folder: Path) -> None:
    """They are pipes here, and who reads a pipe waits for ever."""
    for part in mine:
        for path in [*part.glob("shards/*.tokens"), *part.glob("shards/*.documents")]:
            path.unlink()
            os.mkfifo(path)
    made = join_parts([Store(part) for part in mine], Store(folder / "set"))
    assert made == read_manifest(Store(whole.into))
    for shard in made.shards:
        assert (folder / "set" / "shards" / f"{shard.name}.tokens").is_fifo()


def test_the_set_stays_whole_when_its_parts_go(
    whole: PrepareJob, mine: list[Path], folder: Path
) -> None:
    joined(mine, folder / "set")
    for part in mine:
        shutil.rmtree(part)
    assert files_of(folder / "set") == files_of(Path(whole.into))


def test_parts_in_one_folder_of_a_store(whole: PrepareJob, folder: Path) -> None:
    with fake_s3() as s3:
        for number in range(2):
            run_part(replace(whole, into="s3://bucket/set", part=(number, 2)))
        made = join_parts([Store("s3://bucket/set")], Store("s3://bucket/set/"))
        assert made == read_manifest(Store(whole.into))
        assert verify_set(Store("s3://bucket/set")) == []
        content = {name.removeprefix("/bucket/set/"): s3().cat_file(name) for name in s3.store}
    assert content == files_of(Path(whole.into))


# --- stopped


def test_an_interrupted_join_is_redone(whole: PrepareJob, mine: list[Path], folder: Path) -> None:
    """At every file it may be missing one; what is there then is kept or written over."""
    files = [*mine[2].glob("shards/*")]
    assert len(files) > 5
    for path in files:
        away = path.rename(folder / "away")
        if path.suffix == ".json":
            with pytest.raises(BadInput, match="are not prepared"):
                joined(mine, folder / "set")
        else:
            with pytest.raises(BadInput, match=f"{path.name} cannot be linked"):
                joined(mine, folder / "set")
        assert not (folder / "set" / "manifest.json").exists()
        away.rename(path)
    # A file of the same name by somebody who was killed while writing it.
    (folder / "set" / "shards" / "00000.tokens").unlink()
    (folder / "set" / "shards" / "00000.tokens").write_bytes(b"half")
    assert joined(mine, folder / "set") == files_of(Path(whole.into))
    assert verify_set(Store(mine[0].parent / "set")) == []


def test_a_finished_set_is_not_joined_over(mine: list[Path], folder: Path) -> None:
    before = joined(mine, folder / "set")
    with pytest.raises(BadInput, match="set already holds a prepared set"):
        joined(mine, folder / "set")
    assert files_of(folder / "set") == before


# --- parts that do not fit


def refused(parts: list[Path], into: Path) -> str:
    before = files_of(into)
    with pytest.raises((BadInput, NotFound)) as caught:
        join_parts([Store(part) for part in parts], Store(into))
    assert caught.value.hint
    assert files_of(into) == before, "nothing is begun"
    return caught.value.message


def test_a_missing_part_is_named_by_its_sources(mine: list[Path], folder: Path) -> None:
    said = refused(mine[:2], folder / "set")
    assert said.startswith("2 of 7 units of the sources are not prepared:\n  00002: a.txt from ")
    said = refused(mine[2:], folder / "set")
    assert said.startswith("5 of 7 units of the sources are not prepared:\n")
    *_, last = said.splitlines()[1:]
    assert last == "  00006: c.arrow"


def test_many_gaps_are_named_as_far_as_one_can_read(whole: PrepareJob, folder: Path) -> None:
    small = whole.settings.model_copy(update={"unit_bytes": 1_000})
    job = replace(whole, into=str(folder / "set"), settings=small)
    run_part(replace(job, part=(0, 1)))
    for number in range(0, 16, 2):
        (folder / "set" / "shards" / f"{number:05d}.json").unlink()
    said = refused([folder / "set"], folder / "set").splitlines()
    assert said[0].startswith("8 of ")
    assert [line.split(":")[0] for line in said[1:6]] == [f"  0000{n}" for n in range(0, 10, 2)]
    assert said[6:] == ["  and 3 more"]


def test_a_part_that_was_stopped_inside_a_unit_is_a_gap(mine: list[Path], folder: Path) -> None:
    (mine[0] / "shards" / "00006-1.json").unlink()
    assert "\n  00006: c.arrow" in refused(mine, folder / "set")


def test_a_part_named_twice_is_refused(mine: list[Path], folder: Path) -> None:
    again = folder / "again"
    again.symlink_to(mine[1])
    for twice in (mine[1], again):
        said = refused([*mine, twice], folder / "set")
        assert said.endswith(f" is in {mine[1]} and in {twice}")
        assert said.startswith("shard 0000")


def test_parts_that_overlap_are_refused(whole: PrepareJob, mine: list[Path], folder: Path) -> None:
    run_part(replace(whole, into=str(folder / "half"), part=(0, 2)))
    said = refused([folder / "half", *mine[1:]], folder / "set")
    assert f"is in {folder / 'half'} and in {mine[1]}" in said
    with pytest.raises(BadInput) as caught:
        join_parts([Store(folder / "half"), *map(Store, mine[1:])], Store(folder / "set"))
    assert "an earlier version of Headway" in (caught.value.hint or "")


def other_settings(job: PrepareJob) -> PrepareJob:
    return replace(job, settings=job.settings.model_copy(update={"column": "body"}))


def other_sources(job: PrepareJob) -> PrepareJob:
    return replace(job, sources=["a.txt", "b.jsonl"])


def other_order(job: PrepareJob) -> PrepareJob:
    return replace(job, sources=["b.jsonl", "a.txt", "c.arrow"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_settings, "column: body, was text"),
        (other_sources, "c.arrow: is missing"),
        (other_order, "the order of the files has changed"),
    ],
)
def test_parts_of_different_sets_are_refused_by_what_differs(
    whole: PrepareJob,
    mine: list[Path],
    folder: Path,
    change: Callable[[PrepareJob], PrepareJob],
    said: str,
) -> None:
    other = replace(change(whole), into=str(folder / "other"), part=(1, 3))
    run_part(other)
    message = refused([mine[0], folder / "other", mine[2]], folder / "set")
    assert f"{folder / 'other'} and {mine[0]} are parts of different sets:\n" in message
    assert f"\n  {said}" in message


def test_a_folder_that_holds_no_part_is_named(mine: list[Path], folder: Path) -> None:
    (folder / "empty").mkdir()
    for wrong in (folder / "empty", folder / "nowhere"):
        assert refused([mine[0], wrong], folder / "set") == (f"{wrong} is not a part of a set")


def test_it_is_not_joined_into_a_preparation_of_something_else(
    whole: PrepareJob, mine: list[Path], folder: Path
) -> None:
    run_part(replace(other_settings(whole), into=str(folder / "other"), part=(0, 3)))
    assert "other holds a different preparation" in refused(mine, folder / "other")


def test_parts_on_another_disk_are_refused(mine: list[Path], folder: Path, tmp_path: Path) -> None:
    if tmp_path.stat().st_dev == folder.stat().st_dev:
        pytest.skip("there is only one disk here")
    with pytest.raises(BadInput, match="cannot be linked") as caught:
        joined(mine, tmp_path / "set")
    assert "must be on one disk" in (caught.value.hint or "")
    assert not (tmp_path / "set" / "manifest.json").exists()


@pytest.mark.parametrize("into", ["s3://bucket/set", "{folder}/set"])
def test_parts_in_different_folders_of_a_store_are_refused(
    whole: PrepareJob, folder: Path, into: str
) -> None:
    into = into.format(folder=folder)
    with fake_s3() as s3:
        for number in range(2):
            at = f"s3://bucket/part-{number}"
            run_part(replace(whole, into=at, part=(number, 2)))
        with pytest.raises(BadInput, match="cannot be joined into") as caught:
            join_parts([Store("s3://bucket/part-0"), Store("s3://bucket/part-1")], Store(into))
        assert "into one location" in (caught.value.hint or "")
        begun: list[Any] = [name for name in s3.store if "/set/" in name]
        assert begun == []
    assert files_of(folder / "set") == {}
