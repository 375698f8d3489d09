"""Bytes for those who lack them: each of them once, from all who have them, in bounded rounds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.train import state_transfer
from headway.train.collectives import PendingCollective, WorkerGroup
from headway.train.state_transfer import (
    IN_FLIGHT,
    ByteSequence,
    Message,
    broadcast_shares,
    hand_over,
    handover,
    sharing,
)
from support.together import together

CPU = torch.device("cpu")
ROLES = st.lists(st.sampled_from(["holds", "lacks", "neither"]), min_size=2, max_size=9).filter(
    lambda roles: {"holds", "lacks"} <= set(roles)
)


def ranks(roles: list[str], role: str) -> list[int]:
    return [rank for rank, one in enumerate(roles) if one == role]


def all_rounds(roles: list[str], num_bytes: int, block_bytes: int) -> list[list[list[Message]]]:
    """By round, then by rank."""
    holders, receivers = ranks(roles, "holds"), ranks(roles, "lacks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_transfer, "BLOCK_BYTES", block_bytes)
        plans = [list(handover(one, num_bytes, holders, receivers)) for one in range(len(roles))]
    return [list(each) for each in zip(*plans, strict=True)]


@given(ROLES, st.integers(0, 300), st.integers(1, 40))
def test_every_receiver_gets_every_byte_once_from_one_who_has_it(
    roles: list[str], num_bytes: int, block_bytes: int
) -> None:
    had: dict[int, set[int]] = {
        rank: set(range(num_bytes)) if role == "holds" else set() for rank, role in enumerate(roles)
    }
    arriving: list[dict[int, list[int]]] = []
    for plans in all_rounds(roles, num_bytes, block_bytes):
        # What came in a round may be sent on once it has been waited for.
        if len(arriving) >= IN_FLIGHT:
            for rank, brought in arriving[-IN_FLIGHT].items():
                had[rank].update(brought)
        arriving.append({})
        sent = [one for rank, plan in enumerate(plans) for one in plan if one.source == rank]
        awaited = [one for rank, plan in enumerate(plans) for one in plan if one.target == rank]
        assert sorted(sent) == sorted(awaited), "both ends know of the same messages"
        assert len(sent) + len(awaited) == sum(map(len, plans)), "nobody else has to"
        for source, target, begin, end in sent:
            assert begin < end
            assert set(range(begin, end)) <= had[source], "nobody sends what it lacks"
            arriving[-1].setdefault(target, []).extend(range(begin, end))
    got = Counter(
        (rank, byte) for one in arriving for rank, brought in one.items() for byte in brought
    )
    wanted = [(rank, byte) for rank in ranks(roles, "lacks") for byte in range(num_bytes)]
    assert got == Counter(wanted)


@given(ROLES, st.integers(1, 12))
def test_holders_send_alike_and_no_byte_twice(roles: list[str], num_blocks: int) -> None:
    block_bytes = 5040  # divided evenly by 1 to 9
    num_bytes = num_blocks * block_bytes
    sent: Counter[int] = Counter()
    for plans in all_rounds(roles, num_bytes, block_bytes):
        sent.update(
            {
                rank: sum(one.end - one.begin for one in plan if one.source == rank)
                for rank, plan in enumerate(plans)
            }
        )
    holders, receivers = ranks(roles, "holds"), ranks(roles, "lacks")
    assert sum(sent[rank] for rank in holders) == num_bytes
    assert sum(sent[rank] for rank in receivers) == num_bytes * (len(receivers) - 1)
    cell = block_bytes // max(len(holders), len(receivers))
    for alike in (holders, receivers):
        counts = [sent[rank] for rank in alike]
        most = max(counts) - min(counts)
        assert most <= cell * max(1, len(receivers) - 1), "they take turns"


@given(ROLES, st.integers(0, 300), st.integers(1, 40))
def test_a_round_is_bounded(roles: list[str], num_bytes: int, block_bytes: int) -> None:
    for plans in all_rounds(roles, num_bytes, block_bytes):
        for rank, plan in enumerate(plans):
            for end in (0, 1):
                here = sum(one.end - one.begin for one in plan if one[end] == rank)
                assert here <= 2 * block_bytes + 2 * len(roles), "cells are whole bytes"


@given(st.lists(st.integers(0, 60), min_size=1, max_size=7), st.integers(1, 40))
def test_whoever_has_a_share_gives_it_to_all_others(lengths: list[int], block_bytes: int) -> None:
    bounds = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    everyone = range(len(lengths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_transfer, "BLOCK_BYTES", block_bytes)
        plans = [list(sharing(rank, bounds)) for rank in everyone]
    got: Counter[tuple[int, int]] = Counter()
    for each in zip(*plans, strict=True):
        sent = [one for rank, plan in enumerate(each) for one in plan if one.source == rank]
        awaited = [one for rank, plan in enumerate(each) for one in plan if one.target == rank]
        assert sorted(sent) == sorted(awaited)
        for source, target, begin, end in sent:
            assert bounds[source] <= begin < end <= bounds[source + 1], "nobody sends what it lacks"
            got.update((target, byte) for byte in range(begin, end))
        for rank in everyone:
            received = sum(one.end - one.begin for one in awaited if one.target == rank)
            assert received <= max(block_bytes, len(lengths)), "a round is bounded"
    wanted = [
        (rank, byte)
        for rank in everyone
        for byte in range(bounds[-1])
        if not bounds[rank] <= byte < bounds[rank + 1]
    ]
    assert got == Counter(wanted)


class Counted:
    """A group that counts what it sends."""

    def __init__(self, group: WorkerGroup) -> None:
        self.rank, self.size = group.rank, group.size
        self._group = group
        self.num_bytes = 0

    def start_all_to_all(self, received: Any, sent: Any, *sizes: Any) -> PendingCollective:
        self.num_bytes += sent.numel()
        return self._group.start_all_to_all(received, sent, *sizes)


@settings(max_examples=15, deadline=None)
@given(
    ROLES.filter(lambda roles: len(roles) <= 5),
    st.lists(st.integers(0, 900), max_size=6),
    st.integers(200, 700),
)
def test_what_arrives_is_what_was_sent(
    roles: list[str], sizes: list[int], block_bytes: int
) -> None:
    torch.manual_seed(len(sizes))
    wanted = [torch.randint(256, (size,), dtype=torch.uint8) for size in sizes]
    holders, receivers = ranks(roles, "holds"), ranks(roles, "lacks")

    def work(group: WorkerGroup) -> tuple[list[torch.Tensor], int]:
        is_holder = group.rank in holders
        own = [one.clone() if is_holder else torch.zeros_like(one) for one in wanted]
        counted: Any = Counted(group)
        hand_over(counted, ByteSequence(own), holders, receivers)
        return own, counted.num_bytes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_transfer, "BLOCK_BYTES", block_bytes)
        found = together(len(roles), work)
    for rank, (own, _) in enumerate(found):
        expected = wanted if roles[rank] != "neither" else [torch.zeros_like(o) for o in wanted]
        assert all(torch.equal(one, other) for one, other in zip(own, expected, strict=True))
    num_messages = -(-sum(sizes) // block_bytes) * max(len(holders), len(receivers))
    most = (sum(sizes) + state_transfer.CHECKSUM_BYTES * num_messages) * len(receivers)
    assert sum(num_bytes for _, num_bytes in found) <= most


@given(st.lists(st.integers(0, 9), max_size=8), st.data())
def test_a_sequence_is_its_tensors_one_after_the_other(sizes: list[int], data: Any) -> None:
    tensors = [torch.randint(256, (size,), dtype=torch.uint8) for size in sizes]
    whole = torch.cat([*tensors, torch.empty(0, dtype=torch.uint8)])
    sequence = ByteSequence(tensors)
    assert sequence.num_bytes == sum(sizes)
    begin = data.draw(st.integers(0, sum(sizes)))
    end = data.draw(st.integers(begin, sum(sizes)))
    place = torch.empty(end - begin, dtype=torch.uint8)
    sequence.read(begin, place.numpy())
    assert torch.equal(place, whole[begin:end])
    sequence.write(begin, (place + 1).numpy())
    whole[begin:end] += 1
    assert torch.equal(torch.cat([*tensors, torch.empty(0, dtype=torch.uint8)]), whole)


@pytest.mark.parametrize("bounds", [[0, 30, 57, 90], [0, 0, 90, 90], [0, 0, 0, 0]])
def test_shares_that_are_broadcast_reach_all(
    monkeypatch: pytest.MonkeyPatch, bounds: list[int]
) -> None:
    """In blocks that begin and end within tensors."""
    monkeypatch.setattr(state_transfer, "BROADCAST_BYTES", 8)
    expected = torch.arange(bounds[-1], dtype=torch.uint8)
    sizes = [min(size, bounds[-1]) for size in (1, 49, 40)]

    def work(group: WorkerGroup) -> torch.Tensor:
        held = torch.zeros_like(expected)
        mine = slice(bounds[group.rank], bounds[group.rank + 1])
        held[mine] = expected[mine]
        content = ByteSequence(list(held.split(sizes)) if len(held) else [])
        broadcast_shares(group, content, bounds, CPU)
        return held

    assert all(torch.equal(held, expected) for held in together(3, work))
