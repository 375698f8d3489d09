"""A real file system that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def full_disk(at: Path, free_bytes: int) -> Iterator[Path]:
    """Needs the right to mount; the test is skipped without it."""
    at.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={free_bytes}", "headway-test", str(at)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)
