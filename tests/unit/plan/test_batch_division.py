from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.plan.batch_division import (
    MicroBatchShare,
    divide,
    micro_batch_rows,
    num_micro_batches,
    share_of,
)

workers_and_group = st.integers(1, 200).flatmap(
    lambda workers: st.tuples(
        st.just(workers), st.sampled_from([g for g in range(1, workers + 1) if workers % g == 0])
    )
)


@pytest.mark.trap(29)
@given(total=st.integers(0, 1000), shape=workers_and_group)
def test_every_micro_batch_once_in_order_and_evenly(total: int, shape: tuple[int, int]) -> None:
    workers, group = shape
    shares = divide(total, workers, group)
    assert len(shares) == workers
    computed = [i for share in shares for i in range(share.first, share.first + share.count)]
    assert computed == list(range(total))
    counts = [share.count for share in shares]
    assert max(counts) - min(counts) <= 1


@given(total=st.integers(0, 1000), shape=workers_and_group)
def test_a_group_runs_equally_many_passes_and_none_too_many(
    total: int, shape: tuple[int, int]
) -> None:
    workers, group = shape
    shares = divide(total, workers, group)
    for start in range(0, workers, group):
        members = shares[start : start + group]
        largest = max(share.count for share in members)
        assert {share.num_passes for share in members} == {max(1, largest)}
        assert all(share.padded >= 0 for share in members)


@given(total=st.integers(0, 1000), shape=workers_and_group, data=st.data())
def test_one_share_agrees_with_all_of_them(
    total: int, shape: tuple[int, int], data: st.DataObject
) -> None:
    workers, group = shape
    rank = data.draw(st.integers(0, workers - 1))
    assert share_of(total, workers, group, rank) == divide(total, workers, group)[rank]


@given(total=st.integers(0, 1000), workers=st.integers(1, 200))
def test_groups_change_only_the_padding(total: int, workers: int) -> None:
    alone, together = divide(total, workers), divide(total, workers, group_size=workers)
    assert [(s.first, s.count) for s in alone] == [(s.first, s.count) for s in together]


@given(global_batch=st.integers(1, 5000), micro=st.integers(1, 600))
def test_slices_hold_every_row_once(global_batch: int, micro: int) -> None:
    total = num_micro_batches(global_batch, micro)
    next_row = 0
    for index in range(total):
        first, rows = micro_batch_rows(index, global_batch, micro)
        assert first == next_row == index * micro
        assert rows == micro or (index == total - 1 and 1 <= rows < micro)
        next_row = first + rows
    assert next_row == global_batch
    with pytest.raises(AssertionError):
        micro_batch_rows(total, global_batch, micro)


def test_divisions_by_hand() -> None:
    assert divide(7, 3) == (
        MicroBatchShare(0, 3, 0),
        MicroBatchShare(3, 2, 0),
        MicroBatchShare(5, 2, 0),
    )
    assert divide(2, 3) == (
        MicroBatchShare(0, 1, 0),
        MicroBatchShare(1, 1, 0),
        MicroBatchShare(2, 0, 1),
    )
    # Two groups of two: the first is held at 2 passes by its first rank, the second needs 1.
    assert divide(5, 4, group_size=2) == (
        MicroBatchShare(0, 2, 0),
        MicroBatchShare(2, 1, 1),
        MicroBatchShare(3, 1, 0),
        MicroBatchShare(4, 1, 0),
    )
    assert divide(1, 4, group_size=2) == (
        MicroBatchShare(0, 1, 0),
        MicroBatchShare(1, 0, 1),
        MicroBatchShare(1, 0, 1),
        MicroBatchShare(1, 0, 1),
    )


def test_workers_that_form_no_whole_groups_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match="whole groups"):
        divide(8, 6, group_size=4)


def test_one_share_among_very_many_is_immediate() -> None:
    started = time.perf_counter()
    share = share_of(10**12 + 1, 10**9, 8, 10**9 - 1)
    assert time.perf_counter() - started < 10  # one by one: minutes
    assert share == MicroBatchShare(10**12 - 999, 1000, 0)
