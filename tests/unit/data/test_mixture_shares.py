"""Shares that follow from the sizes of a mixture's sets, and limits on how often one is read."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.mixture_shares import (
    NUM_SLOTS,
    MemberAmount,
    decided_slots,
    divide_slots,
    tempered,
)
from headway.data.reading.mixture_order import SlotTable
from headway.errors import BadInput


def members(**amounts: tuple[float, int | None]) -> list[MemberAmount]:
    return [MemberAmount(name, Fraction(one), most) for name, (one, most) in amounts.items()]


def test_temperature_one_is_by_size_and_a_high_one_nearly_equal() -> None:
    sizes = (10**12, 10**9)
    by_size, root, flat = (
        [tempered(size, temperature) for size in sizes] for temperature in (1, 3, 1e9)
    )
    assert by_size == [10**12, 10**9]
    assert float(root[0] / root[1]) == pytest.approx(10)
    assert float(flat[0] / flat[1]) == pytest.approx(1, abs=1e-6)


def test_a_tempered_share_is_the_same_on_every_machine() -> None:
    """Never update these values: slots, and with them the order, follow from them."""
    amounts = [tempered(size, 3.3) for size in (4_567_890_123, 98_765_432, 1_234_567)]
    assert divide_slots(amounts, NUM_SLOTS) == (46951, 14691, 3894)


def test_what_a_limit_cuts_goes_to_the_others_in_proportion() -> None:
    slots = decided_slots(members(a=(5, 1000), b=(2, None), c=(1, None)), 1000, 8)
    assert slots == (8192, 38229, 19115), "an eighth, and two thirds and a third of the rest"
    assert decided_slots(members(a=(1, 8000), b=(1, 8000)), 1000, 8) == (32768, 32768), (
        "none is reached"
    )
    # The cut of the first brings the second to its own limit.
    slots = decided_slots(members(a=(5, 800), b=(2, 3000), c=(1, None)), 1000, 8)
    assert slots == (6553, 24576, 34407)


@settings(deadline=None, max_examples=100)
@given(
    asked=st.lists(
        st.tuples(st.integers(1, 9), st.one_of(st.none(), st.integers(300, 40_000))),
        min_size=2,
        max_size=4,
    ),
    steps=st.integers(1, 3000),
)
def test_slots_stay_within_every_limit(asked: list[tuple[int, int | None]], steps: int) -> None:
    num_positions = 8 * steps
    wanted = [MemberAmount(str(n), Fraction(one), most) for n, (one, most) in enumerate(asked)]
    most = [limit for _, limit in asked]
    try:
        slots = decided_slots(wanted, steps, 8)
    except BadInput:
        # Each loses less than a slot.
        assert None not in most
        assert sum(filter(None, most)) < num_positions * (1 + len(asked) / NUM_SLOTS)
        return
    assert sum(slots) == NUM_SLOTS
    for limit, count in zip(most, slots, strict=True):
        assert limit is None or count * num_positions <= limit * NUM_SLOTS


def test_no_member_is_read_more_often_than_its_limit() -> None:
    """Counted in the table itself, at runs that end anywhere in it."""
    for steps in (7, 1_234, 9_876):
        num_positions = 11 * steps
        most = [num_positions // 7, None, num_positions // 3]
        wanted = [MemberAmount(str(n), Fraction(1), limit) for n, limit in enumerate(most)]
        wanted[0] = replace(wanted[0], amount=Fraction(5))
        counts = SlotTable(decided_slots(wanted, steps, 11)).counts(num_positions)
        for limit, count in zip(most, counts, strict=True):
            assert limit is None or limit - 2 <= count <= limit


def test_a_run_that_all_sets_together_are_too_few_for_is_refused_with_the_numbers() -> None:
    wanted = members(en=(3, 4000), de=(1, 2000))
    with pytest.raises(BadInput) as caught:
        decided_slots(wanted, 1000, 8)
    assert "together they give 6,000 samples (en 4,000, de 2,000)" in caught.value.message
    assert "the run takes 8,000" in caught.value.message
    assert caught.value.hint is not None
    assert "--set 'train_for=749 steps'" in caught.value.hint
    assert sum(decided_slots(wanted, 749, 8)) == NUM_SLOTS


def test_a_limit_below_the_smallest_share_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"max_epochs leaves de less than the smallest share"):
        decided_slots(members(en=(1, None), de=(1, 10)), 10**6, 8)
