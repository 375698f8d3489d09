"""How a command ended is not lost in what happens at the same moment."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpcore2
import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection

from headway.kube.pod_exec import CommandLost, LocalEnds, PodCommand


class LateStream(httpcore2.NetworkStream):
    """What it is sent is there from the second read on."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._was_read = False
        self.is_closed_for_writing = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self._was_read:
            self._was_read = True
            raise httpcore2.ReadTimeout
        self._client.setblocking(False)
        try:
            return self._client.recv(max_bytes)
        except BlockingIOError:
            raise httpcore2.ReadTimeout from None

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self.is_closed_for_writing:
            raise httpcore2.WriteError("Broken pipe")

    def get_extra_info(self, info: str) -> Any:
        return self._client


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, server = socket.socketpair()
    with client, server:
        yield client, server


@pytest.fixture
def ends() -> Iterator[LocalEnds]:
    """At the end of its input, as in a pipe."""
    end, begin = os.pipe()
    os.close(begin)
    yield LocalEnds(end, lambda _: None, lambda _: None)
    os.close(end)


def ending(code: int) -> bytes:
    """What the API server sends at the end of a command."""
    cause = {"reason": "ExitCode", "message": str(code)}
    status = {"status": "Failure", "details": {"causes": [cause]}}
    websocket = Connection(ConnectionType.SERVER)
    message = websocket.send(BytesMessage(b"\3" + json.dumps(status).encode()))
    return message + websocket.send(CloseConnection(1000))


def test_a_command_that_ends_with_its_input(
    sockets: tuple[socket.socket, socket.socket], ends: LocalEnds
) -> None:
    """Both are ready at once: to say that input is over would be to talk to a closed connection."""
    client, server = sockets
    server.sendall(ending(7))
    assert PodCommand(LateStream(client), ExitStack()).exit_code(ends, lambda: None) == 7


def test_a_command_that_ends_without_having_read_its_input(
    sockets: tuple[socket.socket, socket.socket], ends: LocalEnds
) -> None:
    client, server = sockets
    stream = LateStream(client)
    stream.is_closed_for_writing = True

    def require_pod() -> None:
        server.sendall(ending(7))

    command = PodCommand(stream, ExitStack())
    assert command.exit_code(ends, require_pod, check_seconds=0.01) == 7


def test_a_connection_that_was_closed_without_a_word(
    sockets: tuple[socket.socket, socket.socket], ends: LocalEnds
) -> None:
    client, server = sockets
    stream = LateStream(client)
    stream.is_closed_for_writing = True
    with pytest.raises(CommandLost):
        PodCommand(stream, ExitStack()).exit_code(ends, server.close, check_seconds=0.01)
