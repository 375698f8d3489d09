"""The HTTP server of the coordinator, the keeper and the pod that serves a claim: pages that anyone
who reaches the port can read, and resources that ask for a key.

A thread for each connection, bounded in number, time and size: clients need no key, and may be
slow, silent or hostile. A connection without the key gets one answer.
"""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.message import Message
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, BinaryIO, Self
from urllib.parse import parse_qs, urlsplit

from headway import __version__
from headway.clock import Clock

READ_SECONDS = 60.0
"""For one read or write of a connection that has shown the key."""
UNPROVEN_SECONDS = 20.0
"""For a whole request and its answer, without the key."""
LINGER_SECONDS, LINGER_BYTES = 1.0, 2**20
"""What is read of a refused request, so that its sender reads why: a socket closed with unread data
resets the connection."""
POLL_SECONDS = 0.1
"""Between checks for the end of the server, and for connections whose time is over."""
MAX_CONNECTIONS = 64
MAX_THREADS = 2 * MAX_CONNECTIONS
"""A thread outlives its connection while it waits for a page."""
MAX_HEAD_BYTES = 32 * 1024
"""Request line and headers."""

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
NO_REQUEST = "not a request of HTTP/1.1"

Answer = tuple[str, bytes]
"""Content type and content."""
Page = Callable[[], Answer]
"""Makes the answer now. An OSError answers 503, a PermissionError 403."""
Pages = Mapping[str, Page]
"""By path."""


class HttpError(Exception):
    def __init__(self, status: int, text: str, allow: str = "") -> None:
        """`allow`: the methods that are answered, for status 405."""
        super().__init__(text)
        self.status = status
        self.allow = allow


class HttpRequest:
    """What a resource is asked."""

    def __init__(self, method: str, path: str, headers: Message, handler: _Handler) -> None:
        target = urlsplit(path)
        self.method = method
        self.path = target.path.removeprefix("/").partition("/")[2]
        """Without its first part, which names the resource."""
        self.query = parse_qs(target.query, keep_blank_values=True)
        self.headers = headers
        self._handler = handler

    def trust(self) -> None:
        """It has shown the key: its connection is kept, and takes as long as it takes."""
        self._handler.trust()

    def content(self, most_bytes: int) -> bytes:
        return self._handler.read_content(most_bytes)


Resource = Callable[[HttpRequest], Answer]


class HttpServer:
    """Serves while it is entered. `listening` is bound, and not listening yet; `resources` are
    named by the first part of a path."""

    def __init__(
        self,
        listening: socket.socket,
        pages: Pages,
        clock: Clock,
        resources: Mapping[str, Resource] | None = None,
    ) -> None:
        self._server = _Server(listening, pages, resources or {}, clock)
        self.port = int(listening.getsockname()[1])

    def __enter__(self) -> Self:
        run = partial(self._server.serve_forever, poll_interval=POLL_SECONDS)
        Thread(target=run, name="http", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """A thread for each connection, and so many at most. One that has not shown the key is closed
    after its first answer, when its time is over, or when a new one needs its place."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self,
        listening: socket.socket,
        pages: Pages,
        resources: Mapping[str, Resource],
        clock: Clock,
    ) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.pages = pages
        self.resources = resources
        self._clock = clock
        self._until: dict[socket.socket, float] = {}
        """Deadline of each connection; -inf for one that was shut, until its thread ends."""
        self._lock = Lock()
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._has_room():
            self.shutdown_request(request)
            return
        with self._lock:
            self._until[request] = self._clock.monotonic() + UNPROVEN_SECONDS
        super().process_request(request, client_address)

    def _has_room(self) -> bool:
        """Made, if need be, by shutting the unproven connection with the earliest deadline."""
        with self._lock:
            if len(self._until) >= MAX_THREADS:
                return False
            is_open = {one: until for one, until in self._until.items() if until > -math.inf}
            if len(is_open) < MAX_CONNECTIONS:
                return True
            first = min(is_open, key=is_open.__getitem__)
            if is_open[first] == math.inf:
                return False
            self._until[first] = -math.inf
            _shut(first)
            return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._until.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            for request, until in self._until.items():
                if now > until:
                    _shut(request)

    def trust(self, request: socket.socket) -> None:
        with self._lock:
            self._until[request] = math.inf

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that has gone is no error
            super().handle_error(request, client_address)


def _shut(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)  # its thread reads the end


class _BoundedHead:
    """A connection, read by lines up to a total of MAX_HEAD_BYTES for each request."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.left = MAX_HEAD_BYTES

    def readline(self, size: int) -> bytes:
        line = self._file.readline(min(size, self.left + 1))
        self.left -= len(line)
        if self.left < 0:
            raise HttpError(431, f"at most {MAX_HEAD_BYTES} bytes of headers")
        return line

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    rfile: Any
    timeout = READ_SECONDS
    protocol_version = default_request_version = "HTTP/1.1"
    wbufsize = -1  # one packet: the body would wait 40 ms for the header's receipt

    def setup(self) -> None:
        super().setup()
        self.rfile = _BoundedHead(self.rfile)
        self._is_trusted = False
        self._is_input_left = False

    def handle_one_request(self) -> None:
        self._is_input_left = True  # until it is known that there is none
        self.close_connection = True
        self.rfile.left = MAX_HEAD_BYTES
        self.command = ""
        self.requestline, self.request_version = "", self.protocol_version
        try:
            if self._read_head():
                self._answer(200, *self._find())
        except HttpError as error:
            self._answer(error.status, TEXT, f"{error}\n".encode(), error.allow)
        except PermissionError as error:
            self._answer(403, TEXT, f"{error}\n".encode())
        except OSError as error:
            self._answer(503, TEXT, f"{error}\n".encode())
        except Exception:
            self._answer(500, TEXT, b"an error of the server: its log says more\n")
            raise

    def _read_head(self) -> bool:
        try:
            self.raw_requestline = self.rfile.readline(MAX_HEAD_BYTES + 1)
        except TimeoutError:
            self.raw_requestline = b""
        if not self.raw_requestline:
            self._is_input_left = False
            return False
        return self.parse_request()

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        has_version = len(self.requestline.split()) == 3
        if not has_version or ("Host" not in self.headers and self.request_version != "HTTP/1.0"):
            raise HttpError(400, NO_REQUEST)
        length = self.headers.get("Content-Length", "0")
        self._is_input_left = length != "0" or "Transfer-Encoding" in self.headers
        return True

    def _find(self) -> Answer:
        try:
            path = urlsplit(self.path).path
        except ValueError:
            raise HttpError(400, NO_REQUEST) from None
        resource = self.server.resources.get(path.removeprefix("/").partition("/")[0])
        if resource is not None:
            return resource(HttpRequest(self.command, self.path, self.headers, self))
        if self._is_input_left:
            raise HttpError(413, "this takes no content")
        if self.command not in ("GET", "HEAD"):
            raise HttpError(405, "this answers GET and HEAD", "GET, HEAD")
        if (page := self.server.pages.get(path)) is None:
            raise HttpError(404, f"no page {path}; there are {' '.join(sorted(self.server.pages))}")
        return page()

    def trust(self) -> None:
        self._is_trusted = True
        self.server.trust(self.request)

    def read_content(self, most_bytes: int) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            raise HttpError(400, "a Content-Length is needed, in bytes")
        if int(length) > most_bytes:
            raise HttpError(413, f"at most {most_bytes} bytes at once")
        content: bytes = self.rfile.read(int(length))
        if len(content) != int(length):
            raise HttpError(400, f"only {len(content)} of {length} bytes came")
        self._is_input_left = False
        return content

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """For requests that cannot be parsed."""
        self._answer(code, TEXT, f"{NO_REQUEST}\n".encode())

    def _answer(self, status: int, content_type: str, content: bytes, allow: str = "") -> None:
        self.send_response(status)
        # Content that was not read would be taken for the next request.
        self.close_connection |= self._is_input_left or not self._is_trusted
        if self.close_connection:
            self.send_header("Connection", "close")
        if allow:
            self.send_header("Allow", allow)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def finish(self) -> None:
        super().finish()
        if self._is_input_left:
            self._linger()

    def _linger(self) -> None:
        with suppress(OSError):
            self.request.shutdown(socket.SHUT_WR)
            self.request.settimeout(LINGER_SECONDS)
            left = LINGER_BYTES
            while left > 0 and (part := self.request.recv(2**16)):
                left -= len(part)

    def version_string(self) -> str:
        return f"headway/{__version__}"

    def log_message(self, *_: object) -> None:
        """A line for each request would be most of the log."""
