"""A worker and a coordinator of different versions refuse each other, and both say why."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headway import __version__
from headway.clock import SystemClock
from headway.member.coordinator.record import StoreRecord
from headway.member.coordinator.record_keeper import claim
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.server import CoordinatorServer
from headway.member.protocol.handshake import (
    HIGHEST_VERSION,
    LOWEST_VERSION,
    HandshakeRefused,
    WorkerSide,
)
from headway.member.protocol.messages import Farewell, Heartbeat, Welcome
from headway.member.protocol.status import WorkerStatus
from headway.member.worker.session import Session
from headway.state.store import Store
from support.small_coordinator import KEY, RUN, SmallCoordinator
from support.waiting import wait_for

SECONDS = 10.0
OURS = f"versions {LOWEST_VERSION} to {HIGHEST_VERSION}"
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


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[CoordinatorServer, socket.socket]]:
    """A coordinator, and where it listens."""
    clock, record = SystemClock(), StoreRecord(Store(folder), RUN)
    claimed = await claim(record, clock, print)
    server = CoordinatorServer(RUN, KEY, Rules(), record, claimed, clock, print)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    stop = asyncio.Event()
    serving = asyncio.create_task(server.serve(listening, stop))
    async with asyncio.timeout(SECONDS):
        yield server, listening
        stop.set()
        await serving


def test_a_coordinator_notes_that_a_worker_is_newer(tmp_path: Path) -> None:
    async def refused() -> tuple[HandshakeRefused, list[str]]:
        worker = WorkerSide(KEY, RUN, "node-0.1/0", versions=(7, 7))
        async with served(tmp_path) as (server, listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(worker.hello)
            error = worker.receive(await reader.read()).error
            writer.close()
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


def said_to(worker: WorkerSide, status: WorkerStatus, folder: Path) -> tuple[object, list[str]]:
    """The coordinator's answer to the first heartbeat, and whom it notes as refused."""

    async def answer() -> tuple[object, list[str]]:
        async with served(folder) as (server, listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(worker.hello)
            writer.write(worker.receive(await reader.read(4096)).reply)
            writer.write(worker.send(Heartbeat(status)))
            messages = worker.receive(await reader.read(4096)).messages
            writer.close()
        return messages[0], [refusal.why for refusal in server.history.refusals]

    return asyncio.run(answer())


def test_a_worker_of_another_headway_is_refused_and_both_are_named(tmp_path: Path) -> None:
    worker = WorkerSide(KEY, RUN, "node-0.1/0")
    said, whys = said_to(worker, WorkerStatus(headway="9.9.9"), tmp_path)
    why = f"the worker has Headway 9.9.9, and the coordinator {__version__}"
    assert said == Farewell(why)
    assert whys == [why]


def test_a_worker_of_protocol_version_1_does_not_say_its_headway_and_is_welcome(
    tmp_path: Path,
) -> None:
    worker = WorkerSide(KEY, RUN, "node-0.1/0", versions=(1, 1))
    said, whys = said_to(worker, WorkerStatus(), tmp_path)
    assert isinstance(said, Welcome)
    assert not whys


def test_a_worker_tells_its_headway_and_logs_why_it_is_refused() -> None:
    lines: list[str] = []
    with (
        SmallCoordinator(is_refusing="the worker is odd") as coordinator,
        Session(coordinator.address, KEY, RUN, "node-0.1/0", log=lines.append) as session,
    ):
        wait_for("several tries", lambda: len(coordinator.connected_at) > 2, SECONDS)
        assert not session.view.connected
    assert coordinator.newest().headway == __version__
    assert lines == [f"coordinator at {coordinator.address}: ended the session: the worker is odd"]
