"""What all workers do after a step comes out of one sum, so it is the same on all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import PeerLost
from headway.train.collectives import WorkerGroup
from headway.train.domain_group import DomainGroup
from headway.train.step import Agreed, Flags, _agreed, _raised
from headway.train.world import RankPlacement, World
from support.together import together

FLAGS = st.builds(
    Flags,
    stop=st.booleans(),
    save=st.booleans(),
    leaving=st.booleans(),
    # Mostly the same number: that is what matters.
    ahead=st.integers(0, 3) | st.integers(0, 10_000),
)


def agreed(flags: list[Flags]) -> Agreed:
    raised = [_raised(one) for one in flags]
    return _agreed([sum(column) for column in zip(*raised, strict=True)], len(flags))


@given(st.lists(FLAGS, min_size=1, max_size=8))
def test_what_is_agreed_on(flags: list[Flags]) -> None:
    found = agreed(flags)
    assert found.stop == (any(one.stop for one in flags) or all(one.leaving for one in flags))
    assert found.save == any(one.save for one in flags)
    seen = {one.ahead for one in flags}
    assert found.over == (len(seen) == 1 and seen != {0})


@given(st.integers(0, 5), st.integers(1, 5000))
def test_over_when_all_have_seen_the_same_newer_generation(ahead: int, workers: int) -> None:
    assert agreed([Flags(ahead=ahead)] * workers).over == (ahead > 0)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(2, 5000))
def test_not_over_as_long_as_one_has_not(ahead: int, other: int, workers: int) -> None:
    """However many have: whoever goes over alone is waited for by all."""
    flags = [Flags(ahead=ahead)] * (workers - 1)
    assert not agreed([*flags, Flags(ahead=0)]).over
    assert agreed([*flags, Flags(ahead=other)]).over == (ahead == other)


@given(st.integers(1, 300), st.integers(0, 300))
def test_leavers_stop_the_run_only_if_nobody_stays(leaving: int, staying: int) -> None:
    flags = [Flags(leaving=True)] * leaving + [Flags()] * staying
    assert agreed(flags).stop == (staying == 0)


def test_nothing_is_raised_by_default() -> None:
    assert agreed([Flags()] * 3) == Agreed()


# --- over real groups


def world(group: WorkerGroup) -> World:
    return World(group.rank, group.size, 1, RankPlacement(torch.device("cpu")), replicas=group)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([Flags(), Flags(stop=True), Flags()], Agreed(stop=True)),
        ([Flags(save=True), Flags(), Flags()], Agreed(save=True)),
        ([Flags(leaving=True), Flags(leaving=True), Flags()], Agreed()),
        ([Flags(leaving=True)] * 3, Agreed(stop=True)),
        ([Flags(ahead=1), Flags(ahead=1), Flags()], Agreed()),
        ([Flags(ahead=2), Flags(ahead=2), Flags(ahead=2, save=True)], Agreed(save=True, over=True)),
        ([Flags(ahead=1), Flags(ahead=2), Flags(ahead=3)], Agreed()),
    ],
)
def test_every_worker_finds_the_same(flags: list[Flags], expected: Agreed) -> None:
    def work(group: WorkerGroup) -> Agreed:
        return _agreed(world(group).control_all_reduce(_raised(flags[group.rank])), group.size)

    assert together(3, work) == [expected] * 3


def test_in_a_domain_all_have_lost_a_peer_or_none() -> None:
    """Its ranks hold the model together: one cannot commit what another discards."""

    def work(group: WorkerGroup) -> str:
        placement = RankPlacement(torch.device("cpu"), group.rank, group.size)
        domain = World(group.rank, group.size, 1, placement, domain=DomainGroup(group, group, 1))
        domain.raise_if_any_lost(None)
        own = PeerLost("my own peer went away") if group.rank == 1 else None
        try:
            domain.control_all_reduce([1], own)
        except PeerLost as lost:
            return lost.message
        return "went on"

    elsewhere = "another rank of this domain lost a peer"
    assert together(3, work) == [elsewhere, "my own peer went away", elsewhere]


def test_sums_are_over_all_workers_and_any_of_them_can_raise_a_flag() -> None:
    def work(group: WorkerGroup) -> list[object]:
        here = world(group)
        numbers = here.sums(torch.tensor([1.5, group.rank, 7.0]))
        here.barrier()
        flags = [here.any(False), here.any(group.rank == 2), here.any(True)]
        return [numbers, *flags]

    assert together(3, work) == [[[4.5, 3.0, 21.0], False, True, True]] * 3
