"""A mixture whose members are being prepared gives what the finished one gives, or waits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from headway.data.reading.block_fetcher import BlockFetcher, Need
from headway.data.reading.look_ahead import AHEAD_STEPS, BatchShare
from headway.data.reading.mixture import MemberSpec, MixtureSet, member_shares, write_mixture
from headway.data.reading.token_set import ReadOptions
from headway.data.tiny_stories import stories
from headway.errors import NotFound, RunFailed
from headway.state.store import Store
from support.clock import Patient
from support.fake_s3 import fake_s3
from support.growing_sets import begin, finish_set, finish_shards, records
from support.prepared import folder_in_memory, job_for, run, write_lines

SEED, LENGTH = 3, 16
SMALL = {"unit_bytes": 700, "block_tokens": 64, "window_blocks": 2}


@pytest.fixture(scope="module")
def whole(tokenizer: Path) -> Iterator[Path]:
    """Two sets in sequence, one twice as large, of sections of 128 tokens; and one that is not."""
    with folder_in_memory() as folder:
        for name, size in (("web", 8_000), ("code", 4_000), ("done", 2_000)):
            write_lines(folder / f"{name}.jsonl", [{"text": one} for one in stories(size, 4)])
            how = SMALL | {"in_sequence": name != "done"}
            run(job_for([f"{name}.jsonl"], folder / name, tokenizer, **how))
        yield folder


@pytest.fixture
def here(whole: Path, folder: Path) -> Path:
    """The mixture of them, of which two have just been begun."""
    for name in ("web", "code"):
        begin(whole / name, folder / name)
    shutil.copytree(whole / "done", folder / "done")
    write_mixture(Store(folder / "mix"), members(), is_streamed=True)
    return folder


def members() -> list[MemberSpec]:
    weights = {"web": 1, "code": 2, "done": 1}
    return [MemberSpec(name=name, location=f"../{name}", weight=w) for name, w in weights.items()]


def opened(folder: Path, meanwhile: Callable[[], None] = lambda: None) -> MixtureSet:
    return MixtureSet.open(Store(folder / "mix"), ReadOptions(clock=Patient(meanwhile)))


def finished(whole: Path, folder: Path) -> MixtureSet:
    written = write_mixture(Store(folder / "finished"), members_at(whole), is_streamed=True)
    mixture = MixtureSet.open(Store(folder / "finished"))
    assert mixture.manifest == written
    return mixture


def members_at(whole: Path) -> list[MemberSpec]:
    return [m.model_copy(update={"location": str(whole / m.name)}) for m in members()]


def test_every_position_there_is_holds_what_the_finished_mixture_has_there(
    whole: Path, here: Path
) -> None:
    expected, mixture = finished(whole, here), opened(here)
    assert mixture.digest == expected.digest
    assert mixture.in_sequence
    assert expected.in_sequence
    order, wanted = mixture.order(SEED, LENGTH), expected.order(SEED, LENGTH)
    assert mixture.num_samples(LENGTH) == 0
    seen = 0
    for web, code in ((3, 0), (3, 4), (8, 4), (9, 100), (100, 100)):
        finish_shards(whole / "web", here / "web", web)
        finish_shards(whole / "code", here / "code", code)
        there = mixture.num_samples(LENGTH)
        assert there >= seen
        for found, right in zip(order.at(0, there), wanted.at(0, there), strict=True):
            assert found.tolist() == right.tolist()
        seen = there
    assert seen > 100
    for name in ("web", "code"):
        finish_set(whole / name, here / name)
    assert mixture.num_samples(LENGTH) == expected.num_samples(LENGTH)
    # Members of different lengths: each has begun its next epoch somewhere in these.
    epochs, samples = order.at(0, 2 * seen)
    assert epochs.max() >= 1
    assert samples.tolist() == wanted.at(0, 2 * seen)[1].tolist()
    rows, right = (one.read(samples, LENGTH) for one in (mixture, expected))
    assert np.array_equal(rows.tokens, right.tokens)


def test_a_finished_member_begins_its_next_epoch_while_others_grow(whole: Path, here: Path) -> None:
    """And a position of one that grows is never taken for the end of its epoch."""
    finish_set(whole / "code", here / "code")
    finish_shards(whole / "web", here / "web", 10)
    mixture, expected = opened(here), finished(whole, here)
    there = mixture.num_samples(LENGTH)
    epochs, samples = mixture.order(SEED, LENGTH).at(0, there)
    assert epochs.max() >= 1
    right = expected.order(SEED, LENGTH).at(0, there)
    assert (epochs.tolist(), samples.tolist()) == (right[0].tolist(), right[1].tolist())
    web = {mixture.member_of(one, LENGTH)[0] for one in samples[epochs > 0].tolist()}
    assert "web" not in web


def test_a_position_waits_for_the_member_that_lacks_it(whole: Path, here: Path) -> None:
    finish_set(whole / "code", here / "code")
    prepared = 0

    def prepare_on() -> None:
        nonlocal prepared
        prepared += 1
        finish_shards(whole / "web", here / "web", prepared)

    mixture, shown = opened(here, prepare_on), []
    mixture.wait_for(40, LENGTH, lambda growing: shown.append(growing.location))
    assert mixture.num_samples(LENGTH) >= 40
    assert set(shown) == {str(here / "web")}
    assert prepared < len(records(whole / "web")), "and not longer"


def test_a_member_that_fails_ends_the_wait(whole: Path, here: Path) -> None:
    finish_set(whole / "web", here / "web")
    (here / "code" / "failed.txt").write_text("code.jsonl: no column text")
    with pytest.raises(RunFailed, match="no column text"):
        opened(here).wait_for(1000, LENGTH)


def test_nothing_is_fetched_of_a_member_without_samples(whole: Path, here: Path) -> None:
    finish_shards(whole / "web", here / "web", 1)
    opened(here).prefetch(SEED, LENGTH, 0, BatchShare(1, 0, 1, 1.0))


def test_members_in_a_store_announce_rows_as_far_as_they_are_prepared(
    whole: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.data.reading.look_ahead.REQUEST_BYTES", 0)
    announced: list[int] = []
    announce = BlockFetcher.announce

    def count(fetcher: BlockFetcher, needs: Mapping[object, Sequence[Need]], position: int) -> None:
        announced.append(sum(map(len, needs.values())))
        announce(fetcher, needs, position)

    monkeypatch.setattr(BlockFetcher, "announce", count)
    expected, share = finished(whole, here), BatchShare(16, 0, 16, 0.1)
    with fake_s3():
        finish_shards(whole / "web", here / "web", 10)
        finish_shards(whole / "code", here / "code", 10)
        upload(here)
        mixture = MixtureSet.open(Store("s3://bucket/mix"), ReadOptions(cache=here / "cache"))
        known = mixture.num_samples(LENGTH) // 16
        assert 1 < known < AHEAD_STEPS
        order, right = mixture.order(SEED, LENGTH), expected.order(SEED, LENGTH)
        mixture.prefetch(SEED, LENGTH, 0, share)
        assert announced == [16 * known]
        finish_set(whole / "web", here / "web")
        finish_set(whole / "code", here / "code")
        upload(here)
        mixture.num_samples(LENGTH)
        mixture.prefetch(SEED, LENGTH, known - 1, share)
        assert announced[1:] == [16 * AHEAD_STEPS]
        samples = order.at(0, 32 * known)[1]
        assert samples.tolist() == right.at(0, 32 * known)[1].tolist()
        rows, wanted = (one.read(samples, LENGTH).tokens for one in (mixture, expected))
        assert np.array_equal(rows, wanted)
        mixture.close()


def upload(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).parts[0] in ("web", "code", "done", "mix"):
            name, *rest = path.relative_to(folder).parts
            Store(f"s3://bucket/{name}").write("/".join(rest), path.read_bytes())


def test_a_sample_tells_its_member(whole: Path, here: Path) -> None:
    mixture = finished(whole, here)
    samples = mixture.order(SEED, LENGTH).at(0, 4)[1].tolist()
    names = [mixture.member_of(one, LENGTH)[0] for one in samples]
    assert sorted(names) == ["code", "code", "done", "web"]
    shares = member_shares(mixture, LENGTH)
    assert [one.share for one in shares] == [0.25, 0.5, 0.25]


def test_a_mixture_that_is_not_streamed_is_written_as_before(whole: Path, here: Path) -> None:
    """An older Headway reads it; and a member that is being prepared is refused."""
    with pytest.raises(NotFound, match="web"):
        write_mixture(Store(here / "other"), members(), is_streamed=False)
    plain = write_mixture(Store(here / "other"), members_at(whole))
    assert plain.version == 1
    mixture = MixtureSet.open(Store(here / "other"))
    assert not mixture.in_sequence
    own = mixture.num_own_samples(LENGTH)
    assert mixture.member_of(own[0], LENGTH) == ("code", 0)
