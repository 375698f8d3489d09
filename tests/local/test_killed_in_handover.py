"""A worker is killed while a newcomer receives the run's state: a holder that sends it, the leader,
or the newcomer itself. The others are free at once, and the next generation heals it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.live import RUN_FILE, LiveRun, num_sockets, soon, write_run

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(300)]

NODES = 3
LARGER = RUN_FILE.replace("n_layer: 2, n_head: 2, n_embd: 32", "n_layer: 8, n_head: 2, n_embd: 256")
"""6.4M parameters, 77 MB of state: it takes a while to send."""
SECONDS = 60.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Iterator[LiveRun]:
    folder = write_run(tmp_path_factory.mktemp("handover"), text, LARGER)
    with LiveRun(folder, "it", NODES) as run:
        run.wait_for_step(3)
        yield run


MORE = pytest.mark.long("the gate kills the leader")


@pytest.mark.parametrize(
    "victim",
    ["leader", pytest.param("holder", marks=MORE), pytest.param("newcomer", marks=MORE)],
)
def test_all_continue_and_the_newcomer_is_healed(shared: LiveRun, victim: str) -> None:
    run = shared
    run.wait_for_members(NODES)
    before, (_, *others) = run.generation().number, run.members()
    place = (others[-1], 0)
    predecessor = run.workers()[place]
    run.kill(place)
    soon("its successor", lambda: run.workers().get(place, predecessor) != predecessor, SECONDS)
    newcomer = run.workers()[place]
    soon("its admission", lambda: _is_admitted(run, before), SECONDS)
    idle, (leader, *others) = num_sockets(newcomer), run.members()
    chosen = {"leader": leader, "holder": min({*others} - {place[0]}), "newcomer": place[0]}
    killed = run.workers()[chosen[victim], 0]
    # First it listens; then it is connected with the others, and the state follows.
    soon("its group", lambda: num_sockets(newcomer) >= idle + NODES, SECONDS)
    os.kill(killed, signal.SIGKILL)
    run.wait_for_step(run.step + 3, SECONDS)
    run.wait_for_members(NODES, SECONDS)
    run.wait_for_step(run.step + 3, SECONDS)
    assert not run.events("diverged")


def test_nothing_was_lost_or_repeated(shared: LiveRun) -> None:
    shared.stop()
    shared.require_exact()


def _is_admitted(run: LiveRun, before: int) -> bool:
    newest = run.generation()
    return newest.number > before and len(newest.domains) == NODES
