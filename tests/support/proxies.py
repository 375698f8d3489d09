"""Proxies in front of a server on the loopback: one answers errors for a while, one is far away."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Self

ANSWER = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy:
    """Accepts connections until it is closed; what becomes of each is for `serve`."""

    def __init__(self, to_port: int, address: str = "127.0.0.1") -> None:
        """`address`: where it listens, and where its server does."""
        self.to_port = to_port
        self.address = address
        self._listener = socket.create_server((address, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(ConnectionRefusedError):  # the server has ended before its clients
            self.serve(client)

    def serve(self, client: socket.socket) -> None:
        raise NotImplementedError


class BrokenProxy(Proxy):
    """While `broken`, every request is answered with a 503."""

    def __init__(self, to_port: int) -> None:
        self.broken = False
        self.refused = 0
        super().__init__(to_port)

    def serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        while data := _received(client):
            if self.broken:
                self.refused += 1
                client.sendall(ANSWER)
                break
            if server is None:
                server = socket.create_connection((self.address, self.to_port))
                threading.Thread(target=_pump, args=(server, client), daemon=True).start()
            server.sendall(data)
        if server is not None:
            server.close()


class SlowProxy(Proxy):
    """Every request comes through `delay_seconds` late.

    Connections are kept, and several requests follow each other on one: a request begins with the
    first bytes after an answer.
    """

    def __init__(self, to_port: int, delay_seconds: float, address: str = "127.0.0.1") -> None:
        self.delay_seconds = delay_seconds
        self.num_requests = 0
        self.num_ranges = 0
        """Of these: requests for a part of a file."""
        super().__init__(to_port, address)

    def serve(self, client: socket.socket) -> None:
        server = socket.create_connection((self.address, self.to_port))
        answered = threading.Event()
        answered.set()

        def answers() -> None:
            while data := _received(server):
                answered.set()
                if not _sent(client, data):
                    return

        threading.Thread(target=answers, daemon=True).start()
        with server:
            while data := _received(client):
                if answered.is_set():
                    answered.clear()
                    self.num_requests += 1
                    self.num_ranges += b"\r\nrange:" in data.lower()
                    time.sleep(self.delay_seconds)
                if not _sent(server, data):
                    return


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _sent(target: socket.socket, data: bytes) -> bool:
    try:
        target.sendall(data)
    except OSError:
        return False
    return True


def _pump(source: socket.socket, target: socket.socket) -> None:
    while (data := _received(source)) and _sent(target, data):
        pass
