"""A run that cannot be saved: for how long it trains on, and what it ends with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.errors import Exit, RunFailed
from headway.train.batches import Batch, Loss
from headway.train.stop_request import StopRequest
from headway.train.worker_run import WorkerRun
from support.fake_s3 import FakeS3, fake_s3
from support.run_here import RunHere

MINUTE, HOUR = 60.0, 3600.0
STEP_SECONDS = 20 * MINUTE
STEPS = 100
DENIED = PermissionError("Access Denied")
BUCKET_GONE = FileNotFoundError("The specified bucket does not exist")
AWAY = OSError("503 slow down")
DISK_FULL = OSError(28, "No space left on device")


class Steps(SystemClock):
    """Time passes by steps alone. Threads that sleep look again soon."""

    passed = 0.0

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(0.05)


class NeverAsked(StopRequest):
    """Looked at before each step: then the save of the step before has ended."""

    run: WorkerRun | None = None

    @property
    def asked(self) -> bool:  # type: ignore[override]
        if self.run is not None:
            self.run.saver.wait()
        return False

    @asked.setter
    def asked(self, value: bool) -> None: ...


class Bucket:
    """A bucket that takes no file of a checkpoint as long as there is an `error`."""

    def __init__(self, s3: type[FakeS3]) -> None:
        self.error: Exception | None = None
        write = s3.pipe_file

        def pipe_file(store: Any, path: str, value: bytes, **how: Any) -> None:
            if self.error is not None and "/checkpoints/" in path:
                raise self.error
            write(store, path, value, **how)

        s3.pipe_file = pipe_file  # type: ignore[method-assign, assignment]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with fake_s3() as s3:
        yield Bucket(s3)


def train(tmp_path: Path, bucket: Bucket, errors: dict[int, Exception | None]) -> Any:
    """The run's error or exit code, and the step at which it ended. A step takes twenty minutes,
    and a save is due after each. `errors`: of the bucket, from a step on."""
    here = RunHere(
        tmp_path / "run",
        ("storage=s3://bucket/runs", f"train_for={STEPS} steps", "checkpoint.every=1 steps"),
    )
    clock, stop = Steps(), NeverAsked()
    run = stop.run = here.open(clock=clock, stop=stop)
    objective = run.training.objective

    def slow(model: Any, batch: Batch) -> Loss:
        bucket.error = errors.get(run.training.step + 1, bucket.error)
        if model.training:
            clock.passed += STEP_SECONDS
        return objective(model, batch)

    run.training.objective = slow
    try:
        outcome: Exit | RunFailed = here.train(run)
    except RunFailed as error:
        outcome = error
    return outcome, run.training.step


@pytest.mark.parametrize(
    ("error", "hours"),
    [(DENIED, 1), (BUCKET_GONE, 1), (AWAY, 12), (DISK_FULL, 12)],
    ids=["no rights", "no bucket", "outage", "full disk"],
)
def test_it_does_not_train_for_days_when_nothing_is_saved(
    tmp_path: Path, bucket: Bucket, error: Exception, hours: int
) -> None:
    """An answer that would be the same again ends it much sooner than one that may pass."""
    outcome, step = train(tmp_path, bucket, {6: error})
    assert isinstance(outcome, RunFailed), f"{outcome} at step {step}: it has trained to the end"
    steps = hours * HOUR / STEP_SECONDS
    assert 5 + steps <= step <= 5 + steps + 3
    assert "s3://bucket/runs/it" in outcome.message
    assert f"for {hours} h" in outcome.message
    assert str(error) in outcome.message
    assert outcome.hint is not None
    assert "step 5 is saved" in outcome.hint
    assert "run the same command to resume" in outcome.hint


def test_from_the_first_save_on(tmp_path: Path, bucket: Bucket) -> None:
    outcome, step = train(tmp_path, bucket, {1: DENIED})
    assert isinstance(outcome, RunFailed), f"{outcome} at step {step}: it has trained to the end"
    assert step <= 6
    assert "nothing is saved yet" in str(outcome)


def test_what_passes_in_time_ends_nothing(tmp_path: Path, bucket: Bucket) -> None:
    """Eleven hours away, refused for forty minutes, and both again."""
    troubles = {6: AWAY, 39: None, 40: DENIED, 42: None, 44: AWAY, 77: None, 78: DENIED, 80: None}
    assert train(tmp_path, bucket, troubles) == (Exit.DONE, STEPS)


def test_an_outage_between_refusals_is_no_refusal(tmp_path: Path, bucket: Bucket) -> None:
    """As where a proxy answers for the store now and then."""
    troubles = {step: AWAY if step % 2 else DENIED for step in range(6, 36)}
    assert train(tmp_path, bucket, {**troubles, 36: None}) == (Exit.DONE, STEPS)
