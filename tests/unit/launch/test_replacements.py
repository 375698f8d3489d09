"""Which lost nodes have been replaced, as `headway events` and Prometheus say it."""

from __future__ import annotations

from headway.clock import stamp
from headway.launch.pod_decisions import PodFacts
from headway.launch.replacements import Replacement, Replacements


def pod(index: int, name: str, has_ended: bool = False) -> PodFacts:
    return PodFacts(name, index, "node1", 0.0, is_gated=False, delete_by=None, has_ended=has_ended)


def test_a_lost_node_is_replaced_when_another_pod_of_its_index_has_joined() -> None:
    lost = Replacements()
    lost.lose(1, "it-1-a", 100.0)
    pods = [pod(0, "it-0-a"), pod(1, "it-1-a"), pod(1, "it-1-b")]
    assert lost.look(pods, {"it-0-a", "it-1-a"}, 101.0) == [], "the lost one is still a member"
    assert lost.look(pods, {"it-0-a"}, 102.0) == [], "it has not joined yet"
    joined = Replacement(1, "it-1-b", 18.0)
    assert lost.look(pods, {"it-0-a", "it-1-b"}, 118.0) == [joined]
    assert lost.look(pods, {"it-0-a", "it-1-b"}, 119.0) == [], "once"


def test_a_node_that_is_lost_three_times_before_it_joins_is_replaced_once() -> None:
    lost = Replacements()
    for number in range(3):
        lost.lose(1, f"it-1-{number}", 100.0 + 10 * number)
    pods = [pod(1, "it-1-2", has_ended=True), pod(1, "it-1-3")]
    assert lost.look(pods, {"it-1-2", "it-1-3"}, 130.0) == [Replacement(1, "it-1-3", 30.0)]


def test_a_node_above_the_number_that_is_wanted_is_not_waited_for() -> None:
    lost = Replacements()
    lost.lose(2, "it-2-a", 100.0)
    lost.scale(2)
    assert lost.look([pod(2, "it-2-b")], {"it-2-b"}, 101.0) == []


def test_a_new_keeper_knows_what_the_one_before_has_lost() -> None:
    events = [
        {"event": "lost", "node": 0, "time": stamp(50.0)},
        {"event": "launched", "time": stamp(90.0)},
        {"event": "lost", "node": 1, "time": stamp(100.0)},
        {"event": "lost", "node": 2, "time": stamp(100.0)},
        {"event": "replaced", "node": 2, "time": stamp(120.0)},
        {"event": "lost", "node": 3, "time": stamp(121.0)},
        {"event": "scaled", "nodes": 3, "time": stamp(122.0)},
    ]
    pods = [pod(index, f"it-{index}-b") for index in range(4)]
    lost = Replacements()
    lost.remember(events)
    joined = lost.look(pods, {one.name for one in pods}, 130.0)
    assert joined == [Replacement(1, "it-1-b", 30.0)]
