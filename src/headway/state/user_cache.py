"""The user's cache on this machine: what can be fetched again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    named = os.environ.get("HEADWAY_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway"
