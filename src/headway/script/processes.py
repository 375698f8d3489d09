"""Processes of a script, from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
PROC = Path("/proc")


class ProcessStat(msgspec.Struct, frozen=True):
    """A line of /proc/PID/stat."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    ticks: int
    """Processor time that it has used, without that of its children."""
    started: int
    """Ticks since the machine has booted: tells it from a later process with the same number."""


def read_stat(pid: int) -> ProcessStat | None:
    """None: there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # a name may have anything in it
    fields = rest.split()
    if len(fields) < 20:
        return None
    return ProcessStat(
        pid=pid,
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        ticks=int(fields[11]) + int(fields[12]),
        started=int(fields[19]),
    )


def group_members(group: int) -> Iterator[ProcessStat]:
    with suppress(OSError):
        for entry in PROC.iterdir():
            if entry.name.isdigit():
                found = read_stat(int(entry.name))
                if found is not None and found.group == group and found.state != "Z":
                    yield found


def shells_and_their_children(pid: int) -> list[tuple[int, int]]:
    """Who is asked to end when this process is: itself, and what it has started if it is a shell,
    which does not pass signals on. Each with the time of its start. Those that read a pipe are
    among them."""
    first = read_stat(pid)
    if first is None:
        return []
    members = list(group_members(first.group)) if first.name in SHELLS else []
    found, asked = [first], []
    while found:
        one = found.pop()
        asked.append((one.pid, one.started))
        if one.name in SHELLS:
            found += [member for member in members if member.parent == one.pid]
    return asked


def ends_with_its_input(pid: int) -> bool:
    """Whether it reads a pipe, as `tee` does, and has no handler for SIGTERM. It ends when those
    that write to it have; if it did sooner, what they print would be an error."""
    try:
        return os.readlink(PROC / str(pid) / "fd/0").startswith("pipe:") and not catches(
            pid, signal.SIGTERM
        )
    except OSError:
        return False


def catches(pid: int, number: int) -> bool:
    """Whether it has a handler for the signal."""
    with suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def is_running(pid: int, started: int) -> bool:
    found = read_stat(pid)
    return found is not None and found.started == started and found.state != "Z"
