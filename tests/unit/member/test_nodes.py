"""Domains of whole nodes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli.coordinator import coordinator
from headway.errors import BadInput
from headway.member.generation import Generation, nobody
from headway.member.machine import Machine
from headway.member.nodes import Node, domains_of, node_of, whole_nodes
from headway.member.rules import Rules
from support.membership.drive import Drive, started

NODES = Rules(min_domains=1, max_domains=2, domain_pods=2, node_pods=2)


def domains(generation: Generation) -> list[tuple[str, ...]]:
    return [domain.pods for domain in generation.domains]


# Which are whole


def test_only_nodes_with_all_their_pods_are_whole() -> None:
    pods = [(1.0, "a/0"), (2.0, "a/1"), (1.0, "b/0"), (1.0, "c/0"), (1.0, "c/1"), (1.0, "c/2")]
    assert whole_nodes(pods, 2) == [Node(2.0, "a", ("a/0", "a/1"))]
    assert whole_nodes(pods, 3) == [Node(1.0, "c", ("c/0", "c/1", "c/2"))]


def test_nodes_come_by_their_last_pod_and_then_by_name() -> None:
    pods = [(1.0, "c/0"), (9.0, "c/1"), (5.0, "b/0"), (5.0, "b/1"), (5.0, "a/1"), (5.0, "a/0")]
    assert [node.name for node in whole_nodes(pods, 2)] == ["a", "b", "c"]


def test_pods_of_a_node_come_in_the_order_of_their_ranks() -> None:
    names = [f"node-0-x/{rank}.{rank * 7919 % 97:02x}" for rank in range(12)]
    (node,) = whole_nodes([(12.0 - rank, name) for rank, name in enumerate(names)], 12)
    assert node.pods == tuple(names), "by number: 10 after 9"


def test_a_name_without_a_slash_is_its_own_node() -> None:
    assert node_of("node-0/1.ab12") == "node-0"
    assert node_of("pod-0.ab12") == "pod-0.ab12"
    assert whole_nodes([(1.0, "a"), (1.0, "b")], 2) == []


def test_with_one_pod_a_node_every_pod_counts_whatever_its_name() -> None:
    pods = [(2.0, "a/0"), (1.0, "a/1"), (1.0, "b")]
    assert [node.pods for node in whole_nodes(pods, 1)] == [("a/1",), ("b",), ("a/0",)]


def test_a_domain_may_be_several_nodes() -> None:
    nodes = [Node(1.0, name, (f"{name}/0", f"{name}/1")) for name in "abcde"]
    assert domains_of(nodes, 4) == [
        ("a/0", "a/1", "b/0", "b/1"),
        ("c/0", "c/1", "d/0", "d/1"),
    ]


# What the machine makes of them


def test_a_domain_is_a_whole_node() -> None:
    drive = Drive(Machine(NODES, 1, nobody(1), 0.0))
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
    rules = Rules(max_domains=2, domain_pods=4, node_pods=2)
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
    data: st.DataObject, node_pods: int, domain_nodes: int
) -> None:
    """Whoever comes, goes, is silent and comes back, in any order."""
    rules = Rules(max_domains=3, domain_pods=node_pods * domain_nodes, node_pods=node_pods)
    drive = Drive(Machine(rules, 1, nobody(1), 0.0))
    names = [f"node-{node}/{rank}" for node in range(5) for rank in range(node_pods)]
    for pod in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=40)):
        if pod not in drive.sessions:
            drive.open(pod)
        elif data.draw(st.booleans()):
            drive.close(pod)
        drive.wait(data.draw(st.sampled_from([0.05, 0.3, 1.5, 11.0])))
        if drive.pods and data.draw(st.booleans()) and drive.sessions.keys() >= set(drive.pods):
            drive.settle()
    drive.wait(11)
    for generation in drive.published:
        assert len(generation.domains) <= rules.max_domains
        assert len(set(generation.pods())) == len(list(generation.pods()))
        for pods in domains(generation):
            assert len(pods) == rules.domain_pods
            count = Counter(map(node_of, pods))
            assert node_pods == 1 or set(count.values()) == {node_pods}
            for begin in range(0, len(pods), node_pods):
                some = pods[begin : begin + node_pods]
                assert len({node_of(pod) for pod in some}) == 1
                assert list(some) == sorted(some)


@given(
    st.lists(
        st.tuples(st.floats(0, 9), st.sampled_from([f"{n}/{r}" for n in "abcd" for r in "0123"])),
        unique_by=lambda pod: pod[1],
    ),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
)
def test_no_whole_node_is_left_out(
    pods: list[tuple[float, str]], node_pods: int, domain_nodes: int
) -> None:
    nodes = whole_nodes(pods, node_pods)
    count = Counter(node_of(name) for _, name in pods)
    num_whole = sum(each == node_pods for each in count.values()) if node_pods > 1 else len(pods)
    assert len(nodes) == num_whole
    assert nodes == sorted(nodes)
    ready = {name: time for time, name in pods}
    assert all(node.ready == max(ready[pod] for pod in node.pods) for node in nodes)
    made = domains_of(nodes, node_pods * domain_nodes)
    assert len(made) == num_whole // domain_nodes


# Rules that make no sense


def test_a_domain_is_no_part_of_a_node() -> None:
    with pytest.raises(AssertionError):
        Rules(domain_pods=3, node_pods=2)


@pytest.mark.parametrize(("domain_pods", "node_pods"), [(3, 2), (1, 2)])
def test_the_command_says_so(domain_pods: int, node_pods: int) -> None:
    with pytest.raises(BadInput, match=f"{domain_pods} is no multiple of --node-pods {node_pods}"):
        coordinator("run", "record", Path("key"), domain_pods=domain_pods, node_pods=node_pods)
