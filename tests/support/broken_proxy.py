"""A proxy in front of a server that can be told to answer errors for a while."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

ANSWER = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BrokenProxy:
    """Forwards bytes on the loopback; while `broken`, every request is answered with a 503."""

    def __init__(self, to_port: int) -> None:
        self.to_port = to_port
        self.broken = False
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        with client:
            while data := _received(client):
                if self.broken:
                    self.refused += 1
                    client.sendall(ANSWER)
                    break
                if server is None:
                    server = socket.create_connection(("127.0.0.1", self.to_port))
                    threading.Thread(target=_pump, args=(server, client), daemon=True).start()
                server.sendall(data)
        if server is not None:
            server.close()


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _pump(source: socket.socket, target: socket.socket) -> None:
    while data := _received(source):
        try:
            target.sendall(data)
        except OSError:
            return
