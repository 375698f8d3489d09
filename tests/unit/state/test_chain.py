"""Who trains a run is decided once, and whoever was replaced takes nothing away."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import BadInput
from headway.state.chain import (
    Chain,
    Disappeared,
    KeptCheckpoint,
    Link,
    Replaced,
    TakenOver,
    decoded,
    encoded,
)
from headway.state.run_directory import RunDirectory
from support.chains import TIME, begun, recorded
from support.fake_s3 import fake_s3


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "it", SystemClock())


def kept(step: int, generation: int = 1) -> KeptCheckpoint:
    return KeptCheckpoint(step=step, generation=generation, digest="d")


def names(link: Link | None) -> list[tuple[int, int]]:
    assert link is not None
    return [each.name for each in link.keeps]


def test_starts_generations_and_saves_are_one_sequence(directory: RunDirectory) -> None:
    chain = Chain(directory, "a")
    assert chain.last() is None
    assert chain.start(TIME).generation == 1
    chain.begin(1, 0, 2, TIME)
    recorded(chain, kept(40))
    second = Chain(directory, "b")
    assert second.start(TIME).generation == 2
    second.begin(2, 40, 3, TIME)
    assert directory.store.names("chain") == [
        f"chain/0000/{number:06d}.json" for number in range(1, 6)
    ]
    last = Chain(directory).last()
    assert last is not None
    assert (last.kind, last.launch, last.generation, last.workers) == ("generation", "b", 2, 3)
    assert names(last) == [(40, 1)]
    assert last.num_begun == 2
    second.begin(7, 40, 3, TIME)  # the coordinator has made others that never trained
    last = second.last()
    assert last is not None
    assert (last.begun, last.num_begun) == (7, 3)


def test_a_run_that_was_started_elsewhere_is_not_saved_any_more(directory: RunDirectory) -> None:
    """Also when the other one only started it, and died."""
    first = begun(directory, 1, 0, "a")
    recorded(first, kept(40))
    Chain(directory, "b").start(TIME)
    with pytest.raises(TakenOver, match=r"run it was taken over by .* \(process \d+\) at 2027"):
        recorded(first, kept(50))
    with pytest.raises(TakenOver):
        first.begin(3, 50, 1, TIME)
    assert names(Chain(directory).last()) == [(40, 1)]


def test_a_leader_whose_successor_has_begun_saves_nothing_more(directory: RunDirectory) -> None:
    first = begun(directory, 1, 0)
    recorded(first, kept(40))
    begun(directory, 2, 40)
    with pytest.raises(Replaced, match="generation 2 has taken the place of 1"):
        recorded(first, kept(50))
    with pytest.raises(Replaced):
        begun(directory, 2, 30)  # by another worker


def test_checkpoints_beyond_where_a_generation_begins_do_not_count(
    directory: RunDirectory,
) -> None:
    first = begun(directory, 1, 0)
    recorded(first, kept(40))
    recorded(first, kept(50))
    assert names(begun(directory, 2, 40).last()) == [(40, 1)]


def test_a_link_that_was_written_between_is_read(directory: RunDirectory) -> None:
    """A deposed leader's last save came first: what it keeps is known to its successor."""
    first = begun(directory, 1, 0)
    second = Chain(directory, first.launch)
    second.last()
    recorded(first, kept(40))
    second.begin(2, 40, 1, TIME)
    recorded(second, kept(50, 2))
    assert names(second.last()) == [(40, 1), (50, 2)]


@pytest.mark.parametrize("remote", [False, True])
def test_of_two_that_start_at_once_one_comes_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3():
        place = "s3://bucket/it" if remote else tmp_path / "it"
        directory = RunDirectory.create(place, SystemClock())
        one, other = Chain(directory, "a"), Chain(directory, "b")
        monkeypatch.setattr(other, "last", lambda: None)  # an old listing
        assert one.start(TIME).number == 1
        assert (other.start(TIME).number, other.start(TIME).generation) == (2, 2)


def test_a_beginning_whose_answer_was_lost_is_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3() as s3:
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        chain = Chain(directory, "a")
        chain.start(TIME)
        s3.troubles.append("answer lost")
        with pytest.raises(OSError, match="answer"):
            chain.begin(1, 0, 1, TIME)
        chain.begin(1, 0, 1, TIME)
        s3.troubles.append("answer lost")
        with pytest.raises(OSError, match="answer"):
            recorded(chain, kept(5))
        recorded(chain, kept(5))
        assert len(directory.store.names("chain")) == 3


def test_any_one_flipped_bit_of_a_link_does_no_harm(directory: RunDirectory) -> None:
    chain = begun(directory, 1, 0)
    recorded(chain, kept(40))
    link = chain.last()
    assert link is not None
    content = encoded(link)
    for at in range(0, 8 * len(content), 7):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        assert decoded(bytes(flipped)) == link


class OtherLink(Link):
    other: int = 1


def test_a_link_may_have_keys_that_this_version_does_not_know(directory: RunDirectory) -> None:
    link = begun(directory, 1, 0).last()
    assert link is not None
    assert decoded(encoded(OtherLink(**dict(link)))) == link


def test_a_link_that_is_damaged_twice_is_named(directory: RunDirectory) -> None:
    begun(directory, 1, 0)
    directory.store.write("chain/0000/000002.json", b"{}\n{}\n")
    with pytest.raises(BadInput, match=r"chain/0000/000002\.json is damaged"):
        Chain(directory).last()


def test_a_chain_that_has_disappeared_is_not_begun_anew(directory: RunDirectory) -> None:
    chain = begun(directory, 1, 0)
    other = Chain(directory, chain.launch)
    directory.store.remove("chain")
    with pytest.raises(Exception, match="has disappeared"):
        recorded(other, kept(5))


def test_a_start_beside_a_deletion_says_that_the_run_is_gone(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link was listed, and is removed before it is read."""
    begun(directory, 1, 0)
    other = Chain(directory, "other")
    newest = other._files.newest()
    directory.store.remove("chain")
    monkeypatch.setattr(other._files, "newest", lambda: newest)
    with pytest.raises(Disappeared, match="chain has disappeared"):
        other.start(TIME)
