"""A script as a user runs it on one machine: a shell script that records its variables and signals
through everything that can happen to it, one after the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.state.status import read_status
from support.commands import headway
from support.live import LiveRun
from support.waiting import wait_for

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

RUN_FILE = """\
version: 1
name: it
command: [sh, train.sh, $HEADWAY_OUTPUT]
resources: {nodes: 2..4}
"""
SCRIPT = """\
note() { echo "$1" >> "$HEADWAY_OUTPUT/rank-$RANK"; }
end() { note "term of $WORLD_SIZE"; [ $RANK = 0 ] && sleep 1; note "saved"; exit 0; }
trap end TERM
note "start of $WORLD_SIZE in $(basename "$PWD") as node $GROUP_RANK with $1"
while [ ! -e "$HEADWAY_OUTPUT/finish" ]; do sleep 0.05; done
note done
"""
CHANGE_SECONDS = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("script")
    (made / "run.yaml").write_text(RUN_FILE)
    (made / "train.sh").write_text(SCRIPT)
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[LiveRun]:
    with LiveRun(folder, "it", 2) as run:
        wait_for_start(run, 1, 2)
        yield run


def wait_for_start(run: LiveRun, number: int, workers: int) -> None:
    def is_started() -> bool:
        starts = [event["workers"] for event in run.events("started")]
        return len(starts) >= number and starts[-1] == workers

    wait_for(f"start {number} of {workers} workers", is_started, CHANGE_SECONDS)
    wait_for("its processes", lambda: len(noted(run, "start")) == workers, CHANGE_SECONDS)


def noted(run: LiveRun, words: str) -> list[str]:
    """The last lines of ranks, as far as they begin so."""
    files = (Path(run.directory.location) / "output").glob("rank-*")
    last = [file.read_text().splitlines()[-1] for file in files]
    return [line for line in last if line.startswith(words)]


def test_it_has_its_place_and_an_output_folder(run: LiveRun) -> None:
    output = f"{run.directory.location}/output"
    assert sorted(noted(run, "start")) == [
        f"start of 2 in node-{rank} as node {rank} with {output}" for rank in (0, 1)
    ]


def test_a_lost_process_starts_all_again(run: LiveRun) -> None:
    before = run.workers()
    run.kill((1, 0))
    wait_for_start(run, 2, 2)
    assert set(before.values()).isdisjoint(run.workers().values())
    (lost,) = run.events("lost")
    assert lost["node"] == 1


def test_more_nodes_are_a_change_that_it_may_save_before(run: LiveRun) -> None:
    headway("scale", "--nodes", "3", "it", folder=run.folder)
    wait_for_start(run, 3, 3)
    (first,) = (Path(run.directory.location) / "output").glob("rank-0")
    assert first.read_text().splitlines()[-3:-1] == ["term of 2", "saved"]
    assert len(run.events("lost")) == 1


def test_a_node_that_is_asked_to_leave_is_replaced(run: LiveRun) -> None:
    leaver = run.workers()[2, 0]
    os.kill(leaver, signal.SIGTERM)
    wait_for("its successor", lambda: run.workers().get((2, 0), leaver) != leaver, CHANGE_SECONDS)
    wait_for_start(run, 4, 3)  # perhaps with two before it
    assert len(run.events("lost")) == 1


def test_stopped_it_has_saved_and_the_same_command_continues(run: LiveRun) -> None:
    headway("stop", "it", folder=run.folder)
    run.end(CHANGE_SECONDS)
    assert run.process.returncode == 6, run.output
    assert len(noted(run, "saved")) == 3, "each was asked, and rank 0 has taken its time"
    assert read_status(run.directory, 0.0).state == "stopped"
    number = len(run.events("started"))
    with LiveRun(run.folder, "it", 3) as again:
        wait_for_start(again, number + 1, 3)
        (Path(run.directory.location) / "output" / "finish").touch()
        again.end(CHANGE_SECONDS)
        assert again.process.returncode == 0, again.output
    assert len(noted(run, "done")) == 3
    assert read_status(run.directory, 0.0).state == "finished"
