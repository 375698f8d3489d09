"""Snapshots in the memory of a node: what is restored from them, when one is taken, and what
happens when that fails. Several nodes are in tests/local."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Timer, current_thread, main_thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headway.errors import PeerLost
from headway.memory_limits import Memory
from headway.spec.stepped_interval import SteppedInterval
from headway.state.run_directory import RunDirectory
from headway.train.peer_snapshots import MOST_FAILURES, PeerSnapshots
from headway.train.restore_peers import restore_from_peers
from headway.train.save import SaveSchedule
from headway.train.snapshot_memory import PartFacts, SnapshotMemory
from headway.train.snapshot_server import PartFailed, PartMissing, PartReader
from headway.train.step import Agreed
from headway.train.worker_run import _restore
from support.chains import begun, launched
from support.little import Little

EVERY = 10
DONE, FAILED = Agreed(snapshot_done=True), Agreed(snapshot_done=True, snapshot_failed=True)
BEGIN = {"begin": 1, "step": 0}


class Room(Memory):
    def __init__(self, free: int = 2**40) -> None:
        super().__init__()
        self.free = free

    def available_bytes(self) -> int:
        return self.free


class Node:
    """A worker of one node, and the memory that its predecessors have left."""

    def __init__(self, directory: RunDirectory, generation: int, room: Room | None = None) -> None:
        self.little = Little(directory, generation)
        folder = Path(directory.location).parent / "memory"
        self.memory = SnapshotMemory(folder, room or Room())
        little = self.little
        self.peers = PeerSnapshots(EVERY, self.memory, 1, little.journal, little.clock)
        self.lines: list[dict[str, Any]] = [BEGIN]
        self.recorder: Any = SimpleNamespace(
            settle=lambda: None, kept_records=lambda: [[], [], list(self.lines)]
        )

    def restore(self) -> PartFacts | None:
        little = self.little
        launched(little.directory)
        return restore_from_peers(
            little.train, self.peers, little.directory, little.chain, little.world, little.journal
        )

    def begin(self) -> Node:
        assert self.restore() is None
        self.little.begin()
        return self

    def step(self, count: int = 1, agreed: Agreed = DONE) -> None:
        for _ in range(count):
            self.peers.wait()
            self.little.advance(1)
            self.lines.append({"step": self.little.train.step, "generation": 1})
            self.peers.after_step(self.little.train, agreed, self.little.saver, self.recorder)
        self.peers.wait()

    def run(self, every: str = "10min", milestones: str | None = None) -> Any:
        """What a WorkerRun is to restoring."""
        little = self.little
        little.train.total_steps = 1000
        kept = None if milestones is None else SteppedInterval.parse(milestones)
        return SimpleNamespace(
            training=little.train,
            snapshots=self.peers,
            directory=little.directory,
            chain=little.chain,
            journal=little.journal,
            saver=little.saver,
            save_schedule=SaveSchedule(SteppedInterval.parse(every), kept, little.clock),
            recorder=SimpleNamespace(replace_kept_records=lambda records: None),
            clock=little.clock,
            built=SimpleNamespace(weights=None),
            evaluator=SimpleNamespace(sample=little.saver.sample),
        )

    @property
    def held_steps(self) -> list[int]:
        return sorted(one.name[0] for one in self.memory.held())


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, list):
        return isinstance(other, list) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def test_a_snapshot_is_restored_bit_for_bit_with_the_lines_of_the_logs(
    directory: RunDirectory,
) -> None:
    first = Node(directory, 1).begin()
    first.step(1)
    state = first.little.state()
    first.step(4)
    second = Node(directory, 2)
    found = second.restore()
    assert found is not None
    assert same(second.little.state(), state)
    assert second.peers.has_resumed
    assert found.records[2] == [BEGIN, {"step": 1, "generation": 1}]
    assert (found.saved, second.little.train.committed_in) == (None, 1)


def late_copies(node: Node, monkeypatch: pytest.MonkeyPatch) -> Event:
    """The copy of the state begins when this is set."""
    copies = node.peers._host_copies
    begin, start = Event(), copies.start

    def wait_and_start(source: torch.Tensor, target: torch.Tensor) -> None:
        if current_thread() is not main_thread():
            assert begin.wait(60)
        start(source, target)

    monkeypatch.setattr(copies, "start", wait_and_start)
    return begin


def test_the_state_is_copied_while_the_next_step_is_computed_and_its_update_waits(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Node(directory, 1).begin()
    begin = late_copies(first, monkeypatch)
    first.little.advance(1)
    state = first.little.state()
    first.peers.after_step(first.little.train, DONE, first.little.saver, first.recorder)
    Timer(0.5, begin.set).start()
    first.little.advance(1)
    assert begin.is_set(), "the update did not wait"
    first.peers.wait()
    second = Node(directory, 2)
    assert second.restore() is not None
    assert same(second.little.state(), state)


def test_what_a_forward_pass_changes_is_copied_at_once(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(directory, 1).begin()
    model = node.little.train.model
    model.register_buffer("calls", torch.zeros(()))
    begin = late_copies(node, monkeypatch)
    node.little.advance(1)
    node.peers.after_step(node.little.train, DONE, node.little.saver, node.recorder)
    model.get_buffer("calls").add_(1)
    begin.set()
    node.peers.wait()
    part = node.memory.find((1, 1), 0)
    assert part is not None
    assert load_file(part.path)["model/calls"] == 0


def test_lines_that_are_in_the_store_with_a_checkpoint_are_not_kept(
    directory: RunDirectory,
) -> None:
    first = Node(directory, 1).begin()
    first.step(3)
    first.little.save()
    first.step(9)
    found = Node(directory, 2).restore()
    assert found is not None
    assert found.name == (10, 1)
    assert found.saved == (3, 1)
    assert [line["step"] for line in found.records[2]] == list(range(4, 11))


def test_a_newer_checkpoint_is_taken_instead(directory: RunDirectory) -> None:
    first = Node(directory, 1).begin()
    first.step(3)
    first.little.save()
    second = Node(directory, 2)
    assert second.restore() is None
    assert second.little.restore() == 3


def test_one_that_a_later_generation_has_gone_back_behind_does_not_count(
    directory: RunDirectory,
) -> None:
    """It was taken by a node that was away since, and whose steps were taken again without it."""
    first = Node(directory, 1).begin()
    first.step(3)
    begun(directory, 2, 0)
    assert Node(directory, 3).restore() is None


def test_a_damaged_one_is_passed_over_with_the_reason(directory: RunDirectory) -> None:
    first = Node(directory, 1).begin()
    first.step(12)
    assert first.held_steps == [1, 10]
    newest = first.memory.find((10, 1), 0)
    assert newest is not None
    content = bytearray(newest.path.read_bytes())
    content[-1] ^= 1
    newest.path.write_bytes(content)
    second = Node(directory, 2)
    found = second.restore()
    assert found is not None
    assert found.name == (1, 1), "the one before it"
    (event,) = second.little.events("passed_over")
    assert event["checkpoint"] == "peers of step 10"
    assert event["reason"] == "rank-0.safetensors is damaged: wrong digest"


def damage(node: Node, step: int) -> None:
    found = node.memory.find((step, 1), 0)
    assert found is not None
    content = bytearray(found.path.read_bytes())
    content[-1] ^= 1
    found.path.write_bytes(content)


def test_a_run_never_begins_with_some_weights_of_a_damaged_one(directory: RunDirectory) -> None:
    """Some have been read when the damage is found, and there is no checkpoint to replace them."""
    first = Node(directory, 1).begin()
    first.step(3)
    damage(first, 1)
    second = Node(directory, 2)
    with pytest.raises(PeerLost, match="step 1 is damaged in the memory of the nodes"):
        _restore(second.run(), second.little.world)
    third = Node(directory, 3)
    assert third.held_steps == [], "new processes do not meet it again"
    assert _restore(third.run(), third.little.world) is None


def test_a_checkpoint_replaces_all_of_a_damaged_one(directory: RunDirectory) -> None:
    first = Node(directory, 1).begin()
    first.step(3)
    first.little.save()
    state = first.little.state()
    first.step(7)
    damage(first, 10)
    second = Node(directory, 2)
    assert _restore(second.run(), second.little.world) == 3
    assert same(second.little.state(), state)


@pytest.mark.parametrize(
    ("every", "milestones", "is_owed"),
    [
        ("8 steps", None, True),
        ("20 steps", None, False),
        ("10min", None, False),
        ("10min", "8 steps", True),
        ("3 steps", "20 steps", True),
        ("20 steps", "20 steps", False),
    ],
)
def test_a_checkpoint_that_was_being_written_is_due_at_once(
    directory: RunDirectory, every: str, milestones: str | None, is_owed: bool
) -> None:
    """Otherwise a loss during each of them would leave the run without any."""
    first = Node(directory, 1).begin()
    first.step(3)
    first.little.save()
    first.step(8)
    second = Node(directory, 2)
    run = second.run(every, milestones)
    assert _restore(run, second.little.world) == 10
    assert run.save_schedule.due(11) == is_owed


def test_one_that_was_saved_is_not_due_again(directory: RunDirectory) -> None:
    first = Node(directory, 1).begin()
    first.step(8)
    first.little.save()
    first.step(4)
    second = Node(directory, 2)
    run = second.run("8 steps", "4 steps")
    assert _restore(run, second.little.world) == 10
    assert not run.save_schedule.due(11)


def test_of_other_settings_none_is_taken(directory: RunDirectory) -> None:
    first = Node(directory, 1).begin()
    first.step(3)
    second = Node(directory, 2)
    second.little.train.feed.set.digest = "other"
    assert second.restore() is None
    (event,) = second.little.events("passed_over")
    assert "different data" in event["reason"]


def test_so_often_that_no_more_steps_than_asked_for_are_lost(directory: RunDirectory) -> None:
    node = Node(directory, 1).begin()
    node.step(1)
    assert node.held_steps == [1], "at once"
    node.step(2, Agreed())  # the others are not done yet
    node.step(1)
    assert node.held_steps == [1], "complete after 3 steps"
    node.step(3)
    assert node.held_steps == [1], "step 7: 6 after it"
    node.step(1)
    assert node.held_steps == [1, 8], "in 3 more steps it is complete, after 10 in all"


def test_one_that_takes_more_than_half_of_the_interval_is_said_once(
    directory: RunDirectory,
) -> None:
    node = Node(directory, 1).begin()
    for _ in range(3):
        node.step(1)
        node.step(5, Agreed())
    (event,) = node.little.events("snapshots_late")
    assert (event["lag"], event["every"]) == (6, EVERY)


def test_the_newest_complete_one_is_never_overwritten(directory: RunDirectory) -> None:
    node = Node(directory, 1).begin()
    node.step(10)
    assert node.held_steps == [1, 10]
    node.step(1, FAILED)  # on another node
    node.step(20, DONE)
    assert 1 not in node.held_steps
    assert len(node.held_steps) == 2
    complete = max(node.held_steps)
    node.step(30, FAILED)
    assert complete in node.held_steps
    assert node.peers.is_off


def test_a_node_that_the_others_cannot_reach_says_so_and_trains(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_COORDINATOR", "nowhere")
    node = Node(directory, 1).begin()
    assert node.peers.has_failed
    node.step(1, FAILED)
    (event,) = node.little.events("snapshot_failed")
    assert event["reason"] == "the others cannot reach this node: nowhere is not an address"


@pytest.mark.parametrize("has_memory", [True, False])
def test_without_memory_training_continues_without_snapshots(
    directory: RunDirectory, has_memory: bool
) -> None:
    node = Node(directory, 1, Room(100))
    if not has_memory:
        little = node.little
        node.peers = PeerSnapshots(EVERY, None, 1, little.journal, little.clock)
    node.begin()
    for _ in range(5 * EVERY):
        node.step(1, FAILED if node.peers.has_failed else DONE)
        if node.peers.is_off:
            break
    assert node.peers.is_off
    failed = node.little.events("snapshot_failed")
    assert len(failed) == MOST_FAILURES
    reason = "are needed and 0 KiB are free" if has_memory else "no folder in memory"
    assert reason in failed[0]["reason"]
    (off,) = node.little.events("snapshots_off")
    assert off["failures"] == MOST_FAILURES
    assert node.held_steps == []


def test_one_that_fails_for_whatever_reason_is_none(directory: RunDirectory) -> None:
    """Else it would count as complete everywhere, and the one before it be replaced."""
    node = Node(directory, 1).begin()
    node.lines.append({"step": 1, "generation": 1, "odd": object()})
    node.step(1)
    assert node.held_steps == []
    assert node.peers.has_failed
    node.step(1, FAILED)
    (event,) = node.little.events("snapshot_failed")
    assert event["reason"].startswith("TypeError: ")


@pytest.mark.parametrize("too_little", [True, False])
def test_the_neighbour_does_not_wait_for_a_part_that_has_failed(
    directory: RunDirectory, too_little: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(directory, 1, Room(100) if too_little else None).begin()
    peers, _ = node.peers.meet(node.little.world)
    assert peers.addresses[0] is not None
    reader = PartReader(peers.addresses[0], peers.token)
    with pytest.raises(PartMissing, match="part 0 of step 1 is not in the memory"):
        reader.facts((1, 1), 0)
    node.lines.append({"step": 1, "generation": 1, "odd": object()})
    node.step(1)
    never_sleeps: Any = SimpleNamespace(monotonic=node.little.clock.monotonic)
    monkeypatch.setattr(node.peers, "_clock", never_sleeps)
    with pytest.raises(PartFailed, match="rank 0 could not take its part of step 1"):
        node.peers._facts_of(reader, (1, 1), 0)
    reader.close()


def test_there_are_some_while_a_planned_change_waits_for_its_checkpoint(
    directory: RunDirectory,
) -> None:
    """The store fails: until it is back the run trains on, and may lose a node."""
    node = Node(directory, 1).begin()
    node.step(12, Agreed(over=True, snapshot_done=True))
    assert node.held_steps == [1, 10]
    node.step(12, Agreed(stop=True, snapshot_done=True))
    assert node.held_steps == [1, 10], "a worker that stops saves, or its run has failed"


def test_when_no_more_are_taken_only_the_newest_complete_one_takes_memory(
    directory: RunDirectory,
) -> None:
    node = Node(directory, 1).begin()
    node.step(12)
    assert node.held_steps == [1, 10]
    node.step(30, FAILED)
    assert node.peers.is_off
    assert node.held_steps == [10]
    files = [file.path for file in node.memory.files if file.path.exists()]
    found = node.memory.find((10, 1), 0)
    assert found is not None
    assert files == [found.path]
    assert Node(directory, 2).restore() is not None
