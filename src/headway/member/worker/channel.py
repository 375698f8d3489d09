"""A connection to the coordinator, plain or TLS, and a sleep that other threads can end. Every wait
has a deadline, and `Sleeper.wake` ends it."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import BadInput
from headway.member.protocol.handshake import certificate_binding
from headway.member.protocol.sockets import join_address, set_tcp_options, split_address

READ_BYTES = 256 * 1024
ONE_OF_SEVERAL_SECONDS = 0.5
"""For a connection to one address of several, before the next is tried. Within a cluster it takes
milliseconds, and whoever was slow is tried again a moment later."""


@dataclass(frozen=True)
class CoordinatorAddress:
    """Address of the coordinator, and how to speak TLS to it."""

    host: str
    port: int
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return join_address(self.host, self.port)


def parse_address(address: str, authority: Path | None) -> CoordinatorAddress:
    """From HOST:PORT or [ADDRESS]:PORT; with TLS if there is a file of authorities."""
    host, port = split_address(address)
    if not host or not port:
        raise BadInput(f"{address}: the coordinator's address must be HOST:PORT")
    try:
        host.encode("idna")
    except UnicodeError:
        raise BadInput(f"{address}: not a valid host name") from None
    if authority is None:
        return CoordinatorAddress(host, port, None)
    try:
        tls = ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        raise BadInput(f"{authority}: cannot read certificates: {why}") from None
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    return CoordinatorAddress(host, port, tls)


class Interrupted(Exception):
    """The session is being closed."""


class Sleeper:
    """A thread's sleep: until a socket is ready, a time has come, or somebody calls `wake`."""

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self.is_stopped = False
        self.connection: socket.socket | None = None
        """Socket that is used or being connected, for `close_inherited`."""
        _sleepers.add(self)

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of unread calls, and wakes anyway
            self._writing.send(b"\0")

    def stop(self) -> None:
        """From now on `sleep` raises Interrupted."""
        self.is_stopped = True
        self.wake()

    def sleep(self, until: float, other: socket.socket | None = None, write: bool = False) -> bool:
        """Whether the socket can be read (or written, if that is asked for)."""
        if self.is_stopped:
            raise Interrupted
        # Not epoll: its descriptor would be shared with a forked child, which could then take our
        # sockets out of it.
        poller = select.poll()
        poller.register(self._reading, select.POLLIN)
        if other is not None:
            poller.register(other, select.POLLIN | (select.POLLOUT if write else 0))
        left = max(0.0, until - time.monotonic())
        ready = dict(poller.poll(left * 1000 + 1))  # rounded up, not to wake a moment too soon
        if ready.pop(self._reading.fileno(), 0):
            with suppress(BlockingIOError):
                self._reading.recv(4096)
        if self.is_stopped:
            raise Interrupted
        return bool(ready)

    def close(self) -> None:
        self._reading.close()
        self._writing.close()

    def close_inherited(self) -> None:
        """In a forked child. Its copy of the connection would keep the session open after this
        process has died, and nobody would notice."""
        self.close()
        if self.connection is not None:
            self.connection.close()


_sleepers: weakref.WeakSet[Sleeper] = weakref.WeakSet()


def _close_all_inherited() -> None:
    for sleeper in list(_sleepers):
        sleeper.close_inherited()
    _sleepers.clear()


os.register_at_fork(after_in_child=_close_all_inherited)


class Channel:
    """One connection. What is queued is sent as far as the other side reads it."""

    def __init__(self, connected: socket.socket, binding: bytes) -> None:
        self._socket = connected
        self._unsent = bytearray()
        self.binding = binding

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def queue(self, data: bytes) -> None:
        self._unsent += data

    def flush(self) -> None:
        while self._unsent:
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return

    def sleep(self, sleeper: Sleeper, until: float) -> bool:
        return sleeper.sleep(until, self._socket, write=self.has_unsent)

    def receive(self) -> bytes:
        """Bytes that have come in; none if none have. A connection that ended is an OSError."""
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed the connection")
        return data

    @property
    def has_more(self) -> bool:
        """Whether TLS has read bytes already: no poll would report them."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def end_writing(self) -> None:
        """Ends our side of the connection. What was sent is still read by the other side, which a
        plain close would not ensure: with anything unread it resets the connection."""
        socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


def connect(place: CoordinatorAddress, attempt: int, sleeper: Sleeper, until: float) -> Channel:
    """A name may have several addresses: each attempt begins with the next, and takes the first
    that answers: a machine that was lost says nothing. (Resolving the name is the one thing that
    cannot be interrupted; it happens while there is no connection.)"""
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    if len(found) == 1:
        return _connect(place, found[0], sleeper, until, until)
    for number in range(attempt, attempt + len(found)):
        connected_by = min(until, time.monotonic() + ONE_OF_SEVERAL_SECONDS)
        try:
            return _connect(place, found[number % len(found)], sleeper, connected_by, until)
        except OSError as error:
            failure = error
    raise failure


def _connect(
    place: CoordinatorAddress,
    found: tuple[Any, ...],
    sleeper: Sleeper,
    connected_by: float,
    until: float,
) -> Channel:
    """`found`: an answer of getaddrinfo. `until`: for TLS as well."""
    family, kind, protocol, _, address = found
    sleeper.connection = connecting = socket.socket(family, kind, protocol)
    try:
        connecting.setblocking(False)
        set_tcp_options(connecting)
        code = connecting.connect_ex(address)
        if code == errno.EINPROGRESS:
            while not sleeper.sleep(connected_by, connecting, write=True):
                _check_time(connected_by, "connect")
            code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if place.tls is None:
            return Channel(connecting, b"")
        # The plain socket belongs to the new one, and is closed with it.
        secured = place.tls.wrap_socket(
            connecting, server_hostname=place.host, do_handshake_on_connect=False
        )
        sleeper.connection = connecting = secured
        return Channel(secured, _shake_hands(secured, sleeper, until))
    except BaseException:
        connecting.close()
        raise


def _shake_hands(connection: ssl.SSLSocket, sleeper: Sleeper, until: float) -> bytes:
    while True:
        try:
            connection.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as wanted:
            is_write = isinstance(wanted, ssl.SSLWantWriteError)
            sleeper.sleep(until, connection, write=is_write)
            _check_time(until, "complete the TLS handshake")
        else:
            certificate = connection.getpeercert(binary_form=True)
            assert certificate is not None, "a server without a certificate is refused before"
            return certificate_binding(certificate)


def _check_time(until: float, what: str) -> None:
    if time.monotonic() >= until:
        raise TimeoutError(errno.ETIMEDOUT, f"timed out: could not {what}")
