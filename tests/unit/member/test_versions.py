"""A worker and a coordinator of different protocol versions refuse each other, and both say why."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from headway.clock import SystemClock
from headway.member.coordinator.record import StoreRecord
from headway.member.coordinator.record_keeper import claim
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.server import CoordinatorServer
from headway.member.protocol.handshake import HIGHEST_VERSION, HandshakeRefused, WorkerSide
from headway.member.worker.session import Session
from headway.state.store import Store
from support.small_coordinator import KEY, RUN, SmallCoordinator
from support.waiting import wait_for

SECONDS = 10.0
OURS = f"version {HIGHEST_VERSION}"
HINT = "run the workers and the coordinator with the same version of Headway"


def test_a_worker_logs_that_the_coordinator_is_newer_and_says_so_once() -> None:
    lines: list[str] = []
    with (
        SmallCoordinator(versions=(7, 9)) as coordinator,
        Session(coordinator.address, KEY, RUN, "node-0.1/0", log=lines.append) as session,
    ):
        wait_for("several tries", lambda: len(coordinator.connected_at) > 2, SECONDS)
        assert not session.view.connected
    assert lines == [
        f"coordinator at {coordinator.address}: the coordinator is newer: it speaks versions 7 to "
        f"9 of the session protocol, and this worker speaks {OURS}\nhint: {HINT}"
    ]


def test_a_coordinator_notes_that_a_worker_is_newer(tmp_path: Path) -> None:
    async def refused() -> tuple[HandshakeRefused, list[str]]:
        clock, record = SystemClock(), StoreRecord(Store(tmp_path), RUN)
        claimed = await claim(record, clock, print)
        server = CoordinatorServer(RUN, KEY, Rules(), record, claimed, clock, print)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        stop = asyncio.Event()
        serving = asyncio.create_task(server.serve(listening, None, stop))
        worker = WorkerSide(KEY, RUN, "node-0.1/0", versions=(7, 7))
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(worker.hello)
            error = worker.receive(await reader.read()).error
            writer.close()
            stop.set()
            await serving
        assert isinstance(error, HandshakeRefused)
        return error, [refusal.why for refusal in server.history.refusals]

    error, whys = asyncio.run(refused())
    assert str(error) == (
        f"the coordinator is older: it speaks {OURS} of the session protocol, and this worker "
        f"speaks version 7\nhint: {HINT}"
    )
    assert whys == [
        f"the worker is newer: it speaks version 7 of the session protocol, and this coordinator "
        f"speaks {OURS}; {HINT}"
    ]
