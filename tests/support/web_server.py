"""A web server on loopback that gives ranges of files in memory, and fails as it is told to."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Trouble = Literal["breaks off", "busy", "away"]


@dataclass
class WebServer:
    files: dict[str, bytes] = field(default_factory=dict)
    """By path."""
    redirects: dict[str, str] = field(default_factory=dict)
    troubles: list[Trouble | None] = field(default_factory=list)
    """Taken one by one by the requests to come: an answer of which half comes, 503, and a
    connection that is closed without an answer."""
    statuses: dict[str, int] = field(default_factory=dict)
    tags: bool = True
    gives_ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and range of each request."""
    port: int = 0

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def web_server() -> Iterator[WebServer]:
    made = WebServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, made)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(handler: BaseHTTPRequestHandler, server: WebServer) -> None:
    path, wanted = handler.path, handler.headers["Range"]
    server.asked.append((path, wanted))
    trouble = server.troubles.pop(0) if server.troubles else None
    if trouble == "away":
        handler.close_connection = True
        return
    content = server.files.get(path.partition("?")[0])
    status = server.statuses.get(path) or (503 if trouble == "busy" else 200)
    if path in server.redirects:
        handler.send_response(302)
        handler.send_header("Location", server.redirects[path])
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    if content is None or status != 200:
        handler.send_error(404 if content is None else status)
        return
    begin, end = 0, len(content)
    if server.gives_ranges and (found := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")):
        begin, end = int(found[1]), min(end, int(found[2] or end) + 1)
        if begin >= len(content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(content)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
    else:
        handler.send_response(200)
    if server.tags:
        handler.send_header("ETag", f'"{hash(content) & 0xFFFFFF:x}"')
    handler.send_header("Content-Length", str(end - begin))
    handler.end_headers()
    part = content[begin:end]
    try:
        handler.wfile.write(part[: len(part) // 2] if trouble == "breaks off" else part)
    except OSError:
        handler.close_connection = True  # the reader has seen enough
