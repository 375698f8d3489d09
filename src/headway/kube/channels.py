"""A WebSocket of the API server that carries several channels, as port-forward and exec use it.

A message is the number of a channel, then bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import httpcore2
import httpx2
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import generate_accept_token, generate_nonce

Parameters = Mapping[str, str | Sequence[str]]


class UpgradeRefused(httpcore2.ConnectError):
    """The request for a connection was answered with something else."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response


def opened_channels(
    http: httpx2.Client,
    path: str,
    parameters: Parameters,
    subprotocol: str,
    timeout: float | None,
) -> tuple[httpcore2.NetworkStream, ExitStack]:
    """The connection, and what to close with it. `http` is a client of the API server: its login,
    certificates and proxy apply. Raises UpgradeRefused."""
    nonce = generate_nonce()
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": nonce.decode(),
        "Sec-WebSocket-Protocol": subprotocol,
    }
    with ExitStack() as opened:
        response = opened.enter_context(
            http.stream("GET", path, params=dict(parameters), headers=headers, timeout=timeout)
        )
        if response.status_code != 101:
            response.read()
            raise UpgradeRefused(response)
        if not _is_accepted(response, nonce, subprotocol):
            raise httpcore2.RemoteProtocolError(f"the answer is not {subprotocol}")
        return response.extensions["network_stream"], opened.pop_all()


def _is_accepted(response: httpx2.Response, nonce: bytes, subprotocol: str) -> bool:
    return (
        response.headers.get("Sec-WebSocket-Accept") == generate_accept_token(nonce).decode()
        and response.headers.get("Sec-WebSocket-Protocol") == subprotocol
    )


class ChannelMessages:
    """The bytes on the wire, both ways, without I/O."""

    def __init__(self) -> None:
        self.is_over = False
        """Nothing more will come."""
        self._websocket = Connection(ConnectionType.CLIENT)
        self._replies = b""
        self._channel: int | None = None
        """Of the message that is being received."""

    def sent(self, channel: int, content: bytes) -> bytes:
        """What to write for it. Raises LocalProtocolError if the other side has closed."""
        return self._websocket.send(BytesMessage(bytes([channel]) + content))

    def receive(self, received: bytes) -> Iterator[tuple[int, bytes, bool]]:
        """Channel, content, and whether its message is whole with it; nothing received is the
        end."""
        if not received:
            self.is_over = True
            return
        self._websocket.receive_data(received)
        for event in self._websocket.events():
            match event:
                case BytesMessage():
                    content = bytes(event.data)
                    if self._channel is None and content:
                        self._channel, content = content[0], content[1:]
                    if self._channel is not None:
                        yield self._channel, content, event.message_finished
                    if event.message_finished:
                        self._channel = None
                case Ping():
                    self._replies += self._websocket.send(event.response())
                case CloseConnection() | TextMessage():
                    self.is_over = True
                    return

    def taken_replies(self) -> bytes:
        """What to write for what was received."""
        replies, self._replies = self._replies, b""
        return replies
