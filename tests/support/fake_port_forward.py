"""The API server's end of a port-forward: a WebSocket with v4.channel.k8s.io, relayed to a port on
this machine. It can be refused, silent, or end in the ways that a kubelet ends it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Lock, Thread

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping
from wsproto.utilities import LocalProtocolError, generate_accept_token

SUBPROTOCOL = "v4.channel.k8s.io"
END_SECONDS = 5.0
REFUSED = "dial tcp4 127.0.0.1:7461: connect: connection refused"


class FakePortForward:
    def __init__(self) -> None:
        self.refusal: tuple[int, str] | None = None
        """Status and message instead of a connection."""
        self.is_silent = False
        """No answer to the request for a connection..."""
        self.is_mute = False
        """... or a connection on which nothing comes."""
        self.error = ""
        """On channel 1, instead of data."""
        self.closes_early = False
        """Once a request has come..."""
        self.num_to_close = 0
        """... on so many connections."""
        self.frame_bytes = 2**15
        """Most data in a message from here, and in each frame of it."""
        self.pings = False
        """Before every message."""
        self.num_opened = 0
        self.is_over = Event()
        """Whoever is kept waiting is let go."""

    def serve(self, connection: socket.socket, key: str, port: int) -> None:
        """`key`: of the client's request; `port`: of the pod's server."""
        if self.is_silent:
            self.is_over.wait(60)
            return
        self.num_opened += 1
        token = generate_accept_token(key.encode()).decode()
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\nSec-WebSocket-Accept: {token}\r\n\r\n"
        connection.sendall(head.encode())
        _Relay(self, connection, port).run()


class _Relay:
    def __init__(self, fake: FakePortForward, client: socket.socket, port: int) -> None:
        self._fake = fake
        self._client = client
        self._port = port
        self._websocket = Connection(ConnectionType.SERVER)
        self._lock = Lock()

    def run(self) -> None:
        asked = (7461).to_bytes(2, "little")
        for channel in (b"\0", b"\1"):
            self._send(channel + asked)
        if self._fake.error:
            self._send(b"\1" + self._fake.error.encode())
            self._close()
            return
        if self._fake.is_mute:
            self._fake.is_over.wait(60)
            return
        with socket.create_connection(("127.0.0.1", self._port)) as pod:
            answering = Thread(target=self._answer, args=(pod,), daemon=True)
            answering.start()
            for data in self._received():
                if self._fake.closes_early or self._fake.num_to_close:
                    self._fake.num_to_close = max(0, self._fake.num_to_close - 1)
                    self._close()
                    break
                pod.sendall(data)
            with suppress(OSError):
                pod.shutdown(socket.SHUT_RDWR)
            answering.join(END_SECONDS)

    def _answer(self, pod: socket.socket) -> None:
        with suppress(OSError):
            while data := pod.recv(self._fake.frame_bytes):
                self._send(b"\0" + data)
            self._close()

    def _received(self) -> Iterator[bytes]:
        """Data from the client, message by message."""
        message = b""
        with suppress(OSError):
            while received := self._client.recv(2**18):
                with self._lock:
                    self._websocket.receive_data(received)
                    events = list(self._websocket.events())
                for event in events:
                    if isinstance(event, BytesMessage):
                        message += bytes(event.data)
                        if event.message_finished:
                            assert message[0] == 0
                            yield message[1:]
                            message = b""

    def _send(self, message: bytes) -> None:
        """In frames, each of so many bytes."""
        size = self._fake.frame_bytes
        pieces = [message[at : at + size] for at in range(0, len(message), size)]
        with self._lock:
            if self._fake.pings:
                self._client.sendall(self._websocket.send(Ping(b"still there?")))
            for number, piece in enumerate(pieces, 1):
                event = BytesMessage(piece, message_finished=number == len(pieces))
                self._client.sendall(self._websocket.send(event))

    def _close(self) -> None:
        with suppress(OSError, LocalProtocolError), self._lock:  # it may be closed already
            self._client.sendall(self._websocket.send(CloseConnection(1000)))
            self._client.shutdown(socket.SHUT_WR)
