"""Commands of the machine, with words for those that fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def run(*words: str | Path, seconds: float = 120.0) -> str:
    """What the command prints; it must succeed."""
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, (
        f"{' '.join(command)} -> {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def try_to(*words: str | Path) -> bool:
    """Whether the command succeeded: for taking away what may not be there."""
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def need_root() -> None:
    assert os.geteuid() == 0, (
        "the test cluster makes namespaces and cgroups: it needs root, or another cluster "
        "by HEADWAY_TEST_KUBECONFIG"
    )
