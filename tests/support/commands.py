"""The headway command as a user types it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEADWAY = [sys.executable, "-m", "headway.cli.main"]


def headway(
    *arguments: str, folder: Path, expect: int = 0, seconds: float = 240
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*HEADWAY, *arguments], cwd=folder, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == expect, (
        f"headway {' '.join(arguments)} -> {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*HEADWAY, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
