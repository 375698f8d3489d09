"""What all tiers share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from support.stolen_time import start_sleepers

# Its asserts are those of the tests that import them.
pytest.register_assert_rewrite("support.record_cases")

# No test may ask the hub, and thread counts decide bits.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A single example may be slow on a busy machine; whole tests have their own timeout.
settings.register_profile("headway", deadline=None)
settings.load_profile("headway")

HANG_FACTOR = 3


def pytest_configure() -> None:
    start_sleepers()  # before any test counts threads and descriptors


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test's timeout ends what hangs. It counts by the clock, of which the host of a virtual
    machine may take two thirds; bounds that mean something count without (stolen_time.py)."""
    default = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = marker.args[0] if marker else default
        item.add_marker(pytest.mark.timeout(HANG_FACTOR * seconds), append=False)
