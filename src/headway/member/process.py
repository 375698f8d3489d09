"""From settings to a coordinator that serves until it is told to end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.clock import SystemClock
from headway.errors import BadInput, NotFound
from headway.member.nodes import GONE
from headway.member.records import Record
from headway.member.rules import Rules
from headway.member.server import Server, claim
from headway.member.sockets import bound_to, parted, spelled
from headway.member.wire import certificate_binding


@dataclass(frozen=True)
class Settings:
    run: str
    key: bytes
    record: Record
    rules: Rules
    tls: tuple[Path, Path] | None
    """Files of the certificate and of its key."""
    after: int | None = None
    """The members of before have ended: generations go on behind this number."""
    until_eof: bool = False
    """Ends with stdin."""


class Orders:
    """Lines of stdin, from whoever has started this process: `gone PLACE`. Its end ends it."""

    def __init__(self, ended: Callable[[], None], source: int = 0) -> None:
        self._ended = ended
        self._source = source
        self._dismiss: Callable[[str], None] | None = None
        self._rest = b""

    def obey(self, dismiss: Callable[[str], None]) -> None:
        """From now on, and what was said before."""
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
    settings: Settings,
    listening: socket.socket,
    watching: socket.socket | None,
    started: Callable[[int], None],
    log: Callable[[str], None],
) -> None:
    """Until SIGTERM or SIGINT. `started` gets the incarnation when sessions can be opened."""
    _raise_file_limit()
    tls, binding = (None, b"") if settings.tls is None else _tls(*settings.tls)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    orders = Orders(stop.set)
    if settings.until_eof:
        loop.add_reader(0, orders.read)
    clock = SystemClock()
    record = settings.record
    claiming = loop.create_task(claim(record, clock, log, settings.after))
    stopping = loop.create_task(stop.wait())
    waits: list[asyncio.Future[Any]] = [claiming, stopping]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not claiming.done():
        claiming.cancel()
        return
    claimed = claiming.result()
    server = Server(
        settings.run, settings.key, settings.rules, record, claimed, clock, log, binding
    )
    orders.obey(server.dismiss)
    if watching is not None:
        # Imported by who wants it: 0.1 s of the start, and 3 MB.
        from headway.member.http import MAX_CONNECTIONS, Http
        from headway.member.views import pages

        await loop.create_server(Http(pages(server)), sock=watching, backlog=MAX_CONNECTIONS)
    listening.listen()
    started(claimed.incarnation)
    await server.serve(listening, tls, stop)


def bound(address: str) -> socket.socket:
    """A socket at HOST:PORT that does not listen yet."""
    host, port = parted(address)
    try:
        made = bound_to(host, port)
    except OSError as error:
        raise BadInput(f"{address}: {error.strerror}") from None
    made.setblocking(False)
    return made


def address_of(made: socket.socket) -> str:
    return spelled(*made.getsockname()[:2])


def _tls(certificate: Path, key: Path) -> tuple[ssl.SSLContext, bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        # The first one of the file is the one that is shown.
        first, end, _ = certificate.read_text().partition("-----END CERTIFICATE-----")
        shown = ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN CERTIFICATE") :] + end)
    except FileNotFoundError as error:
        raise NotFound(f"{error.filename or certificate}: no such file") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{certificate}, {key}: no certificate with its key: {error}") from None
    return context, certificate_binding(shown)


def _raise_file_limit() -> None:
    """A session is a file; the usual limit of 1,024 would be the limit of members."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
