"""`make bench-form`: 64, 128, 256 and 512 simulated members of a group exchange addresses of gloo's
real size through a coordinator. Its processor time, and what is sent. Ends with one line of JSON.

Real: the coordinator's process on one core, a session for each member with every tag made and
verified. Simulated: the members, which are in this process, and do not connect to each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.coordinator import CLIENT_CORE, SERVER_CORE, Fleet, until
from headway.member.coordinator.rules import Rules
from headway.member.protocol.messages import StoreGather, StoreSet, StoreValues
from support.coordinator_process import CoordinatorProcess
from support.member_client import Member

SIZES = [int(size) for size in os.environ.get("SIZES", "64,128,256,512").split(",")]
ROUNDS = 3
TARGET_SECONDS = 5.0
ADDRESS_BYTES = 8 + 63 + 8 + 136
"""Of gloo: two lengths, the longest name of a pod, and a socket's address with a number."""


async def form(member: Member, rank: int, size: int, group: str) -> None:
    number = member.follower.newest.number
    value = rank.to_bytes(4, "big") * (ADDRESS_BYTES // 4)
    await member.ask(lambda request: StoreSet(request, number, f"{group}/{rank}", value))
    answer = await member.ask(lambda request: StoreGather(request, number, f"{group}/", size, 60.0))
    assert isinstance(answer, StoreValues)
    assert len(answer.values) == size
    assert answer.values[rank] == value


async def measure(size: int, folder: Path) -> dict[str, Any]:
    with CoordinatorProcess(folder, Rules(max_domains=size)) as coordinator:
        assert coordinator.process is not None
        os.sched_setaffinity(coordinator.process.pid, {SERVER_CORE})
        fleet = Fleet(coordinator)
        fleet.come(size)
        await until(fleet.are_in, 60, "a generation with all of them")
        rounds = []
        for index in range(ROUNDS):
            began, cpu = time.monotonic(), coordinator.cpu_seconds
            received = sum(member.num_bytes for member in fleet.members)
            requests = await coordinator.count("requests")
            async with asyncio.TaskGroup() as group:
                for rank, member in enumerate(fleet.members):
                    group.create_task(form(member, rank, size, f"group-{index}"))
            sent = sum(member.num_bytes for member in fleet.members) - received
            rounds.append(
                {
                    "cpu_seconds": round(coordinator.cpu_seconds - cpu, 3),
                    "seconds": round(time.monotonic() - began, 3),
                    "requests": await coordinator.count("requests") - requests,
                    "bytes_each": round(sent / size),
                }
            )
        for member in fleet.members:
            await member.stop()
        await asyncio.sleep(0)
    return sorted(rounds, key=lambda one: one["cpu_seconds"])[ROUNDS // 2]


def main() -> int:
    os.sched_setaffinity(0, {CLIENT_CORE})
    found = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            found[size] = asyncio.run(measure(size, Path(scratch)))
        print(f"{size} members: {found[size]}", file=sys.stderr)
    largest = found[SIZES[-1]]
    line = {
        "name": "bench-form",
        "figure": largest["cpu_seconds"],
        "target": TARGET_SECONDS,
        "pass": largest["cpu_seconds"] <= TARGET_SECONDS
        and all(one["requests"] == 2 * size for size, one in found.items()),
        "spread": {str(size): one for size, one in found.items()},
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
