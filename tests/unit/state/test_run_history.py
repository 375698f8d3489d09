"""A status from a summary and the end of the logs is that from all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.clock import SystemClock
from headway.state import run_history
from headway.state.chain import Chain
from headway.state.checkpoints import found_folders, steps_saved
from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from headway.state.run_history import NAME, HistoryReader, summarize, whole_history
from headway.state.status import RunStatus, read_status, status_of
from headway.state.store import Store
from support.chains import LAUNCH
from support.fake_s3 import FakeS3, fake_s3
from support.old_run import Aging


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeS3]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3() as s3:
        yield s3


def directory_at(location: str | Path) -> RunDirectory:
    return RunDirectory.create(location, SystemClock())


def from_all(location: str, now: float) -> RunStatus:
    directory = RunDirectory.open(location)
    return status_of(directory, whole_history(directory), now)


def without_estimate(status: RunStatus) -> dict[str, Any]:
    """Sums of floats differ by their order, and the time left by the steps it is taken from."""
    found = status.as_json()
    found.pop("seconds_left")
    counted = found.pop("goodput") or {"lost_seconds": {}}
    lost = {f"lost {name}": value for name, value in counted.pop("lost_seconds").items()}
    for name, value in {**counted, **lost}.items():
        found[name] = pytest.approx(value, abs=2e-3)
    return found


def require_same(location: str, now: float) -> None:
    found, expected = read_status(RunDirectory.open(location), now), from_all(location, now)
    plain = found.as_json()
    plain.pop("seconds_left")
    counted = plain.pop("goodput") or {"lost_seconds": {}}
    lost = {f"lost {name}": value for name, value in counted.pop("lost_seconds").items()}
    assert {**plain, **counted, **lost} == without_estimate(expected)
    if expected.seconds_left is None:
        assert found.seconds_left is None
    else:
        assert found.seconds_left == pytest.approx(expected.seconds_left, rel=0.1)


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("is_far", [True, False])
def test_at_every_age_of_a_run(is_far: bool, tmp_path: Path) -> None:
    location = "s3://bucket/it" if is_far else str(tmp_path / "it")
    run = Aging(directory_at(location))
    for _ in range(12):
        run.live(3, 7, save_every=2)
        require_same(location, run.time)
    assert json.loads(run.directory.store.read(NAME))["sums"]["num_steps"] > 50


Move = st.sampled_from(["begin", "back", "far back", "steps", "flush", "save", "stale", "forget"])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(moves=st.lists(Move, max_size=20))
@example(moves=["begin", "stale", "save", "save"])
@example(moves=["save", "begin", "save"])
@pytest.mark.usefixtures("far")
def test_whatever_happens_to_a_run(moves: list[str], far: type[FakeS3]) -> None:
    """It goes back, also behind what was summarized; a leader that slept writes on; summaries are
    lost."""
    far.store.clear()
    far.pseudo_dirs[:] = [""]
    run = Aging(directory_at("s3://bucket/it"))
    run.begin()
    keeper = HistoryReader(RunDirectory.open("s3://bucket/it"))
    for move in moves:
        if move in ("begin", "back", "far back"):
            run.step = {"begin": run.step, "back": run.saved, "far back": run.saved // 2}[move]
            run.saved = min(run.saved, run.step)
            run.begin()
        elif move == "steps":
            for _ in range(20):
                run.commit()
        elif move == "flush":
            run.flush()
        elif move == "save":
            run.flush()
            run.save()
        elif move == "stale":
            step = {"step": run.step + 1, "seconds": 9.0, "data_seconds": 0.0, "loss": 7.0}
            facts = {"tokens_per_second": 1.0, "time": "2027-01-15T08:00:00.000Z"}
            run.directory.metrics.append({**step, **facts, "generation": 0})
        else:
            run.directory.store.remove(NAME)
        if move in ("flush", "save", "forget"):
            require_same("s3://bucket/it", run.time)
    seen = status_of(run.directory, keeper.read(), run.time)
    assert seen.step == from_all("s3://bucket/it", run.time).step


@pytest.mark.usefixtures("far")
def test_a_keeper_that_reads_again_and_again_sees_the_same() -> None:
    run = Aging(directory_at("s3://bucket/it"))
    reader = HistoryReader(RunDirectory.open("s3://bucket/it"))
    for _ in range(10):
        run.live(2, 11, save_every=3)
        found = status_of(reader.directory, reader.read(), run.time)
        expected = from_all("s3://bucket/it", run.time)
        assert (found.step, found.skipped_steps) == (expected.step, expected.skipped_steps)
        assert reader.read().counts == whole_history(reader.directory).counts


@pytest.mark.usefixtures("far")
def test_a_long_run_of_an_earlier_version_is_summarized_some_steps_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_history, "ROUND_STEPS", 50)
    run = Aging(directory_at("s3://bucket/it"))
    for _ in range(60):
        run.live(1, 12, save_every=10**6)
        run.saved = run.step  # by that version
    for _ in range(2):  # the first notes where the logs end, the second goes there
        summarize(run.directory)
        require_same("s3://bucket/it", run.time)
    assert json.loads(run.directory.store.read(NAME))["sums"]["num_steps"] > 100


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"version": 1}', b'{"version": 9}'])
def test_a_damaged_summary_is_as_good_as_none(content: bytes, tmp_path: Path) -> None:
    run = Aging(directory_at(tmp_path / "it"))
    run.live(6, 5, save_every=2)
    run.directory.store.write(NAME, content)
    require_same(str(tmp_path / "it"), run.time)
    run.save()
    run.save()
    require_same(str(tmp_path / "it"), run.time)


def test_the_summary_of_another_log_is_not_taken(tmp_path: Path) -> None:
    run = Aging(directory_at(tmp_path / "it"))
    run.live(6, 5, save_every=2)
    path = tmp_path / "it" / "metrics.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[3:]))
    require_same(str(tmp_path / "it"), run.time)


class Killed(BaseException):
    pass


@pytest.mark.usefixtures("far")
def test_a_kill_at_any_write_leaves_a_directory_that_reads_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each write of a save after 205 generations, before it and after it."""
    run = Aging(directory_at("s3://bucket/it"))
    run.live(205, 1, save_every=10**6)
    run.save(summarizes=False)
    summarize(run.directory)
    left = 10**9
    write, create, remove = Store.write, Store.create, Store.remove

    def killing(call: Any) -> Any:
        def counted(self: Store, *arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            result = call(self, *arguments)
            left -= 1
            if left == 0:
                raise Killed
            return result

        return counted

    monkeypatch.setattr(Store, "write", killing(write))
    monkeypatch.setattr(Store, "create", killing(create))
    monkeypatch.setattr(Store, "remove", killing(remove))
    num_kills = 0
    for at in range(1, 100):
        # Another process: it knows nothing but what is in the store.
        again = RunDirectory.open("s3://bucket/it")
        run.directory, run.chain = again, Chain(again, LAUNCH)
        left = 10**9
        run.begin()
        run.commit()
        run.flush()
        left = at
        try:
            run.save()
        except Killed:
            num_kills += 1
        has_ended, left = left > 0, 10**9
        require_same("s3://bucket/it", run.time)
        assert steps_saved(again)[-1] <= run.step
        records = again.ledger.read()[0]
        assert verify_ledger(records).breach is None
        if has_ended:
            break
    assert num_kills > 8
    run.save()
    assert steps_saved(again)[-1] == run.step
    assert len(found_folders(again)) == 2, "nothing is left of those that were cut short"


@pytest.mark.usefixtures("far")
def test_a_directory_without_a_summary_is_read_and_continued() -> None:
    location = "s3://bucket/it"
    run = Aging(directory_at(location))
    for _ in range(130):
        run.live(1, 2, save_every=10**6)
        run.saved = run.step
    run.save(summarizes=False)
    run.flush()
    again = RunDirectory.open(location)
    run.directory, run.chain = again, Chain(again, LAUNCH)
    run.live(90, 2, save_every=5)
    require_same(location, run.time)
    found = RunDirectory.open(location)
    assert verify_ledger(found.ledger.read()[0]).breach is None
    last = Chain(found).last()
    assert last is not None
    assert last.begun == 220
    assert found.metrics.last() == run.directory.metrics.last()
    assert steps_saved(found)[-1] == run.step
