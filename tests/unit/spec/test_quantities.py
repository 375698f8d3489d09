"""Quantities as people write them, there and back, and what is said about the wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.spec.located_yaml import read_yaml
from headway.spec.quantities import (
    Accelerators,
    BatchSize,
    Interval,
    Length,
    NodeRange,
    Warmup,
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("10B tokens", Length(10**10, "tokens")),
        ("0.5M tokens", Length(500_000, "tokens")),
        ("1e9 tokens", Length(10**9, "tokens")),
        ("300_000 tokens", Length(300_000, "tokens")),
        ("2T tokens", Length(2 * 10**12, "tokens")),
        ("500 steps", Length(500, "steps")),
        ("10k steps", Length(10_000, "steps")),
        ("1 step", Length(1, "steps")),
        ("3 epochs", Length(3, "epochs")),
        ("1 epoch", Length(1, "epochs")),
        ("0.5 epochs", Length(0.5, "epochs")),
        # One digit more than a float holds.
        ("10000000000000001 tokens", Length(10**16 + 1, "tokens")),
        ("10min", Interval(600, "seconds")),
        ("10 min", Interval(600, "seconds")),
        ("1.5h", Interval(5400, "seconds")),
        ("90s", Interval(90, "seconds")),
        ("1d", Interval(86400, "seconds")),
        ("500 steps", Interval(500, "steps")),
        ("5%", Warmup(0.05, "share")),
        ("0%", Warmup(0.0, "share")),
        ("100%", Warmup(1.0, "share")),
        ("2000 steps", Warmup(2000, "steps")),
        (0, Warmup(0, "steps")),
        (512, BatchSize(512, "sequences")),
        ("512 sequences", BatchSize(512, "sequences")),
        ("0.5M tokens", BatchSize(500_000, "tokens")),
        (4, NodeRange(4, 4)),
        ("2..16", NodeRange(2, 16)),
        ("H100:8", Accelerators("H100", 8)),
        ("A100-80GB:4", Accelerators("A100-80GB", 4)),
        ("H100", Accelerators("H100", 1)),
        ("cpu:2", Accelerators("cpu", 2)),
        (["H100:8", "A100-80:8"], Accelerators("H100", 8, ("A100-80",))),
        ("[H100:8,A100-80:8]", Accelerators("H100", 8, ("A100-80",))),
        (["H100:8"], Accelerators("H100", 8)),
    ],
)
def test_what_is_written(written: str | int | list[str], expected: Any) -> None:
    assert type(expected).parse(written) == expected


@pytest.mark.parametrize("kind", [Length, Interval, Warmup, BatchSize])
@pytest.mark.parametrize("written", ["10m", "10 m", "10m tokens", "10m steps", " 10m tokens"])
def test_a_bare_m_is_refused_everywhere(kind: Any, written: str) -> None:
    with pytest.raises(ValueError, match="minutes or million\\? Write 10min or 10M"):
        kind.parse(written)


@pytest.mark.parametrize(
    ("kind", "written", "says"),
    [
        (Length, 500, "write for example 10B tokens or 500 steps"),
        (Length, "10B", "write for example 10B tokens or 500 steps"),
        (Length, "10B token s", "write for example 10B tokens or 500 steps"),
        (Length, "10 hours", "'hours' is not a unit here; write for example 10B tokens"),
        (Length, "-5 steps", "write for example"),
        (Length, "0 steps", "not a positive number"),
        (Length, "1.5 steps", "not a whole number of steps"),
        (Length, "1e999999 tokens", "too large"),
        (Interval, "10 minutes", "write for example 10min or 500 steps"),
        (Interval, "0s", "not a positive number"),
        (Interval, 600, "write for example 10min or 500 steps"),
        (Warmup, 0.05, "write for example 5% or 2000 steps"),
        (Warmup, "120%", "more than the whole run"),
        (Warmup, "1.5 steps", "not a whole number of steps"),
        (BatchSize, 0, "needs at least 1 sequence, not 0"),
        (BatchSize, -3, "needs at least 1 sequence, not -3"),
        (BatchSize, "1k", "write for example 512 or 0.5M tokens"),
        (BatchSize, True, "write for example 512 or 0.5M tokens"),
        (NodeRange, "16..2", "must start at 1 or more"),
        (NodeRange, 0, "must start at 1 or more"),
        (NodeRange, "some", "a range such as 2..16"),
        (Accelerators, 8, "such as H100:8"),
        (Accelerators, "8xH100", "such as H100:8"),
        (Accelerators, "H100:0", "such as H100:8"),
        (Accelerators, "H100:00", "such as H100:8"),
        (Accelerators, [], "no list of different devices"),
        (Accelerators, ["H100:8", "h100:8"], "no list of different devices"),
        (Accelerators, ["H100:8", "A100:4"], "the same number per node"),
        (Accelerators, ["H100:1", "cpu:1"], "cpu cannot be one of several"),
        (Accelerators, ["H100:8", "8xA100"], "such as H100:8"),
    ],
)
def test_a_wrong_value_is_told_what_would_be_right(kind: Any, written: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        kind.parse(written)


@pytest.mark.parametrize(
    ("written", "number"),
    [("6e-4", 6e-4), ("1e9", 1e9), ("2.0e-3", 2e-3), (".5", 0.5), ("17", 17), ("1_000", 1000)],
)
def test_numbers_in_yaml(written: str, number: float) -> None:
    value = read_yaml(f"lr: {written}", "f").value["lr"]
    assert value == number
    assert isinstance(value, int | float)


@pytest.mark.parametrize("written", ["10min", "2..16", "5%", "H100:8", "1:30", "2026-11-15", "1e"])
def test_words_in_yaml_stay_words(written: str) -> None:
    assert read_yaml(f"every: {written}", "f").value["every"] == written


COUNTS = st.integers(1, 10**18)
FRACTIONS = st.floats(1e-6, 1e6, allow_nan=False)
QUANTITIES = st.one_of(
    st.builds(Length, COUNTS, st.sampled_from(["tokens", "steps", "epochs"])),
    st.builds(Length, FRACTIONS, st.just("epochs")),
    st.builds(Interval, COUNTS, st.sampled_from(["steps", "seconds"])),
    st.builds(Interval, FRACTIONS, st.just("seconds")),
    st.builds(Warmup, st.integers(0, 10**18), st.just("steps")),
    st.builds(Warmup, st.floats(0, 1), st.just("share")),
    st.builds(BatchSize, COUNTS, st.sampled_from(["sequences", "tokens"])),
    st.tuples(COUNTS, COUNTS).map(lambda pair: NodeRange(min(pair), max(pair))),
    st.builds(Accelerators, st.sampled_from(["H100", "cpu", "A100-80GB"]), COUNTS),
    st.builds(Accelerators, st.just("H100"), COUNTS, st.just(("A100-80", "L4"))),
)


@given(quantity=QUANTITIES)
def test_what_is_printed_reads_back_the_same(quantity: Any) -> None:
    assert type(quantity).parse(str(quantity)) == quantity


@given(quantity=QUANTITIES)
def test_also_through_a_yaml_file(quantity: Any) -> None:
    """The resolved run goes through JSON, which is YAML: nothing may turn into another type."""
    value = read_yaml(f"it: {quantity}", "f").value["it"]
    assert type(quantity).parse(value) == quantity


def test_shares_and_batches_in_steps_and_sequences() -> None:
    assert Warmup.parse("5%").steps(300) == 15
    assert Warmup.parse("20 steps").steps(300) == 20
    assert BatchSize.parse("0.5M tokens").sequences(1024) == 488
    assert BatchSize.parse("100 tokens").sequences(1024) == 1
    assert BatchSize.parse(512).sequences(1024) == 512
