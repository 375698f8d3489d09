"""Which snapshot in the nodes' memory a run resumes from: the newest of which every part has a
holder, whoever was lost and at whatever moment."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.train.snapshot_choice import (
    HeldPart,
    Name,
    WholeSnapshot,
    neighbour,
    whole_snapshots,
)
from headway.train.snapshot_memory import PartFacts, SnapshotMemory


def part(step: int, number: int, of: int = 3, generation: int = 1) -> HeldPart:
    return HeldPart((step, generation), number, of)


def test_the_newest_of_which_every_part_has_a_holder() -> None:
    held = [
        [part(20, 0), part(10, 0), part(10, 2)],
        [part(20, 1), part(10, 1), part(20, 0)],
    ]
    assert whole_snapshots(held) == [WholeSnapshot((10, 1), (0, 1, 0))]
    held.append([part(20, 2)])
    assert [one.name for one in whole_snapshots(held)] == [(20, 1), (10, 1)]


def test_parts_of_different_divisions_are_not_mixed() -> None:
    held = [[part(10, 0, of=2), part(10, 1, of=3)], [part(10, 2, of=3)]]
    assert whole_snapshots(held) == []
    assert whole_snapshots([]) == []


def test_the_same_step_of_a_later_generation_is_newer() -> None:
    held = [[part(10, 0, of=1, generation=3), part(10, 0, of=1, generation=2)]]
    assert [one.name for one in whole_snapshots(held)] == [(10, 3), (10, 2)]


def test_parts_that_two_ranks_hold_are_divided_between_them() -> None:
    everything = [part(10, number, of=4) for number in range(4)]
    assert sorted(whole_snapshots([everything, everything])[0].holders) == [0, 0, 1, 1]


def test_each_rank_keeps_the_part_of_the_same_device_of_the_node_before() -> None:
    assert [neighbour(rank, 3, 1) for rank in range(3)] == [2, 0, 1]
    assert [neighbour(rank, 4, 2) for rank in range(4)] == [2, 3, 0, 1]
    assert [neighbour(rank, 2, 2) for rank in range(2)] == [0, 1], "one node keeps its own"


class Ring:
    """Nodes that take snapshots: the real rule of which part is replaced, and a model of who is
    how far. A snapshot begins on all nodes, when all are done with the one before."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self.memories = [SnapshotMemory(folder / str(node)) for node in range(num_nodes)]
        self.needed: Name | None = None
        self.step = 0
        self.to_do: list[tuple[str, int]] = []

    def finish(self, kind: str, node: int) -> None:
        """A node completes its own part, or that of its neighbour, if that is complete."""
        name, size = (self.step, 1), len(self.memories)
        made_by = node if kind == "own" else neighbour(node, size, 1)
        if kind == "kept" and ("own", made_by) in self.to_do:
            return
        assert kind in ("own", "kept")
        memory = self.memories[node]
        file = memory.replaceable("own" if kind == "own" else "kept", self.needed)
        file.complete(PartFacts(name, made_by, size, "", {}))
        self.to_do.remove((kind, node))

    def begin(self) -> None:
        assert not self.to_do
        self.needed = (self.step, 1) if self.step else None
        self.step += 10
        self.to_do = [(kind, n) for kind in ("own", "kept") for n in range(len(self.memories))]
        for node, memory in enumerate(self.memories):
            if node % 2:  # some have begun to write when the others are lost
                memory.replaceable("own", self.needed)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_after_any_losses_it_is_the_newest_that_can_be_whole(data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(2, 6))
    with tempfile.TemporaryDirectory() as folder:
        ring = Ring(Path(folder), num_nodes)
        for _ in range(data.draw(st.integers(1, 4))):
            ring.begin()
            ends_here = data.draw(st.booleans())
            while ring.to_do and not (ends_here and data.draw(st.integers(0, 5)) == 0):
                ring.finish(*data.draw(st.sampled_from(ring.to_do)))
            if ring.to_do:
                break
        lost = data.draw(st.sets(st.integers(0, num_nodes - 1), max_size=num_nodes))
        # Their successors read what is left, from the files.
        alive = [node for node in range(num_nodes) if node not in lost]
        held = [SnapshotMemory(Path(folder, str(node))).held() for node in alive]
    chosen = whole_snapshots(held)
    names = {one.name for parts in held for one in parts}
    whole = {
        name
        for name in names
        if {one.part for parts in held for one in parts if one.name == name}
        == set(range(num_nodes))
    }
    assert [one.name for one in chosen] == sorted(whole, reverse=True)
    for snapshot in chosen:
        for number, rank in enumerate(snapshot.holders):
            assert HeldPart(snapshot.name, number, num_nodes) in held[rank]
    are_neighbours = any(neighbour(node, num_nodes, 1) in lost for node in lost)
    newest = (ring.step, 1) if not ring.to_do else ring.needed
    if newest is not None and not are_neighbours:
        assert chosen, "storage is needed only if two neighbours went at once"
        assert chosen[0].name >= newest
