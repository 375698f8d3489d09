"""A folder in the memory of this machine, for as long as a launcher runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

SHARED_MEMORY = Path("/dev/shm")


def memory_path(of: str, root: Path = SHARED_MEMORY) -> Path:
    return root / f"headway-{os.getuid()}-{xxhash.xxh3_64_hexdigest(of.encode())}"


@contextmanager
def folder_in_memory(of: str, root: Path = SHARED_MEMORY) -> Iterator[Path | None]:
    """Empty, for the run at `of`; None if this machine has none. What a launcher of this run that
    was killed has left there is removed: it would take memory until the machine is restarted."""
    folder = memory_path(of, root)
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700)  # not one that somebody else has made
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
