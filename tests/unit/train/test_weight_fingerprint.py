"""Whoever has other weights than most is found, whichever bit it is. Groups are real, workers are
threads."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headway.errors import RunFailed
from headway.train.collectives import WorkerGroup
from headway.train.step import Training
from headway.train.weight_fingerprint import (
    Diverged,
    diverged_ranks,
    fingerprint,
    kind_of,
    own_kind,
    processor,
)
from support.together import outcomes

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

CPUINFO = """\
processor\t: 0
model name\t: AMD EPYC 7B13
cpu MHz\t\t: 2445
flags\t\t: fpu avx2 avx512f

processor\t: 1
model name\t: AMD EPYC 7B13
"""


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.some = nn.ParameterList(torch.randn(3, 5, dtype=dtype) for dtype in DTYPES)
        self.turned = nn.Parameter(torch.randn(4, 3).t())
        self.number = nn.Parameter(torch.randn(()))


def made() -> Training:
    return cast(Training, SimpleNamespace(model=Mixed(), step=200))


def flip(training: Training, parameter: int, at: int, bit: int) -> None:
    """One bit of one weight."""
    chosen = list(training.model.parameters())[parameter % 6]
    content = chosen.detach().contiguous().view(-1).view(torch.uint8)
    content[at % len(content)] ^= 1 << bit
    with torch.no_grad():
        chosen.copy_(content.view(chosen.dtype).view(chosen.shape))


@given(st.integers(0, 5), st.integers(0, 1000), st.integers(0, 7))
def test_every_bit_counts(parameter: int, at: int, bit: int) -> None:
    training = made()
    before = fingerprint(training)
    flip(training, parameter, at, bit)
    assert fingerprint(training) != before
    flip(training, parameter, at, bit)
    assert fingerprint(training) == before


def compared(odd: set[int], size: int, kinds: Sequence[int] | None = None) -> list[Any]:
    """What each of so many workers finds, if the `odd` ones have other weights. `kinds`: of their
    arithmetic."""
    replicas = [made() for _ in range(size)]
    for rank in odd:
        flip(replicas[rank], 0, rank, 3)

    def work(group: WorkerGroup) -> list[int]:
        return diverged_ranks(replicas[group.rank], group, kinds[group.rank] if kinds else 1)

    found: list[Any] = outcomes(size, work)
    return found


@pytest.mark.parametrize(("odd", "size"), [({2}, 3), ({0}, 4), ({1, 3}, 5)])
def test_the_odd_ones_know_and_the_others_name_them(odd: set[int], size: int) -> None:
    for rank, found in enumerate(compared(odd, size)):
        if rank in odd:
            assert isinstance(found, Diverged)
            assert "step 200" in str(found)
        else:
            assert found == sorted(odd)


def test_nobody_is_named_when_all_agree() -> None:
    assert compared(set(), 3) == [[], [], []]


@pytest.mark.parametrize(
    ("odd", "kinds"),
    [
        ({3}, [1, 1, 1, 2]),  # the only one of its kind
        ({1}, [1, 2]),
        ({2, 3}, [1, 1, 2, 2]),  # all of their kind
    ],
)
def test_unlike_processors_are_not_compared(odd: set[int], kinds: list[int]) -> None:
    """Their last bits may differ though nothing is wrong. Flipped alike in all of a kind."""
    replicas = [made() for _ in kinds]
    for rank in odd:
        flip(replicas[rank], 0, 0, 3)
    found = outcomes(
        len(kinds), lambda group: diverged_ranks(replicas[group.rank], group, kinds[group.rank])
    )
    assert found == [[]] * len(kinds)


def test_among_equals_the_odd_ones_are_found_in_every_kind() -> None:
    kinds = [1, 2, 1, 2, 1, 2, 3]
    for rank, found in enumerate(compared({2, 5, 6}, 7, kinds)):
        if rank in (2, 5):
            assert isinstance(found, Diverged)
        else:
            assert found == [2, 5]


def test_without_a_majority_in_one_kind_the_run_fails_on_all() -> None:
    for found in compared({1}, 5, [1, 1, 2, 2, 2]):
        assert isinstance(found, RunFailed)


def test_the_kind_of_an_arithmetic() -> None:
    kinds = [kind_of("2.15.0", "AMD EPYC 7B13"), kind_of("2.15.0", "Intel Xeon"), kind_of("2.14.0")]
    assert len(set(kinds)) == 3
    assert kinds[0] == kind_of("2.15.0", "AMD EPYC 7B13")
    assert all(0 <= kind < 2**62 for kind in kinds)
    assert own_kind(torch.device("cpu")) == own_kind(torch.device("cpu"))
    assert "model name" in processor(CPUINFO)
    assert processor(CPUINFO) == processor(CPUINFO.replace("MHz\t\t: 2445", "MHz\t\t: 3000"))
    assert processor(CPUINFO) != processor(CPUINFO.replace(" avx512f", ""))


@pytest.mark.parametrize(("odd", "size"), [({1}, 2), ({0, 1, 2}, 4)])
def test_without_a_majority_the_run_fails_on_all(odd: set[int], size: int) -> None:
    for found in compared(odd, size):
        assert isinstance(found, RunFailed)
        assert "no majority" in str(found)
