"""All workers restart together when one is lost, or when nodes come and go: a real run of three
nodes, as typed, that all of it happens to, one after the other. Their launcher and fork server
stay."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from support.commands import headway
from support.live import RUN_FILE, LiveRun, soon, write_run
from support.waiting import wait_for

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(300)]

TOLERANCE = 1e-5
SAVED_EVERY = 25


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Iterator[LiveRun]:
    run_file = f"{RUN_FILE}elastic: restart\ncheckpoint: {{every: {SAVED_EVERY} steps}}\n"
    folder = write_run(tmp_path_factory.mktemp("restart"), text, run_file)
    with LiveRun(folder, "it", 3) as run:
        run.wait_for_step(SAVED_EVERY + 5)
        yield run


def fork_servers(run: LiveRun) -> list[int]:
    children = psutil.Process(run.process.pid).children()
    return [child.pid for child in children if "headway.train.fork_server" in child.cmdline()]


def starts(run: LiveRun) -> list[tuple[int, int]]:
    """Number of workers, and the step from which they continued."""
    return [(event["workers"], event["step"]) for event in run.events("started")]


def wait_for_start(run: LiveRun, number: int, workers: int) -> None:
    """The start with that number, and steps after it."""
    wait_for(f"start {number}", lambda: len(starts(run)) >= number, 30)
    assert starts(run)[-1][0] == workers, run.output
    run.wait_for_step(starts(run)[-1][1] + 3)


def steps_taken(run: LiveRun) -> list[int]:
    return [line["step"] for line in run.directory.metrics.read()[0] if "step" in line]


def test_when_one_is_killed_all_restart_from_the_newest_checkpoint(run: LiveRun) -> None:
    for place in ((1, 0), (0, 0)):
        before, servers, number = run.workers(), fork_servers(run), len(starts(run))
        run.wait_for_step(run.step // SAVED_EVERY * SAVED_EVERY + SAVED_EVERY + 3)
        run.kill(place)
        wait_for_start(run, number + 1, 3)
        assert set(run.workers().values()).isdisjoint(before.values()), "all are new processes"
        assert fork_servers(run) == servers
        assert starts(run)[-1][1] % SAVED_EVERY == 0
    assert [event["node"] for event in run.events("lost")] == [1, 0], "the others are not blamed"
    for event in run.events("started"):
        assert event["meeting_seconds"].keys() == {"place", "device", "form"}
        assert event["seconds"].keys() == {"import", "build", "load"}
    assert "node 1 was killed by SIGKILL" in run.output


def test_one_that_dies_while_they_meet_again_is_replaced_as_well(run: LiveRun) -> None:
    run.wait_for_step(max(steps_taken(run)) + 3)  # else it would be the third loss on the way
    number, first = len(starts(run)), run.workers()[2, 0]
    run.kill((2, 0))
    # The one that was killed is listed until its launcher has seen it.
    successor = soon(
        "its successor", lambda: {run.workers().get((2, 0), first)} - {first}, 10
    ).pop()
    os.kill(successor, signal.SIGKILL)
    wait_for_start(run, number + 1, 3)
    assert len(starts(run)) <= number + 2


def test_planned_changes_lose_no_step(run: LiveRun) -> None:
    taken, lost, number = len(steps_taken(run)), run.events("lost"), len(starts(run))
    headway("scale", "--nodes", "2", "it", folder=run.folder)
    wait_for_start(run, number + 1, 2)
    wait_for("the end of node 2", lambda: (2, 0) not in run.workers(), 10)
    headway("scale", "--nodes", "3", "it", folder=run.folder)
    wait_for_start(run, number + 2, 3)
    leaver = run.workers()[1, 0]
    os.kill(leaver, signal.SIGTERM)  # as a machine does that is wanted back
    wait_for("its successor", lambda: run.workers().get((1, 0), leaver) != leaver, 30)
    wait_for("three workers", lambda: starts(run)[-1][0] == 3 and len(starts(run)) > number + 2, 30)
    run.wait_for_step(run.step + 3)
    assert all(after == before + 1 for before, after in pairwise(steps_taken(run)[taken:]))
    assert run.events("lost") == lost


def test_a_suspended_worker_is_found_by_its_silence(run: LiveRun) -> None:
    number, worker = len(starts(run)), run.workers()[1, 0]
    os.kill(worker, signal.SIGSTOP)
    wait_for_start(run, number + 1, 2)
    os.kill(worker, signal.SIGCONT)
    wait_for_start(run, number + 2, 3)


def test_its_coordinator_is_killed_and_then_a_worker(run: LiveRun) -> None:
    number, before, coordinator = len(starts(run)), run.step, run.coordinator()
    assert coordinator is not None
    coordinator.kill()
    run.wait_for_step(before + 10, 20)
    assert len(starts(run)) == number, "training does not need it"
    wait_for("another coordinator", lambda: run.coordinator() not in (None, coordinator), 10)
    run.kill((2, 0))
    wait_for_start(run, number + 1, 3)


def test_every_sample_was_seen_once_and_a_step_taken_again_has_the_same_loss(run: LiveRun) -> None:
    """Also the first steps, which nobody had touched: so they are those of a run left alone."""
    run.stop()
    assert not run.workers()
    run.require_exact()
    losses: dict[int, list[float]] = {}
    for line in run.directory.metrics.read()[0]:
        if "step" in line:
            losses.setdefault(line["step"], []).append(line["loss"])
    again = {step: found for step, found in losses.items() if len(found) > 1}
    assert len(again) >= 4
    assert min(again) <= SAVED_EVERY * 2 + 3
    assert max(max(found) - min(found) for found in again.values()) < TOLERANCE
