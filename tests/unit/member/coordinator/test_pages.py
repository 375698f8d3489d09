"""The coordinator's pages over HTTP: what they show, what is refused, what abuse costs."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headway import http_server
from headway.clock import SystemClock
from headway.http_server import MAX_CONNECTIONS, HttpServer
from headway.member.coordinator import pages as page_module
from headway.member.coordinator.events import SessionOpened
from headway.member.coordinator.pages import pages
from headway.member.coordinator.record import StoreRecord
from headway.member.coordinator.record_keeper import claim
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.server import CoordinatorServer
from headway.member.protocol.sockets import bound_to
from headway.member.protocol.status import WorkerStatus
from headway.state.store import Store

KEY = bytes(range(64))
SECONDS = 10.0


class Watched:
    """A coordinator without sessions, and its HTTP port."""

    def __init__(self, server: CoordinatorServer, port: int) -> None:
        self.server = server
        self.port = port

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content. The connection is closed by the other side."""
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(request)
            answer = await reader.read()
            writer.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
        return int(first.split()[1]), headers, content

    async def get(self, path: str) -> bytes:
        status, headers, content = await self.ask(_get(path))
        assert status == 200
        assert int(headers["content-length"]) == len(content)
        return content


def _get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: it\r\n\r\n".encode()


def watched(folder: Path, test: Callable[[Watched], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = SystemClock()
        record = StoreRecord(Store(folder / "record"), "it")
        claimed = await claim(record, clock, print)
        rules = Rules(max_domains=2)
        server = CoordinatorServer("it", KEY, rules, record, claimed, clock, lambda text: None)
        made = pages(server, asyncio.get_running_loop())
        with HttpServer(bound_to("127.0.0.1", 0), made, clock) as http:
            await test(Watched(server, http.port))

    asyncio.run(run())


def test_state_history_metrics_and_health(tmp_path: Path) -> None:
    async def test(it: Watched) -> None:
        status = WorkerStatus(ready=True)
        it.server.handle(SessionOpened("pod-0", 1, status))
        state: dict[str, Any] = json.loads(await it.get("/state"))
        assert state["run"] == "it"
        assert state["incarnation"] == 1
        assert state["generation"]["number"] == 0
        assert state["waiting"] == ["pod-0"]
        assert state["pods"]["pod-0"]["session"] == 1
        assert 0 <= state["pods"]["pod-0"]["silent_seconds"] < SECONDS
        assert state["uptime_seconds"] < SECONDS
        assert json.loads(await it.get("/history?newest=1"))["generations"] == []
        metrics = (await it.get("/metrics")).decode()
        assert 'headway_coordinator_generation{run="it"} 0.0' in metrics
        assert state["counts"] == {"beats": 0, "opened": 0, "requests": 0, "defects": 0}
        assert await it.get("/healthz") == b"ok\n"

    watched(tmp_path, test)


def test_no_answer_has_the_key(tmp_path: Path) -> None:
    async def test(it: Watched) -> None:
        for path in ("/state", "/history", "/metrics", "/healthz"):
            content = await it.get(path)
            assert KEY not in content
            assert KEY.hex().encode() not in content.lower()

    watched(tmp_path, test)


def test_head_has_the_same_headers_and_no_content(tmp_path: Path) -> None:
    async def test(it: Watched) -> None:
        status, headers, content = await it.ask(_get("/healthz", "HEAD"))
        assert (status, headers["content-length"], content) == (200, "3", b"")

    watched(tmp_path, test)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (_get("/"), 404),
        (_get("/state/"), 404),
        (_get("/../etc/passwd"), 404),
        (_get("http://["), 400),
        (_get("/state", "POST"), 405),
        (_get("/state", "DELETE"), 405),
        (b"POST /state HTTP/1.1\r\nHost: it\r\nContent-Length: 4\r\n\r\nbody", 413),
        (b"GET /state HTTP/1.1\r\n\r\n", 400),
        (b"GET /state\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\r\n\r\n", 400),
        (b"GET /state HTTP/1.1\r\nHost: it\r\nLong: " + b"x" * 40_000, 431),
        (b"GET /" + b"x" * 40_000, 431),
        (b"HEADWAY\0" * 5000, 431),
    ],
)
def test_everything_else_is_refused(tmp_path: Path, request_: bytes, expected: int) -> None:
    async def test(it: Watched) -> None:
        status, headers, _ = await it.ask(request_)
        assert status == expected
        assert ("allow" in headers) == (expected == 405)
        assert await it.get("/healthz") == b"ok\n"

    watched(tmp_path, test)


def test_a_request_that_does_not_end_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "UNPROVEN_SECONDS", 0.2)

    async def test(it: Watched) -> None:
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(b"GET /state HT")
            with suppress(ConnectionResetError):
                assert await reader.read() == b""

    watched(tmp_path, test)


def test_a_second_request_in_a_connection_is_not_answered(tmp_path: Path) -> None:
    async def test(it: Watched) -> None:
        _, _, content = await it.ask(_get("/healthz") * 2)
        assert content == b"ok\n"

    watched(tmp_path, test)


def test_there_are_only_so_many_connections(tmp_path: Path) -> None:
    async def test(it: Watched) -> None:
        idle = []
        for _ in range(MAX_CONNECTIONS):
            idle.append(socket.create_connection(("127.0.0.1", it.port)))
        for each in idle:
            each.settimeout(SECONDS)
        assert await it.get("/healthz") == b"ok\n", "the oldest makes room"
        assert await asyncio.to_thread(idle[0].recv, 1) == b""
        idle[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            idle[-1].recv(1)
        for each in idle:
            each.close()
        assert await it.get("/healthz") == b"ok\n"

    watched(tmp_path, test)


def test_a_defect_in_a_page_is_an_answer_too(tmp_path: Path) -> None:
    async def test(it: Watched) -> None:
        del it.server.history
        status, _, content = await it.ask(_get("/history"))
        assert (status, content) == (500, b"an error of the server: its log says more\n")
        assert await it.get("/healthz") == b"ok\n"

    watched(tmp_path, test)


def test_a_busy_event_loop_answers_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a thread that waits for it ends."""
    monkeypatch.setattr(page_module, "PAGE_SECONDS", 0.1)

    async def test(it: Watched) -> None:
        with socket.create_connection(("127.0.0.1", it.port), timeout=SECONDS) as connection:
            connection.sendall(_get("/healthz"))
            answer = connection.makefile("rb").read()  # the loop does nothing meanwhile
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b"the coordinator is busy\n")
        assert await it.get("/healthz") == b"ok\n"

    watched(tmp_path, test)


def test_not_found_names_the_pages(tmp_path: Path) -> None:
    async def test(it: Watched) -> None:
        _, _, content = await it.ask(_get("/states"))
        assert content == b"no page /states; there are /healthz /history /metrics /state\n"

    watched(tmp_path, test)
