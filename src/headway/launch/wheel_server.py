"""Files for pods whose image has no Headway, by SHA-256 and for anybody: they are public.

Bounded, so that it can run beside a coordinator: so many connections at once, each for so long, and
all of them together so many bytes a second. Others are told to come back.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any, BinaryIO

from headway import __version__
from headway.clock import Clock

MAX_TRANSFERS = 16
TRANSFER_SECONDS = 60.0
"""For a connection and all files it asks for."""
IDLE_SECONDS = 10.0
"""For the next request, and for one write."""
BYTES_PER_SECOND = 100e6
PART_BYTES = 2**16
RETRY_SECONDS = 2
BUSY = (
    f"HTTP/1.1 503 Service Unavailable\r\nServer: headway/{__version__}\r\n"
    f"Retry-After: {RETRY_SECONDS}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
).encode()


def served_files(folder: Path, own: Path, wheels: list[dict[str, Any]]) -> dict[str, Path]:
    """By SHA-256: those of the folder that are whole and listed, and `own`."""
    listed = {wheel["sha256"] for wheel in wheels}
    found = {_digest(path): path for path in sorted(folder.glob("*.whl"))}
    return {digest: path for digest, path in found.items() if digest in listed} | {
        _digest(own): own
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Throttle:
    """Says how long to wait before so many bytes are sent."""

    def __init__(self, bytes_per_second: float, now: Callable[[], float]) -> None:
        self._rate = bytes_per_second
        self._now = now
        self._free_at = now()
        self._lock = Lock()

    def wait_seconds(self, num_bytes: int) -> float:
        with self._lock:
            now = self._now()
            begin = max(now, self._free_at)
            self._free_at = begin + num_bytes / self._rate
            return begin - now


class WheelServer(ThreadingHTTPServer):
    """`listening` is bound, and not listening yet."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, listening: socket.socket, files: Mapping[str, Path], clock: Clock) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.files = files
        self.clock = clock
        self.throttle = Throttle(BYTES_PER_SECOND, clock.monotonic)
        self._places = BoundedSemaphore(MAX_TRANSFERS)
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In the thread that accepts: nobody waits for the reader of a refusal."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.setblocking(False)
            request.send(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone, or too slow, is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: WheelServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    def setup(self) -> None:
        self._until = self.server.clock.monotonic() + TRANSFER_SECONDS
        super().setup()

    def do_GET(self) -> None:
        path = self.server.files.get(self.path.removeprefix("/"))
        if path is None:
            self._head(404, 0)
            return
        self._head(200, path.stat().st_size)
        with path.open("rb") as file:
            for part in _parts(file):
                if self.server.clock.monotonic() > self._until:
                    raise TimeoutError
                self.server.clock.sleep(self.server.throttle.wait_seconds(len(part)))
                self.wfile.write(part)

    def _head(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.close_connection = self.server.clock.monotonic() > self._until

    def version_string(self) -> str:
        return f"headway/{__version__}"

    def log_message(self, *_: object) -> None:
        """Thousands of pods ask for dozens of files."""


def _parts(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(PART_BYTES):
        yield part
