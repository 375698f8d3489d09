"""A node's cgroups, in every hierarchy the machine has: the kubelet wants its root made before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from support.waiting import wait_for


def hierarchies() -> list[Path]:
    """One with version 2, one a controller with version 1."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return [Path(where) for _, where, kind, *_ in mounts if kind in ("cgroup", "cgroup2")]


def make(name: str) -> None:
    for root in hierarchies():
        folder = root / name
        folder.mkdir(exist_ok=True)
        # Version 1 gives a new set no processor and no memory, and then takes no process into it.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (root / setting).exists():
                (folder / setting).write_text((root / setting).read_text())


def pids(name: str, within: str = "") -> set[int]:
    """All processes in it and below; `within` is a word that their group's path must have."""
    found: set[int] = set()
    for folder in _folders(name):
        if within in str(folder):
            # A group can go while it is read.
            with suppress(OSError):
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
    return found


def remove(name: str) -> None:
    """The kernel lets go of an ended process a moment later."""
    wait_for(f"the cgroups of {name} to be empty", lambda: _removed(name), seconds=20)


def traces(prefix: str) -> list[str]:
    return sorted(f"cgroup {path}" for root in hierarchies() for path in root.glob(f"{prefix}*"))


def _folders(name: str) -> Iterator[Path]:
    """Deepest first. Unlike globbing, walking bears that folders go meanwhile."""
    for root in hierarchies():
        for folder, _, _ in os.walk(root / name, topdown=False):
            yield Path(folder)


def _removed(name: str) -> bool:
    for folder in _folders(name):
        with suppress(OSError):
            folder.rmdir()
    return not any((root / name).exists() for root in hierarchies())
