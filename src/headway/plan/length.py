"""How many steps a run has, from what `train_for` says."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

Unit = Literal["tokens", "steps", "epochs"]


def num_steps(
    unit: Unit,
    amount: int | float,
    global_batch: int,
    sequence_length: int,
    num_samples: int | None,
) -> int:
    """Steps of `global_batch` samples of `sequence_length` tokens that cover `amount`; at least 1.

    Rounded up: a run never falls short of what was asked for. `num_samples`, the samples in one
    epoch, is needed for epochs only.
    """
    assert amount > 0
    assert math.isfinite(amount)
    assert global_batch >= 1
    assert sequence_length >= 1
    wanted = _exact(amount)
    match unit:
        case "steps":
            return math.ceil(wanted)
        case "tokens":
            return math.ceil(wanted / (global_batch * sequence_length))
        case "epochs":
            assert num_samples is not None, "epochs need the number of samples in the data"
            assert num_samples >= 1
            return math.ceil(wanted * num_samples / global_batch)


def _exact(amount: int | float) -> Fraction:
    """The number that was written: 0.1 as one tenth.

    The nearest float to a tenth is a little more than that, and rounding up would add a whole step:
    ceil(0.1 x 1000 samples / 10) is 10, and 11 if the float's own value is taken. Integers stay
    integers, so 10^13 tokens lose no digit.
    """
    return Fraction(amount) if isinstance(amount, int) else Fraction(repr(amount))
