"""Domains of whole nodes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.nodes import Node, domains_of, whole_nodes
from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import Generation, nobody
from headway.member.protocol.identity import parse
from headway.member.protocol.messages import MAX_WORKERS
from support.membership.drive import Drive, started

NODES = Rules(min_domains=1, max_domains=2, domain_workers=2, node_workers=2)


def domains(generation: Generation) -> list[tuple[str, ...]]:
    return [domain.workers for domain in generation.domains]


# Which are whole


def test_only_nodes_with_all_their_workers_are_whole() -> None:
    workers = [(1.0, "a/0"), (2.0, "a/1"), (1.0, "b/0"), (1.0, "c/0"), (1.0, "c/1"), (1.0, "c/2")]
    assert whole_nodes(workers, 2) == [Node(2.0, "a", ("a/0", "a/1"))]
    assert whole_nodes(workers, 3) == [Node(1.0, "c", ("c/0", "c/1", "c/2"))]


def test_nodes_come_by_their_last_worker_and_then_by_name() -> None:
    workers = [(1.0, "c/0"), (9.0, "c/1"), (5.0, "b/0"), (5.0, "b/1"), (5.0, "a/1"), (5.0, "a/0")]
    assert [node.name for node in whole_nodes(workers, 2)] == ["a", "b", "c"]


def test_workers_of_a_node_come_in_the_order_of_their_ranks() -> None:
    names = [f"node-0-x/{rank}.{rank * 7919 % 97:02x}" for rank in range(12)]
    (node,) = whole_nodes([(12.0 - rank, name) for rank, name in enumerate(names)], 12)
    assert node.workers == tuple(names), "by number: 10 after 9"


def test_a_name_without_a_slash_is_its_own_node() -> None:
    assert whole_nodes([(1.0, "a"), (1.0, "b")], 2) == []


def test_with_one_worker_a_node_every_worker_counts_whatever_its_name() -> None:
    workers = [(2.0, "a/0"), (1.0, "a/1"), (1.0, "b")]
    assert [node.workers for node in whole_nodes(workers, 1)] == [("a/1",), ("b",), ("a/0",)]


def test_a_domain_may_be_several_nodes() -> None:
    nodes = [Node(1.0, name, (f"{name}/0", f"{name}/1")) for name in "abcde"]
    assert domains_of(nodes, 4) == [
        ("a/0", "a/1", "b/0", "b/1"),
        ("c/0", "c/1", "d/0", "d/1"),
    ]


# What is decided of them


def test_a_domain_is_a_whole_node() -> None:
    drive = Drive(Membership(NODES, 1, nobody(1), 0.0))
    drive.open("a/1", "b/1", "c/0", "b/0")
    drive.wait(NODES.gather_seconds - 1)
    assert drive.published == []
    drive.wait(2)
    assert domains(drive.current) == [("b/0", "b/1")]


def test_half_a_node_is_not_admitted_and_makes_no_generation() -> None:
    drive = started(NODES, "a/0", "a/1")
    number = drive.current.number
    drive.open("b/1", "c/1")
    drive.wait(NODES.join_seconds + 10)
    assert drive.current.number == number
    drive.open("b/0")
    drive.wait(NODES.join_seconds - 0.1)
    assert drive.current.number == number, "it waits for others from when the node is whole"
    drive.wait(0.2)
    assert domains(drive.current) == [("a/0", "a/1"), ("b/0", "b/1")]


def test_what_is_left_of_a_node_is_not_used_again() -> None:
    drive = started(NODES, "a/0", "a/1", "b/0", "b/1")
    drive.open("c/0")
    drive.close("a/0")
    drive.wait(0.3)
    assert domains(drive.current) == [("b/0", "b/1")]
    drive.settle()
    drive.close("a/1")
    drive.open("c/1")
    drive.wait(NODES.join_seconds + 0.1)
    assert domains(drive.current) == [("b/0", "b/1"), ("c/0", "c/1")]


def test_a_spare_node_takes_the_place_of_a_lost_one_at_once() -> None:
    drive = started(NODES, "a/0", "a/1", "b/0", "b/1")
    drive.open("c/0", "c/1")
    drive.close("a/0")
    drive.wait(0.3)
    assert domains(drive.current) == [("b/0", "b/1"), ("c/0", "c/1")]


def test_a_healthy_node_of_a_lost_domain_is_used_again() -> None:
    rules = Rules(max_domains=2, domain_workers=4, node_workers=2)
    drive = started(rules, *(f"{node}/{rank}" for node in "abcd" for rank in (0, 1)))
    drive.open("e/0", "e/1")
    drive.close("a/1")
    drive.wait(0.3)
    assert domains(drive.current) == [
        ("c/0", "c/1", "d/0", "d/1"),
        ("b/0", "b/1", "e/0", "e/1"),
    ]


@given(st.data(), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]))
def test_domains_are_always_whole_nodes(
    data: st.DataObject, node_workers: int, domain_nodes: int
) -> None:
    """Whoever comes, goes, is silent and comes back, in any order."""
    rules = Rules(
        max_domains=3, domain_workers=node_workers * domain_nodes, node_workers=node_workers
    )
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    names = [f"node-{node}/{rank}" for node in range(5) for rank in range(node_workers)]
    for worker in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=40)):
        if worker not in drive.sessions:
            drive.open(worker)
        elif data.draw(st.booleans()):
            drive.close(worker)
        drive.wait(data.draw(st.sampled_from([0.05, 0.3, 1.5, 11.0])))
        if (
            drive.workers
            and data.draw(st.booleans())
            and drive.sessions.keys() >= set(drive.workers)
        ):
            drive.settle()
    drive.wait(11)
    for generation in drive.published:
        assert len(generation.domains) <= rules.max_domains
        assert len(set(generation.workers())) == len(list(generation.workers()))
        for workers in domains(generation):
            assert len(workers) == rules.domain_workers
            count = Counter(parse(worker).node_start for worker in workers)
            assert node_workers == 1 or set(count.values()) == {node_workers}
            for begin in range(0, len(workers), node_workers):
                some = workers[begin : begin + node_workers]
                assert len({parse(worker).node_start for worker in some}) == 1
                assert list(some) == sorted(some)


@given(
    st.lists(
        st.tuples(st.floats(0, 9), st.sampled_from([f"{n}/{r}" for n in "abcd" for r in "0123"])),
        unique_by=lambda worker: worker[1],
    ),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
)
def test_no_whole_node_is_left_out(
    workers: list[tuple[float, str]], node_workers: int, domain_nodes: int
) -> None:
    nodes = whole_nodes(workers, node_workers)
    count = Counter(parse(name).node_start for _, name in workers)
    num_whole = (
        sum(each == node_workers for each in count.values()) if node_workers > 1 else len(workers)
    )
    assert len(nodes) == num_whole
    assert nodes == sorted(nodes)
    ready = {name: time for time, name in workers}
    assert all(node.ready == max(ready[worker] for worker in node.workers) for node in nodes)
    made = domains_of(nodes, node_workers * domain_nodes)
    assert len(made) == num_whole // domain_nodes


# Rules that make no sense


@pytest.mark.parametrize(("domain_workers", "node_workers"), [(3, 2), (1, 2)])
def test_a_domain_is_no_part_of_a_node(domain_workers: int, node_workers: int) -> None:
    with pytest.raises(AssertionError, match="whole nodes"):
        Rules(domain_workers=domain_workers, node_workers=node_workers)


def test_there_is_room_for_all_domains() -> None:
    with pytest.raises(AssertionError):
        Rules(min_domains=2, max_domains=1)
    with pytest.raises(AssertionError):
        Rules(max_domains=MAX_WORKERS // 2, domain_workers=3)
