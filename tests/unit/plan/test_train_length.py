from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.plan.train_length import num_steps


@pytest.mark.parametrize(
    ("unit", "amount", "expected"),
    [
        ("steps", 300, 300),
        ("steps", 1, 1),
        ("tokens", 1, 1),
        ("tokens", 32 * 128, 1),
        ("tokens", 32 * 128 + 1, 2),
        ("tokens", 4096.5, 2),
        ("epochs", 1, 32),  # 1000 samples in batches of 32: 31.25
        ("epochs", 3, 94),  # 93.75, not 3 x 32: the order goes on over the end of an epoch
        ("epochs", 0.001, 1),
    ],
)
def test_lengths_by_hand(unit: str, amount: float, expected: int) -> None:
    assert num_steps(unit, amount, 32, 128, 1000) == expected  # type: ignore[arg-type]


def test_a_decimal_fraction_is_what_was_written() -> None:
    # As binary floats each of these is a hair too large and would cost one more step.
    assert num_steps("epochs", 0.1, 10, 128, 1000) == 10
    assert num_steps("epochs", 1.1, 10, 128, 1000) == 110
    assert num_steps("tokens", 1e10, 1000, 1000, None) == 10_000


def test_large_counts_lose_no_digit() -> None:
    tokens = 10**19 + 1  # a float holds 10^19 and not this
    assert num_steps("tokens", tokens, 10, 10, None) == 10**17 + 1
    assert num_steps("epochs", 3, 7, 128, 10**17) == -(-3 * 10**17 // 7)


@given(
    tokens=st.integers(1, 10**16),
    global_batch=st.integers(1, 10**5),
    sequence_length=st.integers(1, 10**5),
)
def test_enough_and_not_a_step_more(tokens: int, global_batch: int, sequence_length: int) -> None:
    steps = num_steps("tokens", tokens, global_batch, sequence_length, None)
    a_step = global_batch * sequence_length
    assert (steps - 1) * a_step < tokens <= steps * a_step


@pytest.mark.parametrize("amount", [0, -1, float("nan"), float("inf")])
def test_no_length_at_all_is_our_mistake(amount: float) -> None:
    with pytest.raises(AssertionError):
        num_steps("steps", amount, 32, 128, None)


def test_epochs_need_the_number_of_samples() -> None:
    with pytest.raises(AssertionError, match="number of samples"):
        num_steps("epochs", 1, 32, 128, None)
