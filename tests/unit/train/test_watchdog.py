"""When training stands still: the stacks in the log, an event, and what is done about it."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from headway.clock import SystemClock
from headway.member.coordinator.rules import FIRST_STEP_SECONDS
from headway.state.run_directory import SEND_SECONDS, Journal, RunDirectory
from headway.train.__main__ import note_stuck
from headway.train.flight_recorder import collective_numbers
from headway.train.hang_rule import LATE_SECONDS, LEAST_SECONDS, MOST_STEPS
from headway.train.loop import may_leave
from headway.train.watchdog import Watchdog, abort
from support.clock import Patient
from support.fake_s3 import fake_s3
from support.waiting import wait_for


class Still(SystemClock):
    """Moves when it is told to. Whoever sleeps by it never wakes up: the test looks itself."""

    time = 100.0

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        threading.Event().wait()


@pytest.fixture
def clock() -> Still:
    return Still()


def test_it_fires_when_no_step_is_committed_for_long(
    clock: Still, capfd: pytest.CaptureFixture[str]
) -> None:
    barks: list[int] = []
    dog = Watchdog(clock, barks.append)
    clock.time += 10 * FIRST_STEP_SECONDS
    dog.look()
    assert barks == [], "not on duty"
    with dog.on_duty():
        clock.time += FIRST_STEP_SECONDS - 1
        dog.look()
        assert barks == [], "the first step of a process may take long"
        dog.committed()
    assert dog.waited_seconds == 0


def take_steps(dog: Watchdog, clock: Still, *seconds: float) -> None:
    for one in seconds:
        clock.time += one
        dog.committed()


def test_patience_does_not_follow_a_compile(clock: Still) -> None:
    dog = Watchdog(clock, lambda times: None)
    with dog.on_duty():
        take_steps(dog, clock, 300)
        assert dog.patience <= FIRST_STEP_SECONDS, "the second may compile something as well"
        take_steps(dog, clock, 1)
        assert dog.patience == LEAST_SECONDS
        take_steps(dog, clock, *[10] * 5)
        assert dog.patience == MOST_STEPS * 10
        take_steps(dog, clock, 400)
        assert dog.patience == MOST_STEPS * 10, "one slow step makes no other slow"


def test_a_worker_that_compiles_is_waited_for(clock: Still) -> None:
    dog = Watchdog(clock, lambda times: None)
    with dog.on_duty():
        take_steps(dog, clock, 300, 1, 1)
        dog.feed()
        assert dog.patience == FIRST_STEP_SECONDS, "the first evaluation compiles again"
        take_steps(dog, clock, 1)
        assert dog.patience == LEAST_SECONDS
    with dog.on_duty():
        assert dog.patience == FIRST_STEP_SECONDS, "a newcomer of this world does"
        take_steps(dog, clock, 1)
        assert dog.patience == LEAST_SECONDS


def test_without_a_compile_a_change_of_members_costs_no_patience(clock: Still) -> None:
    dog = Watchdog(clock, lambda times: None)
    with dog.on_duty():
        take_steps(dog, clock, 0.5, 0.5)
    with dog.on_duty():
        assert dog.patience == LEAST_SECONDS


def test_parts_of_an_evaluation_are_no_steps(clock: Still) -> None:
    dog = Watchdog(clock, lambda times: None)
    with dog.on_duty():
        take_steps(dog, clock, 30, 30)
        for _ in range(100):
            clock.time += 0.1
            dog.feed()
        take_steps(dog, clock, 30)
        assert dog.patience == MOST_STEPS * 30


def test_each_time_that_as_long_has_passed_again(
    clock: Still, capfd: pytest.CaptureFixture[str]
) -> None:
    barks: list[int] = []
    dog = Watchdog(clock, barks.append)
    with dog.on_duty():
        clock.time += 0.5
        dog.committed()
        for waited, told in ((60, []), (61, [1]), (119, [1]), (121, [1, 2])):
            clock.time = 100.5 + waited
            dog.look()
            assert barks == told
        assert (dog.patience, dog.waited_seconds) == (LEAST_SECONDS, 121)
        dog.committed()
        clock.time += dog.patience + 1
        dog.look()
        assert barks == [1, 2, 1]
    said = capfd.readouterr().err
    assert "no step for 61 s; stacks of all threads:" in said
    assert "test_each_time_that_as_long_has_passed_again" in said


def test_a_save_before_a_planned_change_takes_as_long_as_it_takes(clock: Still) -> None:
    barks: list[int] = []
    dog = Watchdog(clock, barks.append)

    def save_now(*_: object) -> bool:
        clock.time += 10 * FIRST_STEP_SECONDS
        dog.look()
        return False

    run: Any = SimpleNamespace(
        watchdog=dog,
        training=SimpleNamespace(step=9),
        recorder=SimpleNamespace(settle=lambda: None),
        saver=SimpleNamespace(save_now=save_now),
        validation_loss=None,
        next_leave_step=0,
        leave_pause=1,
    )
    worlds: Any = SimpleNamespace(saves_before_change=True)
    world: Any = None
    with dog.on_duty():
        take_steps(dog, clock, 1, 1)
        assert not may_leave(run, world, worlds)
        assert barks == []
        assert dog.waited_seconds == 0, "training continues, and has its whole time"
        clock.time += dog.patience + 1
        dog.look()
        assert barks == [1]


def test_a_late_step_is_reported_once_before_it_hangs(clock: Still) -> None:
    """On an accelerator, which may stand still without an error."""
    barks: list[int] = []
    dog = Watchdog(clock, barks.append, reports_late=True)
    with dog.on_duty():
        take_steps(dog, clock, 30.0, 2.0)
        clock.time += LATE_SECONDS
        dog.look()
        assert barks == []
        clock.time += 1
        dog.look()
        dog.look()
        assert barks == [0]
        clock.time += LEAST_SECONDS - LATE_SECONDS
        dog.look()
        assert barks == [0, 1]
        take_steps(dog, clock, 0.0, *[10.0] * 40)
        clock.time += 3 * 10.0
        dog.look()
        dog.feed()  # an evaluation: what follows may compile
        clock.time += LATE_SECONDS + 1
        dog.look()
        assert barks == [0, 1]


def test_it_reaches_an_object_store_from_any_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not lead, and whose own training stands still."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3() as s3:
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        clock = Patient()
        run: Any = SimpleNamespace(
            journal=Journal(directory.events, clock),
            training=SimpleNamespace(step=120, resolved=SimpleNamespace(ranks_per_node=2)),
            watchdog=SimpleNamespace(waited_seconds=61.4),
        )
        s3.troubles.append("refused")
        note_stuck(run, 2, None)
        (event,) = wait_for("the event", lambda: directory.history(), seconds=10)
        assert (event["event"], event["node"]) == ("stuck", 1)
        assert clock.slept == [SEND_SECONDS, 2 * SEND_SECONDS]
        note_stuck(run, 4, None)
        wait_for("the next", lambda: len(directory.history()) == 2, seconds=10)


@pytest.mark.parametrize("waits", [False, True, None])
def test_what_is_noted_of_it(directory: RunDirectory, waits: bool | None) -> None:
    run: Any = SimpleNamespace(
        journal=Journal(directory.events, SystemClock()),
        training=SimpleNamespace(step=120, resolved=SimpleNamespace(ranks_per_node=2)),
        watchdog=SimpleNamespace(waited_seconds=61.4),
    )
    note_stuck(run, 3, waits)
    run.journal.close()
    (event,) = directory.events.read()[0]
    del event["time"], event["collectives"]
    assert event == {
        "event": "stuck",
        "step": 120,
        "seconds": 61,
        "node": 1,
        "local_rank": 1,
        "waits": waits,
    }


def test_collectives_are_numbered_by_group(capfd: pytest.CaptureFixture[str]) -> None:
    before = collective_numbers() or {}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for _ in range(3):
            dist.all_reduce(torch.ones(2))
        wait_for("all to be recorded", lambda: [3, 3] in (collective_numbers() or {}).values())
        numbers = collective_numbers()
    finally:
        dist.destroy_process_group()
    assert numbers is not None
    assert [found for group, found in numbers.items() if before.get(group) != found] == [[3, 3]]
    assert "collectives that have not completed: [" in capfd.readouterr().err


def test_a_worker_that_ends_itself_leaves_no_core_dump() -> None:
    if (pid := os.fork()) == 0:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        faulthandler.disable()  # pytest's
        abort()
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)
