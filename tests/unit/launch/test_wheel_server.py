"""Files for images without Headway: by content, so many transfers at once, and no faster."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from socket import create_connection
from threading import Thread
from typing import Any
from zipfile import ZipFile

import pytest

from headway import __version__
from headway.clock import SystemClock
from headway.kube.bootstrap import fetch
from headway.launch.wheel_server import MAX_TRANSFERS, Throttle, WheelServer, served_files
from headway.member.protocol.sockets import bound_to
from support.waiting import wait_for

SECONDS = 60.0
CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small-1-py3-none-any.whl"
    path.write_bytes(CONTENT)
    return path


@contextmanager
def serving(files: dict[str, Path]) -> Iterator[int]:
    with WheelServer(bound_to("127.0.0.1", 0), files, SystemClock()) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.socket.getsockname()[1]
        server.shutdown()


def asked(connection: HTTPConnection, path: str = "/it") -> HTTPResponse:
    connection.request("GET", path)
    return connection.getresponse()


def test_several_files_come_over_one_connection(file: Path) -> None:
    with serving({"it": file}) as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        for _ in range(3):
            answer = asked(connection)
            assert (answer.status, answer.read()) == (200, CONTENT)
            assert answer.headers["Server"] == f"headway/{__version__}"
        assert asked(connection, "/../it").status == 404
        connection.close()


def test_beyond_the_limit_clients_are_told_to_come_back_and_get_in_later(file: Path) -> None:
    with serving({"it": file}) as port, ExitStack() as stack:

        def connected() -> HTTPConnection:
            made = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            made.connect()
            stack.callback(made.close)
            return made

        inside = [connected() for _ in range(MAX_TRANSFERS)]
        assert all(asked(one).read() == CONTENT for one in inside)
        with create_connection(("127.0.0.1", port), SECONDS) as refused:
            said = refused.makefile("rb").read()
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 2\r\n" in said
        inside[0].close()

        def is_in() -> bool:
            try:
                return asked(connected()).status == 200
            except OSError:  # refused before it asked
                return False

        wait_for("a place", is_in, SECONDS)


def test_only_what_is_listed_and_whole_is_served(file: Path, tmp_path: Path) -> None:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    own = tmp_path / "own.zip"
    own.write_bytes(b"own")
    (tmp_path / "other-1-py3-none-any.whl").write_bytes(b"cut off")
    listed: list[dict[str, Any]] = [{"sha256": sha256}, {"sha256": "0" * 64}]
    found = served_files(tmp_path, own, listed)
    assert found == {sha256: file, hashlib.sha256(b"own").hexdigest(): own}


def test_all_together_are_no_faster_than_the_limit() -> None:
    now = 100.0
    throttle = Throttle(1000.0, lambda: now)
    assert [throttle.wait_seconds(500) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]
    now = 200.0
    assert throttle.wait_seconds(500) == 0.0


def test_two_hundred_pods_that_start_at_once_all_get_their_files(
    file: Path, tmp_path: Path
) -> None:
    """With the program they run: refused ones come back by themselves."""
    made = io.BytesIO()
    with ZipFile(made, "w") as archive:
        archive.writestr("small.py", CONTENT)
    file.write_bytes(made.getvalue())
    sha256 = hashlib.sha256(made.getvalue()).hexdigest()
    wheel = {"name": "small", "version": "1", "size": len(made.getvalue()), "sha256": sha256}
    folders = [tmp_path / str(number) for number in range(200)]
    with serving({sha256: file}) as port:
        pods = [
            Thread(target=fetch, args=([wheel], f"127.0.0.1:{port}", str(folder)))
            for folder in folders
        ]
        for folder, pod in zip(folders, pods, strict=True):
            folder.mkdir()
            pod.start()
        for pod in pods:
            pod.join(SECONDS)
    assert all((folder / "small.py").read_bytes() == CONTENT for folder in folders)
