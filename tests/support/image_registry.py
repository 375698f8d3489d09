"""A registry that takes an image, as far as buildah's push asks for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def image_registry() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Its address, and the manifests that were pushed, by digest."""
    manifests: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200)

        def do_HEAD(self) -> None:
            self._answer(404)

        def do_POST(self) -> None:
            self._body()
            self._answer(202, Location=f"{self.path}it")

        def do_PATCH(self) -> None:
            self._body()
            self._answer(202, Location=self.path)

        def do_PUT(self) -> None:
            content = self._body(is_kept="/manifests/" in self.path)
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            if "/manifests/" in self.path:
                manifests[digest] = content
                self._answer(201, **{"Docker-Content-Digest": digest})
            else:
                self._answer(201)

        def _body(self, is_kept: bool = False) -> bytes:
            kept = []
            for size in self._sizes():
                left = size
                while left:
                    part = self.rfile.read(min(left, 2**20))
                    left -= len(part)
                    kept += [part] if is_kept else []
            return b"".join(kept)

        def _sizes(self) -> Iterator[int]:
            if self.headers.get("Transfer-Encoding") != "chunked":
                yield int(self.headers.get("Content-Length", 0))
                return
            while size := int(self.rfile.readline(), 16):
                yield size
                self.rfile.readline()
            self.rfile.readline()

        def _answer(self, status: int, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}", manifests
        finally:
            server.shutdown()
