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


@dataclass(frozen=True)
class RunSamples:
    """Samples that a run takes from all members together."""

    steps: int
    batch: int

    @property
    def num_positions(self) -> int:
        return self.steps * self.batch


def exact(number: float) -> Fraction:
    """The decimal number as written, not the nearest binary fraction: a tenth is a tenth."""
    return Fraction(repr(number))


def tempered(num_tokens: int, temperature: float) -> Fraction:
    """tokens ** (1 / temperature). In decimal arithmetic, which is the same on every machine."""
    context = Context(prec=40)
    exponent = context.divide(Decimal(1), Decimal(repr(temperature)))
    return Fraction(context.power(Decimal(num_tokens), exponent))


def decided_slots(members: Sequence[MemberAmount], run: RunSamples | None) -> tuple[int, ...]:
    """Slots in proportion to the amounts; None of a run if no member has `most_samples`.

    A member contributes no more than these: among the first n positions, one with s slots has less
    than n * s / NUM_SLOTS + 1 (see `arrange_slots`): s <= most_samples * NUM_SLOTS / n is enough.
    """
    limits = {
        number: member.most_samples * NUM_SLOTS // run.num_positions
        for number, member in enumerate(members)
        if member.most_samples is not None and run is not None
    }
    cut: dict[int, int] = {}
    while True:
        others = {n: member.amount for n, member in enumerate(members) if n not in cut}
        if not others and run is not None:
            raise _too_few(members, run)
        left = NUM_SLOTS - sum(cut.values())
        found = dict(zip(others, divide_slots(list(others.values()), left), strict=True))
        over = {n: limits[n] for n, slots in found.items() if slots > limits.get(n, NUM_SLOTS)}
        if not over:
            break
        cut |= over
    names, numbers = [member.name for member in members], range(len(members))
    if tiny := next((names[number] for number, slots in cut.items() if slots == 0), None):
        raise BadInput(
            f"max_epochs leaves {tiny} less than {_percent(Fraction(1, NUM_SLOTS))} of the run, "
            "the smallest share there can be",
            f"leave {tiny} out, or raise its max_epochs",
        )
    total = sum(others.values())
    wanted = [Fraction(cut[n]) if n in cut else others[n] * left / total for n in numbers]
    slots = tuple((found | cut)[n] for n in numbers)
    require_shares(names, wanted, slots)
    return slots


def _too_few(members: Sequence[MemberAmount], run: RunSamples) -> BadInput:
    """The error if every member reaches its `max_epochs` before the run ends."""
    allowed = [member.most_samples or 0 for member in members]
    listed = ", ".join(f"{one.name} {most:,}" for one, most in zip(members, allowed, strict=True))
    # A slot each is lost to rounding.
    steps = sum(allowed) * NUM_SLOTS // (NUM_SLOTS + len(members)) // run.batch
    shorter = f", or train for less: --set 'train_for={steps} steps'" if steps else ""
    return BadInput(
        f"every set of the mixture reaches its max_epochs: together they give {sum(allowed):,} "
        f"samples ({listed}), and the run takes {run.num_positions:,}",
        f"raise a max_epochs, or leave one out{shorter}",
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
