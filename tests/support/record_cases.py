"""Tests of a record of generations, which pass in a folder (unit) and in a bucket (local).

Only one coordinator can write the next entry, even after a lost reply or a long pause."""

from __future__ import annotations

import pytest

from headway.errors import BadInput, RunFailed
from headway.member.coordinator.record import KEPT, Entry, StoreRecord
from headway.member.protocol.generation import Domain, Generation, nobody
from headway.state.store import Store


def generation(number: int) -> Generation:
    domains = (Domain(("pod-0", "pod-1"), 1, True),)
    return Generation(number, 1, domains, 0, False, (number - 1,), "pod-2 is lost: silent")


def entry(version: int, incarnation: int = 1) -> Entry:
    return Entry(version, incarnation, generation(version))


def record(place: str) -> StoreRecord:
    return StoreRecord(Store(place), "it")


def filled(place: str, versions: int) -> StoreRecord:
    made = record(place)
    for version in range(versions):
        assert made.swap(made.read(), entry(version + 1))
    return made


def test_before_the_first_there_is_nobody(place: str) -> None:
    assert record(place).read() == Entry(0, 0, nobody(0))


def test_what_is_written_is_read_by_another(place: str) -> None:
    filled(place, 3)
    assert record(place).read() == entry(3)


def test_only_one_of_two_that_start_together_has_it(place: str) -> None:
    """They write the very same entry."""
    one, two = record(place), record(place)
    before = one.read()
    assert two.read() == before
    claims = [each.swap(before, Entry(1, 1, nobody(0))) for each in (one, two)]
    assert claims == [True, False]


def test_a_lost_answer_is_recognised(place: str) -> None:
    made = filled(place, 2)
    assert made.swap(entry(2), entry(3))
    assert made.swap(entry(2), entry(3)), "asked again, it is there as our own"
    assert not record(place).swap(entry(2), entry(3)), "but not as another's"


def test_an_older_one_cannot_write(place: str) -> None:
    older = filled(place, 2)
    newer = record(place)
    assert newer.swap(entry(2), entry(3, incarnation=2))
    assert not older.swap(entry(2), entry(3))
    assert newer.read() == entry(3, incarnation=2)


def test_one_that_slept_for_long_cannot_write_a_number_that_is_free_again(place: str) -> None:
    sleeper = filled(place, 2)
    newer = record(place)
    for version in range(2, 2 * KEPT):
        assert newer.swap(newer.read(), entry(version + 1, incarnation=2))
    assert not sleeper.swap(entry(2), entry(3))
    # Also when the entry before its own is still there, because nobody could remove it.
    Store(place).write("000000000002.json", b"left over")
    assert not sleeper.swap(entry(2), entry(3))
    assert newer.read() == entry(2 * KEPT, incarnation=2)
    assert newer.swap(newer.read(), entry(2 * KEPT + 1, incarnation=2))


def test_old_entries_are_removed_and_the_newest_stay(place: str) -> None:
    filled(place, KEPT + 5)
    names = Store(place).names("")
    assert len(names) == KEPT
    assert names[-1] == f"{KEPT + 5:012d}.json"


def test_another_runs_record_is_refused(place: str) -> None:
    filled(place, 1)
    with pytest.raises(BadInput, match="belongs to run it"):
        StoreRecord(Store(place), "other").read()


def test_a_damaged_entry_is_not_taken_for_an_older_state(place: str) -> None:
    made = filled(place, 2)
    Store(place).write("000000000002.json", b'{"format": 1, "run": "it"')
    with pytest.raises(RunFailed, match="damaged"):
        made.read()
