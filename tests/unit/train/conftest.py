"""Run directories of a training state that is as small as can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.state.run_directory import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "it", SystemClock())
