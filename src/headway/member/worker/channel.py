"""A connection to the coordinator, and a sleep that other threads can end. Every wait has a
deadline, and `Sleeper.wake` ends it."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headway.errors import BadInput
from headway.member.protocol.sockets import join_address, set_tcp_options, split_address

READ_BYTES = 256 * 1024
ONE_OF_SEVERAL_SECONDS = 0.5
"""For a connection to one address of several, before the next is tried. Within a cluster it takes
milliseconds, and whoever was slow is tried again a moment later."""


@dataclass(frozen=True)
class CoordinatorAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


def parse_address(address: str) -> CoordinatorAddress:
    """From HOST:PORT or [ADDRESS]:PORT."""
    host, port = split_address(address)
    if not host or not port:
        raise BadInput(f"{address}: the coordinator's address must be HOST:PORT")
    try:
        host.encode("idna")
    except UnicodeError:
        raise BadInput(f"{address}: not a valid host name") from None
    return CoordinatorAddress(host, port)


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

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._unsent = bytearray()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def queue(self, data: bytes) -> None:
        self._unsent += data

    def flush(self) -> None:
        while self._unsent:
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except BlockingIOError:
                return

    def sleep(self, sleeper: Sleeper, until: float) -> bool:
        return sleeper.sleep(until, self._socket, write=self.has_unsent)

    def receive(self) -> bytes:
        """Bytes that have come in; none if none have. A connection that ended is an OSError."""
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed the connection")
        return data

    def end_writing(self) -> None:
        """Ends our side of the connection. What was sent is still read by the other side, which a
        plain close would not ensure: with anything unread it resets the connection."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


def connect(place: CoordinatorAddress, attempt: int, sleeper: Sleeper, until: float) -> Channel:
    """A name may have several addresses: each attempt begins with the next, and takes the first
    that answers: a machine that was lost says nothing. (Resolving the name is the one thing that
    cannot be interrupted; it happens while there is no connection.)"""
    found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    if len(found) == 1:
        return _connect(found[0], sleeper, until)
    for number in range(attempt, attempt + len(found)):
        connected_by = min(until, time.monotonic() + ONE_OF_SEVERAL_SECONDS)
        try:
            return _connect(found[number % len(found)], sleeper, connected_by)
        except OSError as error:
            failure = error
    raise failure


def _connect(found: tuple[Any, ...], sleeper: Sleeper, until: float) -> Channel:
    """`found`: an answer of getaddrinfo."""
    family, kind, protocol, _, address = found
    sleeper.connection = connecting = socket.socket(family, kind, protocol)
    try:
        connecting.setblocking(False)
        set_tcp_options(connecting)
        code = connecting.connect_ex(address)
        if code == errno.EINPROGRESS:
            while not sleeper.sleep(until, connecting, write=True):
                if time.monotonic() >= until:
                    raise TimeoutError(errno.ETIMEDOUT, "timed out: could not connect")
            code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        return Channel(connecting)
    except BaseException:
        connecting.close()
        raise
