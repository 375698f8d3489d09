"""Connections to ports of pods, through the API server and the kubelet of the pod's machine: the
API server need not reach pod addresses.

Each connection is a WebSocket with the subprotocol v4.channel.k8s.io. A message is the number of a
channel, then bytes: channel 0 is the connection, channel 1 the kubelet's error. The first two bytes
of each channel repeat the port. Neither side can close its direction alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from threading import Lock
from typing import Any

import httpcore2
import httpx2
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, generate_accept_token, generate_nonce

SUBPROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
PORT_BYTES = 2
FRAME_BYTES = READ_BYTES = 2**16
PEEK_SECONDS = 0.001
"""For what has arrived already: 0 would make an error of an incomplete TLS record."""


class ForwardRefused(httpcore2.ConnectError):
    """The API server answered the request for a connection with something else."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response


class ForwardFailed(httpcore2.ReadError):
    """The kubelet could not connect to the port, and says why."""


class PortForward(httpcore2.NetworkBackend):
    """For a connection pool in which hosts are pods of the namespace. `http` is a client of the API
    server: its login, certificates and proxy apply."""

    def __init__(self, http: httpx2.Client, namespace: str) -> None:
        self._http = http
        self._namespace = namespace

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        path = f"api/v1/namespaces/{self._namespace}/pods/{host}/portforward"
        nonce = generate_nonce()
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": nonce.decode(),
            "Sec-WebSocket-Protocol": SUBPROTOCOL,
        }
        ports = {"ports": str(port)}
        with ExitStack() as opened:
            response = opened.enter_context(
                self._http.stream("GET", path, params=ports, headers=headers, timeout=timeout)
            )
            if response.status_code != 101:
                response.read()
                raise ForwardRefused(response)
            if not _is_accepted(response, nonce):
                raise httpcore2.RemoteProtocolError(f"the answer is not {SUBPROTOCOL}")
            return ForwardedStream(response.extensions["network_stream"], opened.pop_all())


def _is_accepted(response: httpx2.Response, nonce: bytes) -> bool:
    return (
        response.headers.get("Sec-WebSocket-Accept") == generate_accept_token(nonce).decode()
        and response.headers.get("Sec-WebSocket-Protocol") == SUBPROTOCOL
    )


class ForwardedStream(httpcore2.NetworkStream):
    """`opened` is closed with it."""

    def __init__(self, raw: httpcore2.NetworkStream, opened: ExitStack) -> None:
        self._raw = raw
        self._opened = opened
        self._frames = ChannelFrames()
        self._lock = Lock()
        """The pool looks at idle connections from any thread."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        deadline = None if timeout is None else time.monotonic() + timeout
        frames = self._frames
        with self._lock:
            while not (frames.data or frames.error or frames.is_over):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise httpcore2.ReadTimeout("only pings came")
                self._receive(left)
            if frames.error and not frames.data:
                raise ForwardFailed(frames.error)
            content = bytes(frames.data[:max_bytes])
            del frames.data[:max_bytes]
            return content

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with self._lock:
            try:
                for frame in self._frames.sent(buffer):
                    self._raw.write(frame, timeout)
            except LocalProtocolError as error:
                raise httpcore2.WriteError(str(error)) from None

    def close(self) -> None:
        self._opened.close()

    def get_extra_info(self, info: str) -> Any:
        return self._is_readable() if info == "is_readable" else None

    def _is_readable(self) -> bool:
        """Whether there is data, or the end. Pings and TLS tickets are neither."""
        if not self._lock.acquire(blocking=False):
            return False  # it is being used
        try:
            while self._raw.get_extra_info("is_readable") and not self._frames.is_over:
                self._receive(PEEK_SECONDS)
        except httpcore2.ReadTimeout:
            pass
        except (httpcore2.NetworkError, httpcore2.TimeoutException):
            return True
        finally:
            self._lock.release()
        return bool(self._frames.data or self._frames.error or self._frames.is_over)

    def _receive(self, timeout: float | None) -> None:
        replies = self._frames.receive(self._raw.read(READ_BYTES, timeout))
        if replies:
            self._raw.write(replies, timeout)


class ChannelFrames:
    """The bytes on the wire of one forwarded port, both ways, without I/O."""

    def __init__(self) -> None:
        self.data = bytearray()
        """Received on the connection, and not yet taken from here."""
        self.error = ""
        """The kubelet's."""
        self.is_over = False
        """Nothing more will come."""
        self._websocket = Connection(ConnectionType.CLIENT)
        self._channel: int | None = None
        """Channel of the message that is being received."""
        self._channels = {DATA: self.data, ERROR: bytearray()}
        self._port_bytes_left = {DATA: PORT_BYTES, ERROR: PORT_BYTES}

    def sent(self, content: bytes) -> Iterator[bytes]:
        """What to write for it. Raises LocalProtocolError if the other side has closed."""
        for at in range(0, len(content), FRAME_BYTES):
            piece = content[at : at + FRAME_BYTES]
            yield self._websocket.send(BytesMessage(bytes([DATA]) + piece))

    def receive(self, received: bytes) -> bytes:
        """Returns what to write in reply; nothing received is the end."""
        if not received:
            self.is_over = True
            return b""
        replies = b""
        self._websocket.receive_data(received)
        for event in self._websocket.events():
            match event:
                case BytesMessage():
                    self._take(bytes(event.data), event.message_finished)
                case Ping():
                    replies += self._websocket.send(event.response())
                case CloseConnection() | TextMessage():
                    self.is_over = True
                    break
        return replies

    def _take(self, content: bytes, is_whole: bool) -> None:
        if self._channel is None and content:
            self._channel, content = content[0], content[1:]
        if self._channel in self._channels:
            dropped = min(self._port_bytes_left[self._channel], len(content))
            self._port_bytes_left[self._channel] -= dropped
            self._channels[self._channel] += content[dropped:]
        if is_whole:
            if self._channel == ERROR:
                self.error = self._channels[ERROR].decode(errors="replace").strip()
            self._channel = None
