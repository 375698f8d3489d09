"""Published figures of memory: what was fitted to them, and how near plan comes."""

from __future__ import annotations

import statistics

import pytest

from headway.plan.memory_peak import GPU_ALLOCATOR, GPU_SMALL
from support.accuracy_page import written_section
from support.published_memory import accuracy_section, fitted_shares, published_memory


def test_shares_of_gpus_are_fitted_to_the_rows_for_it() -> None:
    allocated = fitted_shares("peak_allocated", "peak_active")
    assert len(allocated) == 4
    assert GPU_SMALL.middle == pytest.approx(statistics.median(allocated), abs=0.005)
    assert GPU_SMALL.high == pytest.approx(max(allocated), abs=0.005)
    (reserved,) = fitted_shares("peak_reserved")
    assert GPU_SMALL.middle + GPU_ALLOCATOR.middle == pytest.approx(reserved, abs=0.01)


def test_no_published_verdict_is_contradicted() -> None:
    verdicts = [row for row in published_memory() if row.published is None]
    assert len(verdicts) == 8
    assert not [row.row.id for row in verdicts if row.is_unsafe]
    assert len([row for row in verdicts if row.is_right]) >= 6


def test_published_peaks_of_torch_are_within_their_range() -> None:
    rows = [row for row in published_memory() if row.published is not None and row.is_comparable]
    assert len(rows) >= 8
    assert statistics.median(abs(row.error) for row in rows) <= 0.10
    for row in rows:
        assert row.published is not None
        assert row.published <= row.predicted[2], f"{row.row.id}: unsafe"


def test_only_rows_of_deepspeed_exceed_their_range() -> None:
    above = [
        row.row.values["source"]
        for row in published_memory()
        if row.published is not None and row.published > row.predicted[2]
    ]
    assert set(above) == {"bigscience", "qwen"}


def test_the_page_has_what_the_code_says() -> None:
    assert written_section("memory") == accuracy_section().strip(), "make memory-page"
