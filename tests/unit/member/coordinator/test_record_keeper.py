"""A coordinator's start: it takes the next incarnation, and says behind which generation it goes
on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import RunFailed
from headway.member.coordinator import record_keeper
from headway.member.coordinator.record import Entry, StoreRecord
from headway.member.coordinator.record_keeper import claim
from headway.member.protocol.generation import Domain, Generation, nobody
from headway.state.store import Store
from support.membership.generations import restores


def record(folder: Path) -> StoreRecord:
    return StoreRecord(Store(folder), "it")


def started(record: StoreRecord, after: int | None = None) -> Entry:
    return asyncio.run(claim(record, SystemClock(), print, after))


def with_members(folder: Path, number: int) -> Generation:
    """Of an earlier coordinator."""
    domains = (Domain(("pod-0",), 1, holds=True),)
    generation = Generation(number, 1, domains, 0, False, (), "pod-0 is ready")
    made = record(folder)
    newest = made.read()
    assert made.swap(newest, Entry(newest.version + 1, 1, generation))
    return generation


def test_the_first_record_has_no_members(tmp_path: Path) -> None:
    claimed = started(record(tmp_path))
    assert (claimed.version, claimed.incarnation) == (1, 1)
    assert (claimed.generation.number, list(claimed.generation.workers())) == (0, [])


def test_one_that_starts_again_keeps_the_members(tmp_path: Path) -> None:
    generation = with_members(tmp_path, 7)
    claimed = started(record(tmp_path))
    assert (claimed.incarnation, claimed.generation) == (2, generation)


@pytest.mark.parametrize(
    ("there", "after", "goes_on_behind"),
    [
        (0, 0, 0),
        (0, 5, 5),  # the runs before had no coordinator, and counted their starts
        (7, 5, 7),  # members have changed since then
        (7, 9, 9),
    ],
)
def test_when_all_members_have_ended_nobody_is_waited_for(
    tmp_path: Path, there: int, after: int, goes_on_behind: int
) -> None:
    if there:
        with_members(tmp_path, there)
    claimed = started(record(tmp_path), after)
    assert claimed.generation == nobody(claimed.incarnation, goes_on_behind)
    assert list(claimed.generation.workers()) == []
    assert restores(claimed.generation)
    assert record(tmp_path).read() == claimed, "it is written before anything is said"
    again = started(record(tmp_path))
    assert again.incarnation == claimed.incarnation + 1
    assert again.generation.number == goes_on_behind, "numbers never go back"


def test_a_generation_of_nobody_breaks_those_before() -> None:
    """Whoever is left of an earlier start is told to drop what it does."""
    empty = nobody(2, 8)
    assert empty.breaks(7)
    assert empty.domain_of("pod-0") is None
    assert nobody(1) == nobody(1, 0)


def test_a_record_that_stays_away_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_keeper, "CLAIM_SECONDS", 0.0)
    monkeypatch.setattr(record_keeper, "RETRY_SECONDS", 0.01)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="the membership record cannot be written: "):
        started(record(tmp_path / "file" / "record"), 3)
