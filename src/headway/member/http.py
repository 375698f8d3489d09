"""Read-only HTTP beside the sessions, for people, `headway status` and Prometheus.

One request a connection. Whoever can reach the port can ask: there is nothing in any answer that a
pod of the run could not read in the clear, and nothing can be changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus

import h11

from headway import __version__

MAX_CONNECTIONS = 64
MAX_REQUEST_BYTES = 8 * 1024
REQUEST_SECONDS = 5.0
"""From the connection to the whole request."""
ANSWER_SECONDS = 20.0
"""For a reader of a megabyte, far away."""

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class Page:
    """What a path answers with: its type, and how to make it now."""

    def __init__(self, content_type: str, make: Callable[[], bytes]) -> None:
        self.content_type = content_type
        self.make = make


class Http:
    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self.connections: set[HttpConnection] = set()
        self.num_requests = 0

    def __call__(self) -> HttpConnection:
        return HttpConnection(self)


class HttpConnection(asyncio.Protocol):
    def __init__(self, http: Http) -> None:
        self._http = http
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
        self._request: h11.Request | None = None
        self._is_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._http.connections) >= MAX_CONNECTIONS:
            transport.abort()
            return
        self._http.connections.add(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(REQUEST_SECONDS, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._http.connections:
            self._http.connections.remove(self)
            self._deadline.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_answered or self not in self._http.connections:
            return
        try:
            self._parser.receive_data(data)
            self._read()
        except h11.RemoteProtocolError as error:
            self._answer(HTTPStatus(error.error_status_hint), TEXT, b"not a request\n")

    def _read(self) -> None:
        while True:
            event = self._parser.next_event()
            if isinstance(event, h11.Request):
                self._request = event
            elif isinstance(event, h11.Data):
                # Nothing here takes any.
                self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TEXT, b"no content is taken\n")
                return
            elif isinstance(event, h11.EndOfMessage):
                self._find()
                return
            else:
                return  # more has to come, or nothing will

    def _find(self) -> None:
        assert self._request is not None
        self._http.num_requests += 1
        if self._request.method not in (b"GET", b"HEAD"):
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"this only answers GET and HEAD\n")
            return
        path = self._request.target.partition(b"?")[0].decode("ascii", "replace")
        page = self._http.pages.get(path)
        if page is None:
            known = " ".join(sorted(self._http.pages)).encode()
            self._answer(HTTPStatus.NOT_FOUND, TEXT, b"there is: " + known + b"\n")
        else:
            self._answer(HTTPStatus.OK, page.content_type, page.make())

    def _answer(self, status: HTTPStatus, content_type: str, content: bytes) -> None:
        self._is_answered = True
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self.abort)
        if self._parser.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [
                ("Content-Type", content_type),
                ("Content-Length", str(len(content))),
                ("Cache-Control", "no-store"),
                ("Connection", "close"),
                ("Server", f"headway/{__version__}"),
                *([("Allow", "GET, HEAD")] if status == HTTPStatus.METHOD_NOT_ALLOWED else []),
            ]
            response = h11.Response(
                status_code=status, headers=headers, reason=status.phrase.encode()
            )
            sent = self._parser.send(response) or b""
            if self._request is None or self._request.method != b"HEAD":
                sent += self._parser.send(h11.Data(data=content)) or b""
            self._transport.write(sent)
        self._transport.close()
