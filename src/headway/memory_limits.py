"""How much memory this process and its children may use, and how many processes the kernel killed
for lack of it. From cgroups of either version, else from /proc, else what the system says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

OOM_FILES = ("memory.oom_control", "memory.events")
LIMIT_FILES = ("memory.limit_in_bytes", "memory.max")
"""Of cgroup version 1, of version 2."""


class Memory:
    """`root` is the folder that holds proc and sys."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def oom_kills(self) -> int | None:
        """Processes of our cgroup killed for lack of memory so far, by its own limit or the
        machine's; of the whole machine where no cgroup counts, as in the root of version 2. None if
        nothing counts them."""
        files = [group / name for group in self._groups() for name in OOM_FILES]
        for file in [*files, self._root / "proc/vmstat"]:
            with suppress(OSError):
                counts = dict(map(str.split, file.read_text().splitlines()))
                if "oom_kill" in counts:
                    return int(counts["oom_kill"])
        return None

    def limit_bytes(self) -> int:
        """The smallest limit of our cgroup and its ancestors; at most the machine's memory."""
        try:
            table = (self._root / "proc/meminfo").read_text()
        except FileNotFoundError:  # macOS
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limits = [1024 * int(table.partition("MemTotal:")[2].split()[0])]
        for group in self._groups():
            for name in LIMIT_FILES:
                with suppress(OSError, ValueError):  # ValueError: `max`
                    limits.append(int((group / name).read_text()))
        return min(limits)

    def _groups(self) -> Iterator[Path]:
        """Our own first, then its ancestors. A container's own is often mounted at the root."""
        paths = {}
        with suppress(OSError):
            for line in (self._root / "proc/self/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                for controller in controllers.split(","):
                    paths[controller] = path.strip("/")
        top = self._root / "sys/fs/cgroup"
        if "memory" in paths:
            top, own = top / "memory", paths["memory"]
        else:
            own = paths.get("", "")
        group = top / own
        while group != top:
            yield group
            group = group.parent
        yield top


def byte_size(num_bytes: float) -> str:
    """3.1 GiB; 14.4 MiB; 812 KiB: in the units in which memory is sold."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes / 2**10:.0f} KiB"
