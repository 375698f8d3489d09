"""`make bench-coordinator`: 500, 2,000 and 5,000 simulated sessions against one coordinator on one
core, with heartbeats every second and members that come and go. Ends with one line of JSON.

The sessions are real ones, with every tag made and verified, from this process on another core;
what is simulated is the training behind them. A close counts from the moment the socket is closed,
with the quarter of a second in which a living process would come back; a join from the end of the
second in which others may come along.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from headway.member.coordinator.rules import Rules
from support.coordinator_process import CoordinatorProcess
from support.member_client import Member, are_one_group

SIZES = [int(size) for size in os.environ.get("SIZES", "500,2000,5000").split(",")]
CHANGES = int(os.environ.get("CHANGES", "20"))
STEADY_SECONDS = float(os.environ.get("STEADY_SECONDS", "15"))
TARGET_SECONDS = 1.0
COMING_AT_ONCE = 500
"""As workers of a large job do. All 5,000 at once would have to be sent 260 kB each: their
machines can read that, but one core in their place takes longer than newcomers are waited for."""
SERVER_CORE, CLIENT_CORE = 0, 1


class Fleet:
    def __init__(self, coordinator: CoordinatorProcess) -> None:
        self.coordinator = coordinator
        self.members: list[Member] = []
        self._names = count()

    def come(self, count: int) -> list[Member]:
        """So many more."""
        coordinator = self.coordinator
        came = []
        for _ in range(count):
            index = next(self._names)
            # As long as a Kubernetes name with its UID; and each worker has an address of its own.
            name = f"it-{index:05d}-1f0c8a52-7a5e-4c39-9d2f-000000000000"
            source = f"127.1.{index // 250}.{index % 250 + 1}"
            member = Member(
                coordinator.address, coordinator.key, coordinator.run, name, source=source
            )
            self.members.append(member.start())
            came.append(member)
        return came

    def are_in(self) -> bool:
        """All of them, in one generation that works."""
        return are_one_group(self.members)

    def are_established(self, number: int) -> bool:
        return all(member.follower.status.healed >= number for member in self.members)


async def until(look: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        await asyncio.sleep(0.02)


async def measure(size: int, folder: Path) -> dict[str, Any]:
    with CoordinatorProcess(folder, Rules(max_domains=size)) as coordinator:
        assert coordinator.process is not None
        os.sched_setaffinity(coordinator.process.pid, {SERVER_CORE})
        found: dict[str, Any] = {"start_seconds": coordinator.start_seconds}
        found["start_megabytes"] = coordinator.rss_bytes / 1e6
        fleet = Fleet(coordinator)
        began = time.monotonic()
        while len(fleet.members) < size:
            fleet.come(min(COMING_AT_ONCE, size - len(fleet.members)))
            await until(fleet.are_in, 60, "a generation with all of them")
        found["forming_seconds"] = time.monotonic() - began
        gc.collect()
        gc.freeze()
        found |= await steady(fleet)
        found |= await changes(fleet)
        found["megabytes"] = coordinator.rss_bytes / 1e6
        found |= await found_again(fleet)
        found["sessions_closed_unasked"] = sum(len(member.lost) for member in fleet.members) - len(
            fleet.members
        )  # one each, by the kill
        found["evicted"] = sum(len(member.evicted) for member in fleet.members)
        errors = [error for member in fleet.members for error in member.errors]
        assert not errors, errors[:3]
        for member in fleet.members:
            await member.stop()
        await asyncio.sleep(0)
    return found


async def steady(fleet: Fleet) -> dict[str, Any]:
    """Nothing but heartbeats."""
    coordinator, size = fleet.coordinator, len(fleet.members)
    await asyncio.sleep(2)
    for member in fleet.members:
        member.latest_heartbeat_seconds = 0.0
    sent = sum(member.num_heartbeats for member in fleet.members)
    heartbeats, cpu, began = (
        await coordinator.count("beats"),
        coordinator.cpu_seconds,
        time.monotonic(),
    )
    oldest = []
    while time.monotonic() < began + STEADY_SECONDS:
        await asyncio.sleep(1)
        workers = (await coordinator.state())["pods"].values()
        oldest.append(max(worker["silent_seconds"] for worker in workers))
    seconds = time.monotonic() - began
    sent = sum(member.num_heartbeats for member in fleet.members) - sent
    heartbeats = await coordinator.count("beats") - heartbeats
    cpu = coordinator.cpu_seconds - cpu
    return {
        "beats_each_second": heartbeats / seconds,
        "beats_of_expected": heartbeats / (size * seconds),
        "longest_silence_seconds": max(oldest),
        "latest_beat_of_client_seconds": max(m.latest_heartbeat_seconds for m in fleet.members),
        "server_cpu": cpu / seconds,
        "microseconds_each_member_second": 1e6 * cpu / seconds / size,
        "lag_seconds": await coordinator.lag_seconds(),
    }


async def changes(fleet: Fleet) -> dict[str, Any]:
    closes: list[float] = []
    joins: list[float] = []
    cpus: list[float] = []
    coordinator = fleet.coordinator
    for turn in range(CHANGES):
        number = fleet.members[0].follower.newest.number + 1
        cpu = coordinator.cpu_seconds
        if turn % 2 == 0:
            gone = fleet.members.pop(len(fleet.members) * turn // CHANGES)
            began = time.monotonic()
            await gone.stop()
            times = closes
        else:
            (came,) = fleet.come(1)
            await until(partial(getattr, came, "is_welcome"), 10, "a session")
            began = came.connects[0] + Rules().join_seconds
            times = joins
        await until(partial(fleet.are_established, number), 30, "a generation")
        times.append(max(member.heard[number] for member in fleet.members) - began)
        await asyncio.sleep(0.5)
        cpus.append(coordinator.cpu_seconds - cpu)
    return {
        "close_seconds": spread(closes),
        "join_seconds": spread(joins),
        "cpu_seconds_a_change": spread(cpus),
    }


async def found_again(fleet: Fleet) -> dict[str, Any]:
    """Killed, and started at the same address."""
    coordinator = fleet.coordinator
    coordinator.kill()
    killed = time.monotonic()
    await coordinator.start_aside()
    assert coordinator.process is not None
    os.sched_setaffinity(coordinator.process.pid, {SERVER_CORE})
    serving = time.monotonic()
    await until(
        lambda: all(member.connects[-1] > killed for member in fleet.members), 60, "all to be back"
    )
    back = sorted(member.connects[-1] - serving for member in fleet.members)
    return {"back_after_kill_seconds": {"median": back[len(back) // 2], "all": back[-1]}}


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "longest": max(values)}


def main() -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.sched_setaffinity(0, {CLIENT_CORE})
    results = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            results[str(size)] = found = asyncio.run(measure(size, Path(folder)))
            print(json.dumps({size: found}, indent=2), file=sys.stderr, flush=True)
    largest = results[str(max(SIZES))]
    longest = max(largest["close_seconds"]["longest"], largest["join_seconds"]["longest"])
    held = largest["beats_of_expected"] > 0.97 and not largest["evicted"]
    verdict = {
        "name": "coordinator",
        "figure": round(longest, 3),
        "target": TARGET_SECONDS,
        "pass": longest <= TARGET_SECONDS and held and largest["server_cpu"] < 1,
        "spread": results,
    }
    print(json.dumps(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
