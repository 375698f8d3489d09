"""A lost machine is a pause: a real run of three workers, as typed, with some of them killed,
stopped, sent away and added. One run that all of it happens to, one after the other: it is one run
to its user, too. In the end its ledger is exact. What needs a run of its own is in test_live.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import headway
from support.live import LiveRun, write_run
from support.waiting import wait_for
from support.workers import resolved_run, train

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(300)]

TOLERANCE, COMPARED_STEPS = 1e-5, 300
"""Later ones drift apart by rounding alone."""
RECOVER_SECONDS = 4.0
"""Of a target of 3 s and a step, on a machine where others work as well."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Iterator[LiveRun]:
    folder = write_run(tmp_path_factory.mktemp("live"), text)
    with LiveRun(folder, "it", 3) as run:
        run.wait_for_step(20)
        yield run
        if run.process.poll() is None:
            run.stop()
        run.require_exact()


@pytest.fixture
def run(shared: LiveRun) -> LiveRun:
    """As it was in the beginning."""
    shared.wait_for_members(3)
    shared.wait_for_step(shared.step + 5)
    return shared


def test_killed_workers_are_replaced_and_the_others_never_restarted(run: LiveRun) -> None:
    """Any of them, the leader among them, two at once."""
    first = run.workers()
    for victims in ([(1, 0)], [(0, 0)], [(1, 0), (2, 0)]):
        before, kept = run.step, {p: w for p, w in run.workers().items() if p not in victims}
        run.kill(*victims)
        run.wait_for_step(before + 3, RECOVER_SECONDS)
        run.wait_for_members(3)
        assert kept.items() <= run.workers().items()
    assert set(run.workers().values()).isdisjoint(first.values()), "each was killed once"
    assert "node 1 was killed by SIGKILL" in run.output


def test_a_suspended_worker_is_left_out_and_recovers_when_it_is_back(run: LiveRun) -> None:
    worker, before = run.workers()[1, 0], run.step
    os.kill(worker, signal.SIGSTOP)
    run.wait_for_step(before + 5, RECOVER_SECONDS)
    run.wait_for_members(2)
    time.sleep(3)
    os.kill(worker, signal.SIGCONT)
    run.wait_for_members(3)
    assert run.workers()[1, 0] == worker, "the same process"


def test_scaled_down_and_up_while_it_trains(run: LiveRun) -> None:
    """Planned changes discard nothing: no step is taken twice, by anyone."""
    (kept, lost), changes = (run.workers()[0, 0], run.events("lost")), len(run.events("changed"))
    headway("scale", "--nodes", "1", "it", folder=run.folder)
    run.wait_for_members(1)
    wait_for("the end of two", lambda: list(run.workers()) == [(0, 0)], 10)
    run.wait_for_step(run.step + 5)
    headway("scale", "--nodes", "4", "it", folder=run.folder)
    run.wait_for_members(4)
    run.wait_for_step(run.step + 5)
    assert run.workers()[0, 0] == kept
    assert "4 workers" in headway("status", "it", folder=run.folder).stdout
    headway("scale", "--nodes", "3", "it", folder=run.folder)
    run.wait_for_members(3)
    assert run.events("lost") == lost
    assert not any(event["discarded"] for event in run.events("changed")[changes:])


def test_one_that_is_asked_to_leave_leaves_at_a_boundary_and_is_replaced(run: LiveRun) -> None:
    """As a machine does that is wanted back: by SIGTERM from whoever wants it."""
    lost, changes = run.events("lost"), len(run.events("changed"))
    leaver = run.workers()[1, 0]
    os.kill(leaver, signal.SIGTERM)
    wait_for("its end", lambda: run.workers().get((1, 0)) != leaver, 5)
    wait_for("its successor", lambda: (1, 0) in run.workers(), 10)
    run.wait_for_members(3)
    assert run.events("lost") == lost
    assert not any(event["discarded"] for event in run.events("changed")[changes:])


def test_without_its_coordinator_training_continues(run: LiveRun) -> None:
    coordinator, before, changes = run.coordinator(), run.step, len(run.events("changed"))
    assert coordinator is not None
    coordinator.kill()
    run.wait_for_step(before + 10, RECOVER_SECONDS)
    assert len(run.events("changed")) == changes, "nobody had to change anything"
    wait_for("another coordinator", lambda: run.coordinator() not in (None, coordinator), 10)
    before = run.step
    run.kill((2, 0))
    run.wait_for_step(before + 3, 10)
    run.wait_for_members(3)
    assert run.events("coordinator_lost")


@pytest.mark.long("half a minute; the stop of a run that lost workers is in test_live.py")
def test_a_suspended_worker_does_not_delay_a_stop(run: LiveRun) -> None:
    """The last that happens to the run. Then every sample was seen once, and the losses are those
    of one process that nobody touches."""
    os.kill(run.workers()[2, 0], signal.SIGSTOP)
    run.wait_for_members(2)
    run.stop()
    assert not run.workers()
    assert "stopped" in headway("status", "it", folder=run.folder).stdout
    sets = {"train": run.directory.read_spec().train_set}
    overrides = ["name=alone", f"train_for={COMPARED_STEPS} steps"]
    alone = train(resolved_run(run.folder, sets, 1, overrides)).steps()
    assert len(alone) == COMPARED_STEPS
    pairs = zip(run.losses(), (line["loss"] for line in alone), strict=False)
    assert max(abs(one - other) for one, other in pairs) < TOLERANCE
