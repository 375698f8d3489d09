"""Large ranges from a real S3 server: fast where that works, and as s3fs reads them where not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from headway.state.store import LARGE_BYTES, Store
from support.s3 import credentials, s3_server

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
    reads, ranges = Reads(store, monkeypatch), store._ranges
    assert ranges is not None

    def fail(request: object) -> None:
        raise EndpointConnectionError(endpoint_url="it")

    with monkeypatch.context() as patch:
        patch.setattr(ranges._session, "send", fail)
        assert store.read_range("a file", 1, LARGE_BYTES) == CONTENT[1 : LARGE_BYTES + 1]
    assert reads.number == 1
    store.read_range("a file", 1, LARGE_BYTES)
    assert reads.number == 1, "the next one may succeed"


def test_an_answer_that_ends_early_is_not_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = store._ranges
    assert ranges is not None
    send = ranges._session.send

    def cut(request: object) -> Any:
        answer = send(request)
        read = answer.raw.read
        answer.raw.read = lambda: read()[:-1]
        return answer

    monkeypatch.setattr(ranges._session, "send", cut)
    assert store.read_range("a file", 1, LARGE_BYTES) == CONTENT[1 : LARGE_BYTES + 1]


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
