from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.plan.batch import Share, divide, num_slices, rows_of_slice, share_of

workers_and_group = st.integers(1, 200).flatmap(
    lambda workers: st.tuples(
        st.just(workers), st.sampled_from([g for g in range(1, workers + 1) if workers % g == 0])
    )
)


@given(slices=st.integers(0, 1000), shape=workers_and_group)
def test_every_slice_once_in_order_and_evenly(slices: int, shape: tuple[int, int]) -> None:
    workers, group = shape
    shares = divide(slices, workers, group)
    assert len(shares) == workers
    computed = [i for share in shares for i in range(share.first, share.first + share.count)]
    assert computed == list(range(slices))
    counts = [share.count for share in shares]
    assert max(counts) - min(counts) <= 1


@given(slices=st.integers(0, 1000), shape=workers_and_group)
def test_a_group_runs_equally_many_passes_and_none_too_many(
    slices: int, shape: tuple[int, int]
) -> None:
    workers, group = shape
    shares = divide(slices, workers, group)
    for start in range(0, workers, group):
        members = shares[start : start + group]
        largest = max(share.count for share in members)
        assert {share.passes for share in members} == {max(1, largest)}
        assert all(share.padded >= 0 for share in members)


@given(slices=st.integers(0, 1000), shape=workers_and_group, data=st.data())
def test_one_share_agrees_with_all_of_them(
    slices: int, shape: tuple[int, int], data: st.DataObject
) -> None:
    workers, group = shape
    rank = data.draw(st.integers(0, workers - 1))
    assert share_of(slices, workers, group, rank) == divide(slices, workers, group)[rank]


@given(slices=st.integers(0, 1000), workers=st.integers(1, 200))
def test_groups_change_only_the_padding(slices: int, workers: int) -> None:
    alone, together = divide(slices, workers), divide(slices, workers, group=workers)
    assert [(s.first, s.count) for s in alone] == [(s.first, s.count) for s in together]


@given(global_batch=st.integers(1, 5000), micro=st.integers(1, 600))
def test_slices_hold_every_row_once(global_batch: int, micro: int) -> None:
    slices = num_slices(global_batch, micro)
    next_row = 0
    for index in range(slices):
        first, rows = rows_of_slice(index, global_batch, micro)
        assert first == next_row == index * micro
        assert rows == micro or (index == slices - 1 and 1 <= rows < micro)
        next_row = first + rows
    assert next_row == global_batch
    with pytest.raises(AssertionError):
        rows_of_slice(slices, global_batch, micro)


def test_divisions_by_hand() -> None:
    assert divide(7, 3) == (Share(0, 3, 0), Share(3, 2, 0), Share(5, 2, 0))
    assert divide(2, 3) == (Share(0, 1, 0), Share(1, 1, 0), Share(2, 0, 1))
    # Two groups of two: the first is held at 2 passes by its first rank, the second needs 1.
    assert divide(5, 4, group=2) == (Share(0, 2, 0), Share(2, 1, 1), Share(3, 1, 0), Share(4, 1, 0))
    assert divide(1, 4, group=2) == (Share(0, 1, 0), Share(1, 0, 1), Share(1, 0, 1), Share(1, 0, 1))


def test_workers_that_form_no_whole_groups_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match="whole groups"):
        divide(8, 6, group=4)


def test_one_share_among_very_many_is_immediate() -> None:
    started = time.perf_counter()
    share = share_of(10**12 + 1, 10**9, 8, 10**9 - 1)
    assert time.perf_counter() - started < 0.1
    assert share == Share(10**12 - 999, 1000, 0)
