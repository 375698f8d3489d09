"""Limits and counts of cgroups, as containers and machines show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.memory_limits import Memory, byte_size

MEMINFO = "MemTotal:       25165824 kB\nMemFree:  100 kB\n"
V1 = "4:memory:/pods/it\n1:cpu:/pods/it\n0::/\n"


def memory(root: Path, cgroup: str, **files: str) -> Memory:
    """`files` by path under /sys/fs/cgroup."""
    for name, content in {
        "proc/self/cgroup": cgroup,
        "proc/meminfo": MEMINFO,
        **{f"sys/fs/cgroup/{name}": content for name, content in files.items()},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return Memory(root)


@pytest.mark.parametrize(
    ("cgroup", "files", "kills", "limit"),
    [
        # Version 1: the limit is further up, and nobody's is a huge number.
        (
            V1,
            {
                "memory/pods/it/memory.oom_control": "under_oom 0\noom_kill 3\n",
                "memory/pods/it/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/pods/memory.limit_in_bytes": "1073741824\n",
                "memory/memory.oom_control": "oom_kill 7\n",
            },
            3,
            2**30,
        ),
        # In a container the path is the machine's, and its own group is mounted at the top.
        (V1, {"memory/memory.oom_control": "oom_kill 2\n"}, 2, 24 * 2**30),
        # A kernel before 4.13 does not count.
        (V1, {"memory/memory.oom_control": "under_oom 0\n"}, None, 24 * 2**30),
        # Version 2.
        (
            "0::/kubepods/it\n",
            {
                "kubepods/it/memory.events": "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n",
                "kubepods/it/memory.max": "2147483648\n",
                "kubepods/memory.max": "max\n",
            },
            1,
            2**31,
        ),
        ("0::/\n", {"memory.events": "oom_kill 4\n", "memory.max": "max\n"}, 4, 24 * 2**30),
        ("", {}, None, 24 * 2**30),
    ],
)
def test_both_versions(
    tmp_path: Path, cgroup: str, files: dict[str, str], kills: int | None, limit: int
) -> None:
    found = memory(tmp_path, cgroup, **files)
    assert (found.oom_kills(), found.limit_bytes()) == (kills, limit)


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, 9),  # The topmost cgroup of version 2 has no memory.events.
        ({"memory.events": "oom_kill 4\n"}, 4),
    ],
)
def test_the_machine_counts_where_no_cgroup_does(
    tmp_path: Path, files: dict[str, str], kills: int
) -> None:
    found = memory(tmp_path, "0::/\n", **files)
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 100\noom_kill 9\nnr_unstable 0\n")
    assert found.oom_kills() == kills
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 100\n")  # before Linux 4.13
    assert found.oom_kills() == (kills if files else None)


def test_of_this_machine() -> None:
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**26 < Memory().limit_bytes() <= there
    assert (Memory().oom_kills() or 0) >= 0


def test_a_small_model_has_a_size() -> None:
    sizes = {15_056_000: "14.4 MiB", 3.1 * 2**30: "3.1 GiB", 2**20: "1.0 MiB", 4096: "4 KiB"}
    assert {byte_size(number): words for number, words in sizes.items()} == {
        words: words for words in sizes.values()
    }
