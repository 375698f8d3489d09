"""What a worker does about a store that cannot be reached while it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.data.retry import OPEN_SECONDS as SET_SECONDS
from headway.data.retry import with_retries
from headway.errors import BadInput, NotFound, PeerLost, Stopped
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from headway.train.outages import OPEN_SECONDS, outage_is_loss, reached
from support.clock import Patient
from support.fake_s3 import FakeS3, fake_s3

PLACE = "s3://bucket/runs/it"


class Broken:
    """Makes reads of a store fail as long as the clock has not come so far."""

    def __init__(self, s3: type[FakeS3], clock: Patient, error: OSError, seconds: float) -> None:
        read, until = s3.cat_file, clock.monotonic() + seconds
        self.num_reads = 0

        def fail(store: object, path: str, **range_: int) -> bytes:
            self.num_reads += 1
            if clock.monotonic() < until:
                raise error
            return bytes(read(store, path, **range_))

        s3.cat_file = fail  # type: ignore[method-assign, assignment]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def open_it(clock: Patient) -> RunDirectory:
    return reached(lambda: RunDirectory.open(PLACE), clock)


def test_a_store_that_fails_for_a_moment_is_waited_for() -> None:
    clock = Patient()
    with fake_s3() as s3:
        RunDirectory.create(PLACE, SystemClock())
        broken = Broken(s3, clock, OSError("503 Slow Down"), 10.0)
        assert open_it(clock).location == PLACE
        assert broken.num_reads > 3


def test_one_that_stays_away_is_a_loss_like_any_other() -> None:
    """The launcher starts a successor, which retries."""
    clock = Patient()
    with fake_s3() as s3:
        RunDirectory.create(PLACE, SystemClock())
        began = clock.monotonic()
        Broken(s3, clock, OSError("503 Slow Down"), 1e9)
        with pytest.raises(PeerLost, match=r"the store cannot be reached: .*503 Slow Down"):
            open_it(clock)
        assert 0 < clock.monotonic() - began <= OPEN_SECONDS


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError("Access Denied"), BadInput),
        (FileNotFoundError("The specified bucket does not exist"), NotFound),
    ],
)
def test_a_store_that_refuses_is_an_error_at_once(error: OSError, expected: type) -> None:
    clock = Patient()
    with fake_s3() as s3:
        RunDirectory.create(PLACE, SystemClock())
        broken = Broken(s3, clock, error, 1e9)
        with pytest.raises(expected) as caught:
            open_it(clock)
        assert PLACE in caught.value.message
        assert broken.num_reads == 1


def test_a_set_that_cannot_be_opened_for_long_is_a_loss_too() -> None:
    with fake_s3():
        store, clock = Store("s3://bucket/set"), Patient()

        def attempt() -> None:
            raise OSError("503 Slow Down")

        expected = pytest.raises(PeerLost, match=r"s3://bucket/set/it could not be read for")
        with expected, outage_is_loss():
            with_retries(store, "it", attempt, clock, SET_SECONDS)


def test_a_request_to_stop_ends_the_waiting() -> None:
    clock = Patient()
    with fake_s3() as s3:
        RunDirectory.create(PLACE, SystemClock())
        broken = Broken(s3, clock, OSError("503 Slow Down"), 10.0)
        with pytest.raises(Stopped):
            reached(lambda: RunDirectory.open(PLACE), clock, lambda: broken.num_reads > 1)
        assert broken.num_reads == 2
