"""How workers meet that another launcher has started."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from headway.clock import SystemClock
from headway.errors import BadInput, Exit, PeerLost
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve
from headway.state.heartbeat import SignsOfLife
from headway.state.run_directory import Journal, RunDirectory
from headway.train import other_launcher
from headway.train.other_launcher import Given, OtherLauncher, Refused
from headway.train.stop_request import StopRequest
from support.waiting import wait_for
from support.workers import TEN_STEPS

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def store() -> TCPStore:
    """As an agent of torchrun has it: it outlives the workers of a start."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def worker(held: ExitStack, rank: int = 1) -> OtherLauncher:
    given = Given(rank, 2, 0, 1, "run.yaml", ())
    return OtherLauncher(given, SystemClock(), StopRequest(), held)


def lead(store: TCPStore, name: str) -> PrefixStore:
    store.set("headway/leader", name)
    return PrefixStore(f"headway/{name}", store)


def show_signs(meeting: PrefixStore, held: ExitStack) -> None:
    over = threading.Event()

    def show() -> None:
        while not over.wait(0.05):
            meeting.add("alive/0", 1)

    thread = threading.Thread(target=show)
    thread.start()
    held.callback(thread.join)
    held.callback(over.set)


def test_what_a_start_before_has_left_in_the_store_is_not_followed(
    store: TCPStore, held: ExitStack
) -> None:
    before = lead(store, "before")
    before.add("alive/0", 7)
    before.set("start/0", json.dumps({"launch": "old"}))
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(worker(held)._leader(store)))
    thread.start()
    thread.join(1.0)
    assert found == [], "nobody of that start is alive"
    show_signs(lead(store, "now"), held)
    thread.join(20.0)
    assert found == ["now"]


def test_rank_0_shows_its_life_while_it_waits_for_the_others(
    store: TCPStore, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that comes late has to see it, or both would wait for each other. Once both have
    begun there is nobody left to see it."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    leads = worker(held)
    leads.given = replace(leads.given, rank=0)
    mine = leads._connected()
    mine.set("headway/leader", "now")
    leads._show_life("headway/now")
    waiting = threading.Thread(target=lambda: mine.get("the late worker's address"))
    waiting.start()
    late = worker(held)
    assert late._leader(late._connected()) == "now"
    store.set("the late worker's address", "x")
    waiting.join()
    meeting = PrefixStore("headway/now", store)
    meeting.add("begun", 1)
    assert "headway-alive" in [thread.name for thread in threading.enumerate()]
    meeting.add("begun", 1)
    wait_for("its end", lambda: "headway-alive" not in [one.name for one in threading.enumerate()])


def test_a_rank_0_that_never_comes_is_named(
    store: TCPStore, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_launcher, "SILENT_SECONDS", 0.5)
    with pytest.raises(PeerLost, match=r"waited \d s for rank 0 to start"):
        worker(held)._leader(store)


def test_a_refusal_reaches_all_with_its_exit_code(store: TCPStore, held: ExitStack) -> None:
    meeting = PrefixStore("headway/now", store)

    def refuse() -> dict[str, str]:
        raise BadInput("run.yaml:2:1: modle: no such key")

    with pytest.raises(BadInput):
        worker(held, 0 + 1)._posted(meeting, refuse)
    with pytest.raises(Refused, match="modle") as caught:
        worker(held)._read(meeting, 1, "worker 1")
    assert caught.value.exit_code == Exit.BAD_INPUT


def test_a_failure_of_any_worker_is_recorded_by_rank_0(
    store: TCPStore, held: ExitStack, tmp_path: Path
) -> None:
    directory = RunDirectory.create(tmp_path / "it", SystemClock())
    leads, other = worker(held), worker(held)
    leads._journal = Journal(directory.launcher, SystemClock())
    meeting = PrefixStore("headway/now", store)
    leads._note_failure(meeting, None)
    assert directory.launcher.read()[0] == [], "a loss is no failure"
    other._note_failure(meeting, "step 7: loss.py:3: KeyError\nhint: look at loss.py")
    leads._note_failure(meeting, None)
    (failed,) = directory.launcher.read()[0]
    assert (failed["event"], failed["node"], failed["hint"]) == ("failed", 1, "look at loss.py")
    assert failed["message"] == "step 7: loss.py:3: KeyError"


def resolved_in(folder: Path) -> Resolved:
    (folder / "run.yaml").write_text(TEN_STEPS)
    hardware = Hardware(cores=2, cuda_devices=0)
    sets: dict[str, Path] = {}
    return resolve(
        load_run(folder), hardware, nodes=1, parameters=None, train_set="s", validation_sets=sets
    )


def test_a_run_directory_that_is_not_shared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_launcher, "SHARED_SECONDS", 0.5)
    resolved, clock = resolved_in(tmp_path), SystemClock()
    with pytest.raises(BadInput, match="is not the folder that rank 0 has there"):
        other_launcher._require_shared(resolved, "now", clock, StopRequest())
    directory = RunDirectory.create(resolved.run_directory, clock)
    with (
        SignsOfLife(directory, "before", clock),
        pytest.raises(BadInput, match="a folder that all machines mount"),
    ):
        other_launcher._require_shared(resolved, "now", clock, StopRequest())
    with SignsOfLife(directory, "now", clock):
        other_launcher._require_shared(resolved, "now", clock, StopRequest())


def test_without_a_launcher_it_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput) as caught:
        Given.read(["my.yaml"])
    assert "RANK, WORLD_SIZE" in caught.value.message
    assert "torchrun --standalone --nproc-per-node=1 -m headway.train my.yaml" in str(caught.value)


def test_workers_are_counted_machine_by_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    given = Given.read(["run.yaml", "--set", "train_for=5 steps"])
    assert (given.node, given.nodes, given.overrides) == (1, 2, ("train_for=5 steps",))
    monkeypatch.setitem(os.environ, "LOCAL_WORLD_SIZE", "3")
    with pytest.raises(BadInput, match="the same number on each"):
        Given.read(["run.yaml"])
