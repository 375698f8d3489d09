"""Weights of a mixture's members as the run file and their sizes decide them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from headway.data.mixture_shares import MemberAmount, decided_slots, exact, tempered
from headway.plan.train_length import num_steps

if TYPE_CHECKING:
    from headway.spec.data_config import DataSetConfig
    from headway.spec.load import Loaded


@dataclass(frozen=True)
class SetSize:
    tokens: int
    samples: int


def needs_sizes(train: DataSetConfig) -> bool:
    """Whether the weights of a mixture's members follow from their sizes."""
    limits = [one.max_epochs for one in (train.mixture or {}).values()]
    return train.temperature is not None or any(limits)


def decided_weights(loaded: Loaded, sizes: Mapping[str, SetSize | None]) -> dict[str, float] | None:
    """Weight of each member of a mixture, in slots. None: it depends on a size that is missing."""
    run, train, members = loaded.run, loaded.run.data.train, []
    assert train is not None
    length = (loaded.begun and loaded.begun.length) or run.train_for
    epoch = samples_of_mixture([size.samples if size else None for size in sizes.values()], [])
    has_limit = any(one.max_epochs for one in (train.mixture or {}).values())
    if has_limit and (run.batch is None or (length.unit == "epochs" and epoch is None)):
        return None
    steps = batch = 1
    if has_limit and run.batch is not None:
        tokens = run.data.sequence_length
        batch = run.batch.global_.sequences(tokens)
        steps = num_steps(length.unit, length.amount, batch, tokens, epoch)
    for name, one in (train.mixture or {}).items():
        size = sizes[name]
        if size is None and (one.weight is None or one.max_epochs):
            return None
        known, most = size or SetSize(0, 0), None
        if one.max_epochs:
            most = math.floor(exact(one.max_epochs) * known.samples)
        if one.weight:
            amount = exact(one.weight)
        elif one.epochs:
            amount = exact(one.epochs) * known.tokens
        else:
            amount = tempered(known.tokens, train.temperature or 1)
        members.append(MemberAmount(name, amount, most))
    return dict(zip(sizes, map(float, decided_slots(members, steps, batch)), strict=True))


def samples_of_mixture(each: list[int | None], epochs: list[float | None]) -> int | None:
    """Samples of one epoch of the mixture. None: those of a member are not known."""
    known = [number for number in each if number is not None]
    if len(known) < len(each):
        return None
    if not any(epochs):
        return sum(known)
    times = [Fraction(repr(one)) for one in epochs if one is not None]
    return sum(round(one * number) for one, number in zip(times, known, strict=True))
