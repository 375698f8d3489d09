"""An S3 server that ignores `If-None-Match`, as some stores do: a real one behind a proxy that
answers 200 where it refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

REFUSED = 412
HOP_BY_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


@contextmanager
def careless(address: str, to_port: int) -> Iterator[int]:
    """Its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(length) if length else None
            upstream = HTTPConnection(address, to_port, timeout=30)
            # The host is part of the signature: it stays that of this proxy.
            upstream.request(self.command, self.path, content, dict(self.headers))
            answer = upstream.getresponse()
            body, status = answer.read(), answer.status
            if status == REFUSED:
                status, body = 200, b""
            self.send_response(status)
            for name, value in answer.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            size = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else None
            self.send_header("Content-Length", size or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            upstream.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do

        def log_message(self, *_: object) -> None:
            """Not in the middle of what a test prints."""

    server = ThreadingHTTPServer((address, 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
