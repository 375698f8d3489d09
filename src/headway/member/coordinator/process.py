"""Runs a coordinator from its settings until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headway.clock import SystemClock
from headway.errors import BadInput
from headway.member.coordinator.nodes import GONE
from headway.member.coordinator.record import GenerationRecord
from headway.member.coordinator.record_keeper import claim
from headway.member.coordinator.server import CoordinatorServer
from headway.member.coordinator.settings import CoordinatorSettings
from headway.member.protocol.keys import read_key
from headway.member.protocol.sockets import bound_to, join_address, split_address


class Orders:
    """Lines on stdin, from the launcher: `gone NODE`. When stdin ends, the coordinator stops."""

    def __init__(self, ended: Callable[[], None], source: int = 0) -> None:
        self._ended = ended
        self._source = source
        self._dismiss: Callable[[str], None] | None = None
        self._rest = b""

    def obey(self, dismiss: Callable[[str], None]) -> None:
        """Calls `dismiss` for each order, those from before included."""
        self._dismiss = dismiss
        self._act()

    def read(self) -> None:
        data = os.read(self._source, 4096)
        if not data:
            self._ended()
        self._rest += data
        self._act()

    def _act(self) -> None:
        if self._dismiss is None:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            order, _, place = line.decode().partition(" ")
            if order == GONE and place:
                self._dismiss(place)


async def run_coordinator(
    settings: CoordinatorSettings,
    record: GenerationRecord,
    started: Callable[[str, str | None], None],
    log: Callable[[str], None],
) -> None:
    """Until SIGTERM, SIGINT or the end of stdin. `started` gets the addresses of sessions and of
    the pages when sessions can be opened."""
    _raise_file_limit()
    key = read_key(Path(settings.key))
    listening = bound(settings.listen)
    watching = None if settings.http is None else bound(settings.http)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    orders = Orders(stop.set)
    loop.add_reader(0, orders.read)
    clock = SystemClock()
    claiming = loop.create_task(claim(record, clock, log, settings.after))
    stopping = loop.create_task(stop.wait())
    waits: list[asyncio.Future[Any]] = [claiming, stopping]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not claiming.done():
        claiming.cancel()
        return
    claimed = claiming.result()
    server = CoordinatorServer(settings.run, key, settings.rules, record, claimed, clock, log)
    orders.obey(server.dismiss)
    with ExitStack() as stack:
        if watching is not None:
            # Imported where it is used: 0.1 s of the start, and 3 MB.
            from headway.http_server import HttpServer
            from headway.member.coordinator.pages import pages

            stack.enter_context(HttpServer(watching, pages(server, loop), clock))
        listening.listen()
        started(address_of(listening), None if watching is None else address_of(watching))
        await server.serve(listening, stop)


def bound(address: str) -> socket.socket:
    """A socket at HOST:PORT that does not listen yet."""
    host, port = split_address(address)
    try:
        made = bound_to(host, port)
    except OSError as error:
        raise BadInput(f"{address}: {error.strerror}") from None
    made.setblocking(False)
    return made


def address_of(made: socket.socket) -> str:
    return join_address(*made.getsockname()[:2])


def _raise_file_limit() -> None:
    """A session is an open file; the usual limit of 1,024 would limit the number of members."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
