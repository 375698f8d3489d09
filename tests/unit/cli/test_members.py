"""The members of a run in words: `headway status`, and the lines of `headway run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.cli.members import change_text, newest_launch, readable_names, stuck_text
from headway.cli.progress import FOLD_SECONDS, RunProgress
from headway.clock import SystemClock
from headway.member.coordinator.record import NOTHING, Entry, StoreRecord
from headway.member.protocol.generation import Domain, Generation
from headway.state.record_log import FileLog
from headway.state.run_directory import Journal, RunDirectory
from headway.state.store import Store
from support.in_process import Headway

TOKEN = "0123456789abcdef"


class Set(SystemClock):
    """Says the time it is set to; each event has one of its own."""

    time = 1_700_049_600.0

    def now(self) -> float:
        self.time += 0.01
        return self.time

    def monotonic(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Set:
    return Set()


@pytest.fixture
def directory(folder: Path) -> RunDirectory:
    (folder / "run.yaml").write_text("version: 1\nname: it\nmodel: {type: gpt2}\n")
    return RunDirectory.create(folder / "runs" / "it", SystemClock())


Happens = Callable[..., None]


@pytest.fixture
def happens(directory: RunDirectory, clock: Set) -> Happens:
    seen_by_launcher = ("launched", "worker", "lost", "scaled")

    def note(event: str, **facts: Any) -> None:
        log = directory.launcher if event in seen_by_launcher else directory.events
        Journal(log, clock).note(event, **facts)

    return note


def start(happens: Happens, mode: str, nodes: int, ranks: int = 1) -> None:
    happens("launched", mode=mode, nodes=nodes, workers=nodes * ranks)
    for node in range(nodes):
        for rank in range(ranks):
            name, pid = f"node-{node}.1/{rank}", 100 + 10 * node + rank
            happens("worker", node=node, local_rank=rank, pid=pid, name=name)
    happens(
        "started",
        step=0,
        total_steps=300,
        tokens_per_step=100,
        parameters=1000,
        resumed_from=None,
        device="cpu",
        no_mfu=None,
        workers=nodes * ranks,
        generation=1,
        seconds={"import": 0.5, "build": 0.25, "load": 0.0},
    )


def change(happens: Happens, generation: int, workers: int, reason: str, **more: Any) -> None:
    facts = {"step": 30, "discarded": False, "seconds": 0.72, **more}
    happens("changed", generation=generation, workers=workers, reason=reason, **facts)


def record(directory: RunDirectory, number: int, *domains: list[str], leader: int = 0) -> None:
    """As the coordinator writes it."""
    made = tuple(Domain(tuple(f"{pod}.{TOKEN}" for pod in pods), 1, True) for pods in domains)
    generation = Generation(number, 1, made, leader, False, (), "")
    store = Store(directory.store.location("members"))
    assert StoreRecord(store, directory.name).swap(NOTHING, Entry(1, 1, generation))


def members(text: str) -> list[str]:
    """What is said of them, and who they are."""
    lines = text.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("members"))
    found = [lines[at][12:]]
    while lines[at + 1].startswith(" "):
        at += 1
        found.append(lines[at][12:])
    return found


# --- words


@pytest.mark.parametrize(
    ("text", "ranks", "words"),
    [
        ("node-1.1/0 is lost: no heartbeat", 1, "node 1 is lost: no heartbeat"),
        ("node-12.3/0 is ready, and 1 more", 1, "node 12 is ready, and 1 more"),
        ("node-1.1/0 leaves as planned", 2, "node 1 rank 0 leaves as planned"),
        ("node-0.1/0, node-1.2/1", 2, "node 0 rank 0, node 1 rank 1"),
        ("worker 3", 1, "worker 3"),
    ],
)
def test_names_are_for_programs(text: str, ranks: int, words: str) -> None:
    assert readable_names(text, ranks) == words


@pytest.mark.parametrize(
    ("reason", "workers", "before", "words"),
    [
        ("is lost: no heartbeat", 2, 3, "node 1 is lost: no heartbeat; 2 workers continue"),
        ("is lost: no heartbeat", 1, 2, "node 1 is lost: no heartbeat; 1 worker continues"),
        (
            "is lost: no heartbeat",
            3,
            3,
            "node 1 is lost: no heartbeat; 3 workers continue, one of them new",
        ),
        ("is lost: no heartbeat", 3, None, "node 1 is lost: no heartbeat; 3 workers continue"),
        ("is ready", 4, 3, "node 1 is ready; 4 workers continue"),
    ],
)
def test_a_change(reason: str, workers: int, before: int | None, words: str) -> None:
    facts = {"reason": f"node-1.1/0 {reason}", "workers": workers, "seconds": 0.72}
    calm = {**facts, "discarded": False}
    assert change_text(calm, before, 1) == f"{words} (0.7 s)"
    broken = {**facts, "discarded": True}
    assert change_text(broken, before, 1) == f"{words} (0.7 s, its unfinished step discarded)"


# --- status


def test_members_of_a_live_run(headway: Headway, directory: RunDirectory, happens: Happens) -> None:
    start(happens, "live", 3)
    happens("worker", node=1, local_rank=0, pid=999, name="node-1.2/0")
    change(happens, 2, 3, "node-1.1/0 is lost: its connection closed", discarded=True)
    record(directory, 2, ["node-0.1/0"], ["node-2.1/0"], ["node-1.2/0"], leader=1)
    with directory.held():
        said = headway("status")
        found = json.loads(headway("status", "--json").out)
    assert members(said.out) == [
        "3 workers (live), generation 2",
        "node 0: pid 100",
        "node 1: pid 999",
        "node 2: pid 120, leader",
    ]
    assert (
        "  node 1 is lost: its connection closed; 3 workers continue, one of them new "
        "(0.7 s, its unfinished step discarded)\n"
    ) in said.out
    assert (found["mode"], found["wanted_nodes"], found["workers"]) == ("live", 3, 3)
    assert found["members"][1] == {
        "name": "node-1.2/0",
        "node": 1,
        "local_rank": 0,
        "pid": 999,
        "leads": False,
    }
    assert "\nmembers" not in headway("status").out, "it has ended"
    assert json.loads(headway("status", "--json").out)["members"] == []


def test_members_of_a_new_generation_are_listed_before_it_trains(
    headway: Headway, directory: RunDirectory, happens: Happens
) -> None:
    """When a run stands still, that takes long, and people want to know whom to kill."""
    start(happens, "live", 2)
    record(directory, 2, ["node-0.1/0"])
    with directory.held():
        assert members(headway("status").out) == [
            "2 workers (live), generation 1",
            "node 0: pid 100, leader",
        ]


def test_ranks_of_a_node_that_shards(
    headway: Headway, directory: RunDirectory, happens: Happens
) -> None:
    start(happens, "live", 2, ranks=2)
    nodes = [[f"node-{node}.1/{rank}" for rank in range(2)] for node in range(2)]
    record(directory, 1, *nodes, leader=1)
    with directory.held():
        assert members(headway("status").out) == [
            "4 workers (live), generation 1",
            "node 0 rank 0: pid 100",
            "node 0 rank 1: pid 101",
            "node 1 rank 0: pid 110, leader",
            "node 1 rank 1: pid 111",
        ]


def test_members_of_a_run_that_restarts_when_one_is_lost(
    headway: Headway, directory: RunDirectory, happens: Happens
) -> None:
    start(happens, "restart", 2)
    for node in range(2):
        happens("worker", node=node, local_rank=0, pid=200 + node, name=f"node-{node}.2/0")
    with directory.held():
        assert members(headway("status").out) == [
            "2 workers (restart), generation 1",
            "node 0: pid 200, leader",
            "node 1: pid 201",
        ]


def test_not_all_wanted_nodes_are_there_yet(
    headway: Headway, directory: RunDirectory, happens: Happens
) -> None:
    start(happens, "live", 3)
    happens("scaled", nodes=5, before=3)
    with directory.held():
        assert members(headway("status").out) == ["3 workers on 3 of 5 nodes (live), generation 1"]
        change(happens, 2, 5, "node-3.1/0 is ready, and 1 more")
        assert members(headway("status").out)[0] == "5 workers (live), generation 2"


@pytest.mark.parametrize(("nodes", "lines"), [(8, 9), (9, 1)])
def test_many_members_are_shown_as_a_number(
    headway: Headway, directory: RunDirectory, happens: Happens, nodes: int, lines: int
) -> None:
    start(happens, "live", nodes)
    record(directory, 1, *([f"node-{node}.1/0"] for node in range(nodes)))
    with directory.held():
        assert len(members(headway("status").out)) == lines
        assert len(json.loads(headway("status", "--json").out)["members"]) == nodes


def test_a_damaged_record_loses_only_the_list(
    headway: Headway, directory: RunDirectory, happens: Happens
) -> None:
    start(happens, "live", 2)
    directory.store.write("members/000000000001.json", b"{")
    with directory.held():
        assert members(headway("status").out) == ["2 workers (live), generation 1"]


def test_history_is_read_once(
    headway: Headway, directory: RunDirectory, happens: Happens, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(happens, "live", 2)
    reads: list[str] = []
    real = FileLog.pieces

    def noted(self: FileLog, *arguments: Any) -> Any:
        reads.append(self.path.stem)
        return real(self, *arguments)

    monkeypatch.setattr(FileLog, "pieces", noted)
    with directory.held():
        headway("status")
    assert sorted(reads) == ["evaluations", "events", "launcher", "metrics"]


# --- training that stands still


def stuck(happens: Happens, node: int, waits: bool | None, step: int = 120, **more: Any) -> None:
    facts = {"step": step, "seconds": 61, "node": node, "local_rank": 0, "waits": waits}
    happens("stuck", **{**facts, **more})


def test_status_says_that_it_is_stuck_until_a_step_completes(
    headway: Headway, directory: RunDirectory, happens: Happens
) -> None:
    start(happens, "live", 3)
    with directory.held():
        assert "warning" not in headway("status").out
        stuck(happens, 0, waits=True, step=0)
        stuck(happens, 1, waits=False, step=0)
        assert (
            "warning     no step for 61 s after step 0; node 1 is not waiting for others: "
            "headway logs it --node 1 --rank 0\n"
        ) in headway("status").out
        change(happens, 2, 2, "node-1.1/0 is lost: did not enter the generation in time")
        assert "warning" not in headway("status").out
        stuck(happens, 0, waits=True, step=0)
        assert "see what the workers are doing: headway logs it --all\n" in headway("status").out
        figures = {"loss": 2.5, "tokens_per_second": 9.0, "seconds": 1.0, "data_seconds": 0.0}
        directory.metrics.append({"step": 1, "time": "2023-11-15T12:00:09.000Z", **figures})
        assert "warning" not in headway("status").out, "a step was committed"


@pytest.mark.parametrize(
    ("reports", "where"),
    [
        (
            [(0, True), (1, False)],
            "node 1 is not waiting for others: headway logs it --node 1 --rank 0",
        ),
        ([(0, True), (1, True)], "see what the workers are doing: headway logs it --all"),
        ([(0, False), (1, False)], "see what the workers are doing: headway logs it --all"),
        ([(0, None)], "see what the workers are doing: headway logs it --all"),
    ],
)
def test_where_to_look(reports: list[tuple[int, bool | None]], where: str) -> None:
    facts = {"step": 7, "local_rank": 0}
    said = [
        {**facts, "node": node, "waits": waits, "seconds": 61 + node} for node, waits in reports
    ]
    assert stuck_text(said, "it", 1).endswith(f" s after step 7; {where}")
    assert stuck_text(said, "it", 1).startswith(f"no step for {61 + len(said) - 1} s")


def test_all_wait_and_one_has_begun_fewer_collectives() -> None:
    """Of groups that not all are in, only what is in several reports is compared."""
    facts = {"step": 7, "waits": True, "seconds": 61}
    numbers = [{"0": [90, 89], "1": [7, 7]}, {"0": [88, 88], "2": [3, 3]}, None]
    said = [
        {**facts, "node": rank // 2, "local_rank": rank % 2, "collectives": found}
        for rank, found in enumerate(numbers)
    ]
    where = (
        "node 0 rank 1 has begun fewer collectives than others: headway logs it --node 0 --rank 1"
    )
    assert stuck_text(said, "it", 2).endswith(where)


# --- the lines of `headway run`


@pytest.fixture
def progress(directory: RunDirectory, clock: Set) -> RunProgress:
    return RunProgress(directory, clock)


def lines(progress: RunProgress, capsys: pytest.CaptureFixture[str]) -> list[str]:
    progress.show()
    return capsys.readouterr().err.splitlines()


def test_changes_are_reported_as_they_come(
    progress: RunProgress, happens: Happens, capsys: pytest.CaptureFixture[str]
) -> None:
    start(happens, "live", 3)
    happens("lost", node=1, local_rank=0, how="was killed by SIGKILL")
    change(happens, 2, 3, "node-1.1/0 is lost: its connection closed", discarded=True)
    change(happens, 3, 2, "node-2.1/0 is lost: no heartbeat")
    happens("diverged", step=100, names=["node-1.2/0"])
    assert lines(progress, capsys)[1:] == [
        "node 1 was killed by SIGKILL; restarting it",
        "step 30: node 1 is lost: its connection closed; 3 workers continue, one of them new "
        "(0.7 s, its unfinished step discarded)",
        "step 30: node 2 is lost: no heartbeat; 2 workers continue (0.7 s)",
        "warning: step 100: the weights of node 1 differ from the majority, perhaps by a memory "
        "error; restarting it",
    ]


def test_a_first_save_that_fails_names_no_other(
    progress: RunProgress, happens: Happens, capsys: pytest.CaptureFixture[str]
) -> None:
    start(happens, "restart", 1)
    facts = {"reason": "No space left on device", "last_good_age_seconds": 60}
    happens("save_failed", step=20, last_good_step=None, **facts)
    happens("save_failed", step=40, last_good_step=20, **facts)
    assert lines(progress, capsys)[1:] == [
        "warning: step 20 could not be saved: No space left on device; no checkpoint yet; retrying",
        "warning: step 40 could not be saved: No space left on device; the newest checkpoint is of "
        "step 20, 1:00 old; retrying",
    ]


def test_ranks_are_named_where_a_node_has_several(
    progress: RunProgress, happens: Happens, capsys: pytest.CaptureFixture[str]
) -> None:
    start(happens, "live", 2, ranks=2)
    happens("lost", node=1, local_rank=1, how="was killed by SIGKILL")
    change(happens, 2, 2, "node-1.1/0 is lost, and 1 more: its connection closed")
    said = lines(progress, capsys)[1:]
    assert said[0] == "node 1 rank 1 was killed by SIGKILL; restarting it"
    assert said[1].startswith(
        "step 30: node 1 rank 0 is lost, and 1 more: its connection closed; 2 "
    )


def test_what_all_workers_report_is_one_line(
    progress: RunProgress, happens: Happens, clock: Set, capsys: pytest.CaptureFixture[str]
) -> None:
    start(happens, "live", 3)
    lines(progress, capsys)
    stuck(happens, 0, waits=True)
    assert lines(progress, capsys) == [], "the others are about to say the same"
    stuck(happens, 1, waits=False, seconds=62)
    stuck(happens, 2, waits=True)
    clock.time += FOLD_SECONDS
    assert lines(progress, capsys) == [
        "warning: no step for 62 s after step 120; node 1 is not waiting for others: "
        "headway logs it --node 1 --rank 0"
    ]
    stuck(happens, 0, waits=True, seconds=122)
    clock.time += FOLD_SECONDS
    assert lines(progress, capsys) == [], "still the same step"
    stuck(happens, 0, waits=True, step=121)
    progress.close()
    assert lines(progress, capsys) == []
    clock.time += FOLD_SECONDS
    assert [line[:40] for line in lines(progress, capsys)] == [
        "warning: no step for 61 s after step 121"
    ]


def test_a_last_moment_report_is_not_lost(
    progress: RunProgress, happens: Happens, capsys: pytest.CaptureFixture[str]
) -> None:
    start(happens, "live", 2)
    stuck(happens, 0, waits=None)
    lines(progress, capsys)
    progress.close()
    assert "headway logs it --all" in capsys.readouterr().err


def test_the_newest_start_counts() -> None:
    events = [
        {"event": "launched", "mode": "live", "nodes": 3, "workers": 3},
        {"event": "worker", "name": "node-0.1/0", "pid": 5},
        {"event": "scaled", "nodes": 5},
        {"event": "launched", "mode": "restart", "nodes": 1, "workers": 2},
    ]
    found = newest_launch(events)
    assert (found.mode, found.ranks, found.wanted_nodes, found.pids) == ("restart", 2, 1, {})
