"""How much of a mixture each of its members is, in slots of the table of `mixture_order.py`.

    weights        proportional to them
    epochs         proportional to each member's tokens, as often as it is read
    temperature    proportional to tokens ** (1 / temperature)
    max_epochs     at most so much of the run; what is cut goes to the others, in proportion

THE DIVISION BY LARGEST REMAINDER IS A FROZEN CONTRACT, like the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

from headway.errors import BadInput

NUM_SLOTS = 2**16
"""Slots in the table. A member with 1 % has 655 slots: rounding changes its share by less than
1/655 of itself. Building takes 0.1 to 0.3 s (measured on a busy machine) and about a megabyte."""
TOLERANCE = Fraction(1, 10)
"""Relative error of a share that rounding to slots may cause."""


@dataclass(frozen=True)
class MemberAmount:
    """What is asked for a member."""

    name: str
    amount: Fraction
    """In a unit that all members have in common."""
    most_samples: int | None = None
    """Samples that it may contribute to the whole run: by its `max_epochs`."""


def exact(number: float) -> Fraction:
    """The decimal number as written, not the nearest binary fraction: a tenth is a tenth."""
    return Fraction(repr(number))


def tempered(num_tokens: int, temperature: float) -> Fraction:
    """tokens ** (1 / temperature). In decimal arithmetic, which is the same on every machine."""
    context = Context(prec=40)
    exponent = context.divide(Decimal(1), Decimal(repr(temperature)))
    return Fraction(context.power(Decimal(num_tokens), exponent))


def decided_slots(members: Sequence[MemberAmount], steps: int, batch: int) -> tuple[int, ...]:
    """Slots in proportion to the amounts, within what members may contribute to a run of so many
    steps of `batch` samples.

    Among the first n positions a member with s slots has less than n * s / NUM_SLOTS + 1 (see
    `arrange_slots`): s <= most_samples * NUM_SLOTS / n is enough.
    """
    most = [steps * batch if one.most_samples is None else one.most_samples for one in members]
    limits = [samples * NUM_SLOTS // (steps * batch) for samples in most]
    cut: dict[int, int] = {}
    while True:
        others = [n for n in range(len(members)) if n not in cut]
        left = NUM_SLOTS - sum(cut.values())
        slots = divide_slots([members[n].amount for n in others], left)
        found = dict(zip(others, slots, strict=True))
        over = {n: limits[n] for n in others if found[n] > limits[n]}
        if not over:
            break
        cut |= over
        if len(cut) == len(members):
            raise _too_few(members, most, steps, batch)
    if tiny := next((members[n].name for n, limit in cut.items() if limit == 0), None):
        raise BadInput(
            f"max_epochs leaves {tiny} less than the smallest share of a run, one in {NUM_SLOTS}",
            f"leave {tiny} out, or raise its max_epochs",
        )
    rest = [members[n] for n in others]
    require_shares([one.name for one in rest], [one.amount for one in rest], slots)
    return tuple((found | cut)[n] for n in range(len(members)))


def _too_few(
    members: Sequence[MemberAmount], most: Sequence[int], steps: int, batch: int
) -> BadInput:
    """The error if every member reaches its `max_epochs` before the run ends."""
    listed = ", ".join(f"{one.name} {num:,}" for one, num in zip(members, most, strict=True))
    # A slot each is lost to rounding.
    enough = sum(most) * NUM_SLOTS // (NUM_SLOTS + len(members)) // batch
    return BadInput(
        f"every set of the mixture reaches its max_epochs: together they give {sum(most):,} "
        f"samples ({listed}), and the run takes {steps * batch:,}",
        f"raise a max_epochs, or train for less: --set 'train_for={max(1, enough)} steps'",
    )


def divide_slots(wanted: Sequence[Fraction], num_slots: int) -> tuple[int, ...]:
    """Slots in proportion to the requested amounts, by largest remainder, at least one per member.

    A member whose share is less than one slot gets one, and the others divide the rest. Of equal
    remainders, the earlier member's is rounded up first.
    """
    if len(wanted) > num_slots:
        raise BadInput(f"a mixture has at most {num_slots} members, not {len(wanted)}")
    slots = [1] * len(wanted)
    sharing = list(range(len(wanted)))
    while True:
        left = num_slots - (len(wanted) - len(sharing))
        total = sum(wanted[number] for number in sharing)
        due = {number: wanted[number] * left / total for number in sharing}
        enough = [number for number in sharing if due[number] >= 1]
        if len(enough) == len(sharing):
            break
        sharing = enough
    for number, share in due.items():
        slots[number] = math.floor(share)
    remainders = sorted(due, key=lambda number: (slots[number] - due[number], number))
    for number in remainders[: num_slots - sum(slots)]:
        slots[number] += 1
    return tuple(slots)


def require_shares(names: Sequence[str], wanted: Sequence[Fraction], slots: Sequence[int]) -> None:
    """Refuses a mixture in which rounding to slots would distort a member's share."""
    total, size = sum(wanted), sum(slots)
    for name, amount, count in zip(names, wanted, slots, strict=True):
        share = amount / total
        if abs(Fraction(count, size) - share) > share * TOLERANCE:
            # Largest remainder is off by less than one slot, plus a little for those rounded up to
            # one.
            enough = math.ceil(1 / TOLERANCE) + 1
            raise BadInput(
                f"{name} cannot have {_percent(share)} of the mixture: rounded to {count} of "
                f"{size} slots it would be {_percent(Fraction(count, size))}; the smallest share "
                f"there can be is {_percent(Fraction(1, size))}",
                f"leave {name} out, or give it at least {_percent(Fraction(enough, size))}, from "
                f"where on every share is met within {_percent(TOLERANCE)} of itself",
            )


def _percent(share: Fraction) -> str:
    return f"{float(100 * share):.3g} %"
