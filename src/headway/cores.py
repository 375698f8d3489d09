"""How many processors this process may use."""

from __future__ import annotations

import os


def num_cores() -> int:
    """All of the machine's where the system cannot say which this process may use, as macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
