"""The number of steps in a run, from `train_for`."""

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

    Rounded up: a run never falls short of what was requested. `num_samples`, the number of samples
    in one epoch, is needed only for epochs.
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
    """The number as written: 0.1 is one tenth.

    The float nearest to a tenth is slightly larger, and rounding up would add a whole step:
    ceil(0.1 x 1000 samples / 10) is 10, but 11 with the float's exact value. Integers stay
    integers, so 10^13 tokens lose no digit.
    """
    return Fraction(amount) if isinstance(amount, int) else Fraction(repr(amount))
