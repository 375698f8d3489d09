"""Who joins, follows or watches a preparation reads a few objects, however many shards there are;
and reads in them what the records of all shards say."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headway.cli.preparation_look import PreparationLook
from headway.data.formats.chunks import Problem
from headway.data.prepare.manifest import write_set_manifest
from headway.data.prepare.partial_manifest import (
    PUBLISH_SECONDS,
    TABLE_SHARDS,
    PartialManifest,
    PartialSums,
    Publisher,
    write_part,
)
from headway.data.prepare.recipe import Recipe, RecipeSettings, TokenizerFacts
from headway.data.prepare.shard_writer import ShardRecord, record_file
from headway.data.prepare.sources import SourceFile
from headway.data.set_format import SpecialIds, read_manifest
from headway.data.shard_table import Shard, ShardTable, shard_name
from headway.data.statistics import Statistics
from headway.state.store import Store
from support.clock import Patient
from support.counted_s3 import Requests, counted_s3

MANY = 10**5
TOKENS, DOCUMENTS = 1000, 7
DIGEST = "0a" * 16
MOST_REQUESTS = 20


@pytest.fixture
def s3() -> Iterator[Requests]:
    with counted_s3() as requests:
        yield requests


def recipe_of(num_units: int, num_bytes: int = 100) -> Recipe:
    size = num_units * num_bytes
    return Recipe(
        settings=RecipeSettings(unit_bytes=num_bytes, in_sequence=True),
        tokens=TokenizerFacts(
            digest=DIGEST,
            vocab_size=400,
            special_ids=SpecialIds(end_of_text=0, special=(0,)),
            start=None,
            separator=None,
            unknown=None,
        ),
        files=(SourceFile(name="s3://bucket/a.jsonl", size=size, fingerprint="1"),),
        beside="",
    )


def record(recipe: Recipe, unit: int, problems: tuple[Problem, ...] = ()) -> ShardRecord:
    name = recipe.files[0].name
    return ShardRecord(
        format_version=3,
        recipe_digest=recipe.digest,
        unit=unit,
        index=0,
        end_chunk=1,
        is_last=True,
        shard=Shard(
            name=shard_name(unit, 0),
            num_tokens=TOKENS,
            num_documents=DOCUMENTS,
            has_mask=False,
            digests={"tokens": f"{unit:032x}", "documents": DIGEST},
        ),
        num_bytes=50,
        num_tokens_left_out=0,
        statistics=Statistics(lengths=(0, DOCUMENTS), problems={"not JSON": len(problems)}),
        problems=problems,
        lines={name: 10},
        first_lines={name: 1},
    )


def finish(store: Store, recipe: Recipe, unit: int) -> ShardRecord:
    made = record(recipe, unit)
    store.write(record_file(unit, 0), made.model_dump_json().encode())
    return made


def table(first: int, end: int) -> bytes:
    """Shards of one unit each, as shard_table.py describes their file."""
    count = end - first
    digest = np.frombuffer(bytes.fromhex(DIGEST) * count, "V16")
    numbers = np.arange(1, count + 1, dtype="<i8")
    return ShardTable(
        token_ends=numbers * TOKENS,
        document_ends=numbers * DOCUMENTS,
        tokens=digest,
        documents=digest,
        mask=np.zeros(count, "V16"),
        pages=np.zeros(count, "V16"),
        units=np.arange(first, end, dtype="<u4"),
        indexes=np.zeros(count, "<u4"),
        has_mask=np.zeros(count, "u1"),
    ).to_bytes()


def publish(store: Store, recipe: Recipe, count: int) -> None:
    """As if so many shards were published."""
    num_tables = count // TABLE_SHARDS
    for number in range(num_tables):
        first = number * TABLE_SHARDS
        store.write(f"progress/table-{number:05d}", table(first, first + TABLE_SHARDS))
    sums = PartialSums(
        recipe_digest=recipe.digest,
        next=(count, 0),
        num_shards=count,
        num_documents=DOCUMENTS * count,
        num_tokens=TOKENS * count,
    )
    line = sums.model_dump_json().encode() + b"\n"
    store.write("progress/manifest", line + table(num_tables * TABLE_SHARDS, count))


@pytest.fixture(scope="module")
def many() -> Recipe:
    return recipe_of(MANY)


def test_a_hundred_thousand_finished_shards_are_joined_in_twenty_requests(
    s3: Requests, many: Recipe
) -> None:
    store = Store("s3://bucket/set")
    publish(store, many, MANY - 4)
    for unit in range(MANY - 4, MANY):
        finish(store, many, unit)
    publisher = Publisher(store, PartialManifest(many), Patient())
    num, _ = s3.during(publisher.publish)
    assert publisher.manifest.is_complete
    assert publisher.manifest.table.num_tokens == MANY * TOKENS
    # What is written then is the same for any number of shards.
    few, there = recipe_of(10), Store("s3://bucket/few")
    publish(there, few, 10)
    partial = PartialManifest(few)
    partial.read(there)
    num += s3.during(lambda: write_set_manifest(there, few, partial, allow_unreadable=False))[0]
    assert num <= MOST_REQUESTS
    assert there.names("progress") == []
    assert read_manifest(there).num_documents == 10 * DOCUMENTS


def test_a_reader_joins_in_a_few_requests_and_follows_in_two(s3: Requests, many: Recipe) -> None:
    store = Store("s3://bucket/set")
    publish(store, many, MANY - 9)
    reading = PartialManifest(many, "shards")
    num, num_bytes = s3.during(lambda: reading.refresh(store))
    assert num <= 8
    assert num_bytes < 120 * MANY
    assert len(reading.table) == MANY - 9
    assert reading.table.name(MANY - 10) == shard_name(MANY - 10, 0)
    assert reading.table.num_tokens == (MANY - 9) * TOKENS
    publish(store, many, MANY - 3)
    num, num_bytes = s3.during(lambda: reading.refresh(store))
    assert num == 2
    assert num_bytes < 120 * TABLE_SHARDS
    assert len(reading.table) == MANY - 3
    assert s3.during(lambda: reading.refresh(store))[0] == 1, "nothing new"


def test_a_watchers_look_costs_the_same_for_ten_shards_and_for_many(
    s3: Requests, many: Recipe
) -> None:
    counts = []
    for count in (10, MANY - 9):
        store = Store(f"s3://bucket/{count}")
        many.save(store)
        publish(store, many, count)
        look = PreparationLook(store, "c4", Patient())
        look.state()
        counts.append(s3.during(look.state))
    (few, few_bytes), (most, most_bytes) = counts
    assert few == most <= 5
    assert most_bytes <= few_bytes + 2**16
    assert "100%  700k documents  100M tokens" in look.state().words


def test_what_waits_for_a_late_part_is_read_by_parts(s3: Requests) -> None:
    """Fifty parts of a hundred shards are done when the first is."""
    num_parts, num_units = 50, 5_000
    recipe, store = recipe_of(num_units), Store("s3://bucket/set")
    for part in range(num_parts):
        units = range(part, num_units, num_parts)
        write_part(
            store, units, [record(recipe, unit).model_dump_json().encode() for unit in units]
        )
    for unit in range(20):
        finish(store, recipe, unit)
    reading = PartialManifest(recipe)
    num, _ = s3.during(lambda: reading.read_records(store))
    assert reading.is_complete
    assert num <= num_parts + MOST_REQUESTS


def test_a_set_that_an_older_version_has_begun_is_read_from_its_records(s3: Requests) -> None:
    recipe, store = recipe_of(30), Store("s3://bucket/set")
    for unit in [*range(12), 20]:
        finish(store, recipe, unit)
    reading = PartialManifest(recipe)
    reading.refresh(store)
    assert reading.sums.next == (12, 0)
    assert reading.sums.num_tokens == 12 * TOKENS


def test_one_part_publishes_and_another_when_it_is_lost(s3: Requests) -> None:
    recipe, store, clock = recipe_of(100), Store("s3://bucket/set"), Patient()
    first, second = (Publisher(store, PartialManifest(recipe), clock) for _ in range(2))
    published = []

    def pass_time(publisher: Publisher, unit: int) -> None:
        before = store.read("progress/manifest") if unit else b""
        publisher.shard_finished(finish(store, recipe, unit))
        published.append(store.read("progress/manifest") != before)

    for unit in range(12):
        pass_time((first, second)[unit % 2], unit)
        clock.passed += PUBLISH_SECONDS / 2 + 0.1
    assert published == [True, False] * 6
    published.clear()
    for unit in range(12, 16):
        clock.passed += PUBLISH_SECONDS
        pass_time(second, unit)
    assert published == [True] * 4
    reading = PartialManifest(recipe, "shards")
    assert s3.during(lambda: reading.refresh(store))[0] == 2
    assert reading.sums.next == (16, 0)


def test_an_older_state_that_is_written_late_costs_nothing_but_reading_it_again(
    s3: Requests,
) -> None:
    recipe, store = recipe_of(100), Store("s3://bucket/set")
    late, reading = PartialManifest(recipe), PartialManifest(recipe, "shards")
    for unit in range(8):
        finish(store, recipe, unit)
        if unit == 3:
            late.read_records(store)
    Publisher(store, PartialManifest(recipe), Patient()).publish()
    reading.refresh(store)
    late.write(store)
    reading.refresh(store)
    assert reading.sums.next == (8, 0)
    Publisher(store, PartialManifest(recipe), Patient()).publish()
    assert PartialManifest(recipe).read(store) == reading.sums


def test_tables_and_problems_survive_their_publication(s3: Requests) -> None:
    """Line numbers are those of the file, though each unit counts its own."""
    recipe, store = recipe_of(TABLE_SHARDS + 3), Store("s3://bucket/set")
    whole = PartialManifest(recipe)
    name = recipe.files[0].name
    for unit in range(TABLE_SHARDS + 3):
        bad = unit in (0, 2, TABLE_SHARDS + 1)
        problems = (Problem("not JSON", name, 4, "no value"),) if bad else ()
        whole.add(record(recipe, unit, problems))
    whole.write(store)
    reading = PartialManifest(recipe)
    reading.read(store)
    assert reading.sums == whole.sums
    assert reading.table == whole.table
    lines = [problem.line for problem in reading.problems]
    assert lines == [4, 24, (TABLE_SHARDS + 1) * 10 + 4]
    assert reading.sums.statistics.problems == {"not JSON": 3}
    assert PartialManifest(recipe_of(7)).read(store) is None, "another recipe"
