"""HTTP in threads, for the API server's proxy: pages in the coordinator's pod, and in another one
the files of a claim. Files need the key; what may be seen by anyone in the namespace does not.

    GET     /files/PATH   a file; a Range gives part of it
    GET     /find/PATH    every file below, as {name: size}
    PUT     /files/PATH   a file; with `?create` only if there is none (409), with `?at=N` a piece
                          of a large one, which is there after `?size=N` without content
    DELETE  /files/PATH   it, or everything below
"""

from __future__ import annotations

import hmac
import json
import math
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from threading import Lock, Thread
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from headway.clock import Clock
from headway.member.http import JSON, TEXT
from headway.member.sockets import bound_to
from headway.state.store import Store

KEY_HEADER = "X-Headway-Key"
"""The API server takes Authorization for itself."""
READ_SECONDS = 60.0
POLL_SECONDS = 0.1
"""Between two looks whether to end, and whose time is over."""
MAX_CONNECTIONS = 64
MAX_THREADS = 2 * MAX_CONNECTIONS
"""A thread outlives its connection while it waits for a page."""
UNPROVEN_SECONDS = 20.0
"""For one request and its answer, of those who do not show the key."""
MAX_PIECE_BYTES = 2**26
BYTES = "application/octet-stream"
RANGE = re.compile(r"bytes=(\d+)-(\d+)")

Answer = tuple[str, bytes]
"""Its type, and what it is."""
Pages = Mapping[str, Callable[[], Answer]]


class Server:
    """`files` is the folder that is served, with the key for it."""

    def __init__(
        self,
        address: tuple[str, int],
        pages: Pages,
        clock: Clock,
        files: tuple[Path, str] | None = None,
    ) -> None:
        served = None if files is None else _Files(*files)
        self._server = _Threads(address, _handler(pages, served), clock)
        self.port = int(self._server.server_address[1])

    def start(self) -> None:
        run = partial(self._server.serve_forever, poll_interval=POLL_SECONDS)
        Thread(target=run, name="pages", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Threads(ThreadingHTTPServer):
    """A thread for each connection, and so many at most. One that has not shown the key is closed
    after its first answer, when it has had its time, or when another one needs its place."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], clock: Clock
    ) -> None:
        self._clock = clock
        self._until: dict[socket.socket, float] = {}
        """Of each connection; -inf of one that was shut, until its thread ends."""
        self._lock = Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._has_room():
            self.shutdown_request(request)
            return
        with self._lock:
            self._until[request] = self._clock.monotonic() + UNPROVEN_SECONDS
        super().process_request(request, client_address)

    def _has_room(self) -> bool:
        """Made, if need be, by shutting the unproven connection whose time is over first."""
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
        """It has shown the key: an upload takes as long as it takes."""
        with self._lock:
            self._until[request] = math.inf

    def server_bind(self) -> None:
        """To both families, and without asking DNS for a name of the address."""
        self.socket.close()
        host, port = self.server_address[:2]
        self.socket = bound_to(str(host), port)
        self.server_address = self.socket.getsockname()[:2]


def _shut(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)  # its thread reads the end


class _Refused(Exception):
    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class _Files:
    def __init__(self, root: Path, key: str) -> None:
        self.root = root
        self.store = Store(root)
        self.key = key.encode()

    def name(self, path: str) -> str:
        """Inside the root, whatever the path says."""
        name = unquote(path).strip("/")
        if ".." in PurePosixPath(name).parts or not (self.root / name).resolve().is_relative_to(
            self.root.resolve()
        ):
            raise _Refused(400, f"{name} is not in here")
        return name

    def require(self, key: str | None) -> None:
        if key is None or not hmac.compare_digest(key.encode(), self.key):
            raise _Refused(403, "this needs the key")

    def read(self, name: str, wanted: str | None) -> bytes:
        try:
            if wanted is None:
                return self.store.read(name)
            if (found := RANGE.fullmatch(wanted)) is None:
                raise _Refused(416, "one range, with both ends")
            start, end = int(found[1]), int(found[2]) + 1
            return self.store.read_range(name, start, end - start)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise _Refused(404, f"no file {name}") from None

    def find(self, name: str) -> bytes:
        if (size := self.store.size(name)) is not None and (self.root / name).is_file():
            return json.dumps({name: size}).encode()
        if not (self.root / name).is_dir():
            raise _Refused(404, f"no folder {name}")
        facts = self.store.facts(name)
        return json.dumps({each: one.size for each, one in facts.items()}).encode()

    def write(self, name: str, content: bytes, options: Mapping[str, list[str]]) -> None:
        if "create" in options:
            if not self.store.create(name, content):
                raise _Refused(409, f"{name} is there already")
        elif "at" in options:
            self._write_piece(name, content, int(options["at"][0]))
        elif "size" in options:
            self._finish(name, int(options["size"][0]))
        else:
            self.store.write(name, content)

    def _write_piece(self, name: str, content: bytes, at: int) -> None:
        """Again at the same place, if the answer was lost."""
        partial = self._partial(name)
        partial.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("r+b" if at else "wb") as file:
            file.seek(at)
            file.write(content)

    def _finish(self, name: str, size: int) -> None:
        partial = self._partial(name)
        if not partial.exists() and self.store.size(name) == size:
            return
        if not partial.exists() or partial.stat().st_size != size:
            raise _Refused(409, f"not all of {name} has come")
        self.store.adopt(partial, name)

    def _partial(self, name: str) -> Path:
        path = self.root / name
        return path.with_name(f".{path.name}.partial-sent")

    def remove(self, name: str) -> None:
        if not name:
            raise _Refused(400, "not all of it")
        self.store.remove(name)


def _handler(pages: Pages, files: _Files | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = READ_SECONDS
        protocol_version = "HTTP/1.1"
        _is_trusted = False
        wbufsize = -1  # one packet: the body would wait 40 ms for the header's receipt

        def parse_request(self) -> bool:
            self._is_content_left = False
            if not super().parse_request():
                return False
            length = self.headers.get("Content-Length", "0")
            self._is_content_left = length != "0" or "Transfer-Encoding" in self.headers
            return True

        def do_GET(self) -> None:
            self._try(self._get)

        def do_PUT(self) -> None:
            self._try(self._put)

        def do_DELETE(self) -> None:
            self._try(self._delete)

        def _get(self) -> Answer:
            path = urlsplit(self.path).path
            if (make := pages.get(path)) is not None:
                return make()
            kind, served, name = self._file()
            if kind == "find":
                return JSON, served.find(name)
            return BYTES, served.read(name, self.headers.get("Range"))

        def _put(self) -> Answer:
            _, served, name = self._file()  # before the content: it is held in memory
            content = self._content()
            served.write(name, content, parse_qs(urlsplit(self.path).query, True))
            return TEXT, b""

        def _content(self) -> bytes:
            length = self.headers.get("Content-Length", "0")
            if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
                raise _Refused(400, "a Content-Length is needed, in bytes")
            if int(length) > MAX_PIECE_BYTES:
                raise _Refused(413, f"at most {MAX_PIECE_BYTES} bytes at once")
            content = self.rfile.read(int(length))
            self._is_content_left = False
            return content

        def _delete(self) -> Answer:
            _, served, name = self._file()
            served.remove(name)
            return TEXT, b""

        def _file(self) -> tuple[str, _Files, str]:
            _, kind, path = (*urlsplit(self.path).path.split("/", 2), "")[:3]
            if files is None or kind not in ("files", "find"):
                raise _Refused(404, f"there is: {' '.join(sorted(pages))}")
            files.require(self.headers.get(KEY_HEADER))
            self._is_trusted = True
            assert isinstance(self.server, _Threads)
            self.server.trust(self.request)
            return kind, files, files.name(path)

        def _try(self, work: Callable[[], Answer]) -> None:
            try:
                self._answer(200, *work())
            except _Refused as refused:
                self._answer(refused.code, TEXT, f"{refused}\n".encode())
            except PermissionError as error:
                self._answer(403, TEXT, f"{error}\n".encode())
            except OSError as error:
                self._answer(503, TEXT, f"{error}\n".encode())

        def _answer(self, code: int, content_type: str, content: bytes) -> None:
            self.send_response(code)
            # Content that was not read would be taken for the next request.
            if self._is_content_left or not self._is_trusted:
                self.send_header("Connection", "close")
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """A line for each question would be most of the log."""

    return Handler
