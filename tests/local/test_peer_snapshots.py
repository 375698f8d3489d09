"""Snapshots in the memory of the nodes of a sharded run: a real run of three nodes that loses one
after the other, with its memory. Nodes of one machine have a folder each in its memory."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.launch.folder_in_memory import memory_path
from headway.state.checkpoints import find_checkpoint
from headway.state.run_directory import RunDirectory
from headway.train.snapshot_choice import HeldPart
from headway.train.snapshot_memory import SnapshotMemory
from support.commands import headway
from support.live import RUN_FILE, LiveRun, write_run
from support.waiting import wait_for

pytestmark = [
    pytest.mark.local,
    pytest.mark.chaos,
    pytest.mark.timeout(900),
    pytest.mark.long("a minute; off by default"),
]

EVERY, SAVED_AT, NODES = 20, 100, 3
SECONDS = 240.0
SHARDED = f"{RUN_FILE}shard: all\nelastic: restart\n"
CHECKPOINTS = f"every: {SAVED_AT} steps, keep: {{last: 50}}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, text: Path) -> RunDirectory:
    """The same run, which loses nobody."""
    run_file = SHARDED.replace("100000 steps", f"{SAVED_AT} steps")
    folder = write_run(tmp_path_factory.mktemp("alone"), text, run_file)
    headway("run", "--nodes", str(NODES), folder=folder, seconds=2 * SECONDS)
    return RunDirectory(folder / "runs" / "it")


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, text: Path, alone: RunDirectory
) -> Iterator[LiveRun]:
    run_file = f"{SHARDED}checkpoint: {{{CHECKPOINTS}, peers: {EVERY} steps}}\n"
    folder = write_run(tmp_path_factory.mktemp("peers"), text, run_file)
    with LiveRun(folder, "it", NODES) as run:
        run.wait_for_step(5)
        yield run


def memory_of(run: LiveRun, node: int) -> Path:
    return memory_path(run.directory.location) / f"node-{node}"


def held(run: LiveRun, node: int) -> list[HeldPart]:
    folder = memory_of(run, node) / "rank-0"
    return SnapshotMemory(folder).held() if folder.exists() else []


def newest_everywhere(run: LiveRun) -> int:
    """Step of the newest snapshot of which every node has its own part and a neighbour's."""
    steps = []
    for node in range(NODES):
        names = [one.name for one in held(run, node)]
        steps.append({name[0] for name in names if names.count(name) == 2})
    return max(set.intersection(*steps), default=0)


def starts(run: LiveRun) -> list[dict[str, int]]:
    return run.events("started")


def steps_taken(run: LiveRun) -> list[int]:
    return [line["step"] for line in run.directory.metrics.read()[0] if "step" in line]


def lose(run: LiveRun, *nodes: int) -> int:
    """These machines go, with all that they hold. Returns the step of a snapshot that was complete
    then."""
    number, before = len(starts(run)), newest_everywhere(run)
    wait_for("another snapshot", lambda: newest_everywhere(run) > before, SECONDS)
    seen, workers = newest_everywhere(run), run.workers()
    for node in nodes:
        os.kill(workers[node, 0], signal.SIGSTOP)
    for node in nodes:
        shutil.rmtree(memory_of(run, node))
        os.kill(workers[node, 0], signal.SIGKILL)
    wait_for("a start", lambda: len(starts(run)) > number, SECONDS)
    run.wait_for_step(starts(run)[-1]["step"] + 3)
    return seen


@pytest.mark.parametrize("node", [1, 0])
def test_a_lost_node_costs_no_more_steps_than_the_interval(run: LiveRun, node: int) -> None:
    taken = len(steps_taken(run))
    seen = lose(run, node)
    resumed = starts(run)[-1]
    assert resumed["from_peers"], run.output
    assert resumed["workers"] == NODES
    assert resumed["resumed_from"] == resumed["step"] >= seen
    since = steps_taken(run)[taken:]
    last = since[: since.index(resumed["step"] + 1, since.index(seen))][-1]
    assert last - resumed["step"] <= EVERY
    assert run.events("saved") == [], "nothing else could have been restored"


def test_it_has_the_weights_of_a_run_that_lost_nobody(run: LiveRun, alone: RunDirectory) -> None:
    run.wait_for_step(SAVED_AT, SECONDS)
    wait_for("a checkpoint", lambda: run.events("saved"), SECONDS)
    assert [one["workers"] for one in starts(run)] == [NODES] * 3
    assert digests(run.directory) == digests(alone)


def digests(directory: RunDirectory) -> dict[str, object]:
    """Of each file of tensors of the checkpoint."""
    _, manifest = find_checkpoint(directory, SAVED_AT)
    return {name: file.model_dump() for name, file in manifest.files.items()}


@pytest.mark.long("waits for a suspended worker to be given up; fewer restore as anywhere")
def test_fewer_nodes_share_what_more_had(run: LiveRun) -> None:
    """One is suspended: its neighbour has its part. When it is back, all save first."""
    wait_for("a snapshot", lambda: newest_everywhere(run) > SAVED_AT, SECONDS)
    number, worker, seen = len(starts(run)), run.workers()[1, 0], newest_everywhere(run)
    os.kill(worker, signal.SIGSTOP)
    wait_for("a start", lambda: len(starts(run)) > number, SECONDS)
    resumed = starts(run)[-1]
    assert (resumed["workers"], resumed["from_peers"]) == (NODES - 1, True)
    assert resumed["step"] >= seen
    run.wait_for_step(resumed["step"] + 2 * EVERY, SECONDS)
    os.kill(worker, signal.SIGCONT)
    wait_for("another start", lambda: len(starts(run)) > number + 1, SECONDS)
    assert not starts(run)[-1]["from_peers"], "a planned change saves"


def test_two_neighbours_at_once_cost_the_steps_since_the_checkpoint(run: LiveRun) -> None:
    wait_for("three", lambda: starts(run)[-1]["workers"] == NODES, SECONDS)
    lose(run, 0, 1)
    resumed = starts(run)[-1]
    assert not resumed["from_peers"]
    assert resumed["step"] in [one["step"] for one in run.events("saved")]


def test_every_sample_was_seen_once_and_nothing_is_left_in_memory(run: LiveRun) -> None:
    run.stop()
    run.require_exact()
    assert run.events("snapshot_failed") == []
    assert not memory_of(run, 0).parent.exists()
