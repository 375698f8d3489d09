"""Large ranges from a real S3 server: fast where that works, and as s3fs reads them where not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from headway.state import s3_ranges
from headway.state.store import LARGE_BYTES, Store
from support.s3 import credentials, s3_server
from support.stolen_time import Stopwatch

pytestmark = pytest.mark.local
SIZE = 3 * LARGE_BYTES
CONTENT = os.urandom(SIZE)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture
def store(port: int, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in credentials(port).items():
        monkeypatch.setenv(name, value)
    store = Store("s3://bucket/runs/it")
    store.write("a file", CONTENT)
    return store


class Reads:
    """Counts what s3fs is asked for."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        self.cat_file = store._remote.cat_file
        monkeypatch.setattr(store._remote, "cat_file", self)

    def __call__(self, *args: Any, **range_: Any) -> bytes:
        self.number += 1
        return bytes(self.cat_file(*args, **range_))


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, SIZE), (5, LARGE_BYTES), (SIZE - LARGE_BYTES, LARGE_BYTES), (SIZE - 9, LARGE_BYTES)],
)
def test_a_large_range_is_read_without_s3fs(
    store: Store, start: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(store, monkeypatch)
    assert store.read_range("a file", start, length) == CONTENT[start : start + length]
    assert reads.number == 0


def test_a_small_one_is_not(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(store, monkeypatch)
    assert store.read_range("a file", 7, 100) == CONTENT[7:107]
    assert reads.number == 1


def test_a_missing_object_is_the_same_error(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.read_range("missing", 0, LARGE_BYTES)
    assert store.read_range("a file", 0, SIZE) == CONTENT


def test_a_request_that_fails_is_left_to_s3fs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(store, monkeypatch)

    def fail(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    with monkeypatch.context() as patch:
        patch.setattr(HTTPConnection, "connect", fail)
        assert store.read_range("a file", 1, LARGE_BYTES) == CONTENT[1 : LARGE_BYTES + 1]
    assert reads.number == 1
    store.read_range("a file", 1, LARGE_BYTES)
    assert reads.number == 1, "the next one may succeed"


def test_an_answer_that_ends_early_is_not_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    readinto = HTTPResponse.readinto

    def cut(answer: HTTPResponse, place: memoryview) -> int:
        if received:
            return 0
        received.append(readinto(answer, place[:1000]))
        return received[0]

    monkeypatch.setattr(HTTPResponse, "readinto", cut)
    reads = Reads(store, monkeypatch)
    assert store.read_range("a file", 1, LARGE_BYTES) == CONTENT[1 : LARGE_BYTES + 1]
    assert (received, reads.number) == ([1000], 1)


class KeepsOpen(BaseHTTPRequestHandler):
    """A store that keeps connections open, as versitygw does not; for the first mebibyte."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar[set[socket.socket]] = set()

    def do_GET(self) -> None:
        self.connections.add(self.connection)
        self.send_response(206)
        self.send_header("Content-Length", str(LARGE_BYTES))
        self.end_headers()
        self.wfile.write(CONTENT[:LARGE_BYTES])

    def log_message(self, *_: object) -> None:
        pass


def test_connections_are_kept_and_those_that_the_store_closed_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), KeepsOpen) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        ranges = Store("s3://bucket/runs/it")._ranges
        assert ranges is not None

        def num_connections_after_a_read() -> int:
            place = bytearray(LARGE_BYTES)
            assert ranges.read_into("bucket/it", 0, [memoryview(place)]) == LARGE_BYTES
            assert place == CONTENT[:LARGE_BYTES]
            return len(KeepsOpen.connections)

        assert num_connections_after_a_read() == 1
        assert num_connections_after_a_read() == 1
        for connection in KeepsOpen.connections:
            connection.shutdown(socket.SHUT_RDWR)
        assert num_connections_after_a_read() == 2
        server.shutdown()


def test_a_store_that_does_not_answer_is_waited_for_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connections are idle: a firewall may have dropped them all."""
    monkeypatch.setattr(s3_ranges, "READ_SECONDS", 4.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        ranges = Store("s3://bucket/runs/it")._ranges
        assert ranges is not None
        url = urlsplit(ranges._address("bucket/it"))
        ranges._idle += [ranges._connected(url) for _ in range(5)]
        watch = Stopwatch()
        assert ranges.read_into("bucket/it", 0, [memoryview(bytearray(9))]) is None
        assert watch.seconds < 2 * 4.0
        assert ranges._idle == []


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_range_into_several_places(store: Store, is_refused: bool) -> None:
    assert store._ranges is not None
    store._ranges._is_refused = is_refused
    places = [bytearray(size) for size in (LARGE_BYTES, 0, 7, LARGE_BYTES)]
    read = store.read_into("a file", 5, [memoryview(place) for place in places])
    assert read == 2 * LARGE_BYTES + 7
    assert b"".join(places) == CONTENT[5 : 5 + read]
    beyond = bytearray(LARGE_BYTES)
    assert store.read_into("a file", SIZE - 9, [memoryview(beyond)]) == 9
    assert beyond[:10] == CONTENT[-9:] + b"\0"


def test_where_it_is_refused_it_is_not_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.read("a file")  # s3fs has its credentials now
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    reads = Reads(store, monkeypatch)
    for _ in range(2):
        assert store.read_range("a file", 0, SIZE) == CONTENT
    assert reads.number == 2
    assert store._ranges is not None
    assert store._ranges._is_refused
