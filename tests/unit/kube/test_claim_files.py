"""A claim that is served is a store like any other: files over real HTTP on the loopback."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import NotFound
from headway.http_server import MAX_CONNECTIONS, UNPROVEN_SECONDS, Answer, HttpServer
from headway.kube.claim_files import PIECE_BYTES, ClaimFileExists, register
from headway.launch.claim_server import ABANDONED_SECONDS, KEY_HEADER, ServedClaim
from headway.member.protocol.sockets import bound_to
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from support.clock import Patient
from support.half_written import write_half
from support.waiting import wait_for

KEY = "k" * 64


class Direct:
    """Asks the server itself, where the API server would."""

    def __init__(self, port: int, key: str = KEY, clock: Patient | None = None) -> None:
        self.port = port
        self.clock = clock or Patient()
        self.key = key
        self.num_lost = 0
        """Of the next parts: the answers are lost."""

    def ask(self, path: str, method: str, content: bytes | None, headers: dict[str, str]) -> bytes:
        if self.num_lost and "?at=" in path:
            self.num_lost -= 1
            self.asked(path, method, content, headers)
            raise OSError("connection lost")
        code, answer = self.asked(path, method, content, headers)
        if code == 404:
            raise NotFound(answer.decode())
        if code == 409:
            raise ClaimFileExists(path)
        if code != 200:
            raise OSError(f"{code}: {answer!r}")
        return answer

    def asked(
        self, path: str, method: str = "GET", content: bytes | None = None, headers: object = None
    ) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        given = headers if isinstance(headers, dict) else {}
        connection.request(method, path, content, {KEY_HEADER: self.key, **given})
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "claim"
    folder.mkdir()
    return folder


@pytest.fixture
def served(root: Path) -> Iterator[Direct]:
    pages = {"/hello": lambda: ("text/plain", b"hello")}
    clock = Patient()
    listening, resources = bound_to("127.0.0.1", 0), ServedClaim(root, KEY, clock).resources
    with HttpServer(listening, pages, clock, resources) as server:
        direct = Direct(server.port, clock=clock)
        register(lambda target: {"lab": direct}[target], clock)
        yield direct


@pytest.fixture
def store(served: Direct) -> Store:
    return Store("claim://lab/runs")


def test_files_go_there_and_come_back(store: Store, root: Path) -> None:
    store.write("it/spec.json", b"{}")
    assert (root / "runs/it/spec.json").read_bytes() == b"{}"
    assert store.read("it/spec.json") == b"{}"
    assert store.size("it/spec.json") == 2
    assert store.size("it/none.json") is None
    assert store.names("it") == ["it/spec.json"]
    assert store.names("nowhere") == []
    assert store.names_one_below("spec.json") == ["it/spec.json"]
    assert store.read_range("it/spec.json", 1, 1) == b"}"
    with pytest.raises(FileNotFoundError):
        store.read("it/none.json")


def test_a_file_that_changes_is_known_by_it(store: Store, root: Path) -> None:
    """Arrays that are made again often have the same size."""
    store.write("it/a.npy", b"1234")
    before = store.facts("it")
    assert store.facts("it") == before
    (root / "runs/it/a.npy").write_bytes(b"4321")
    os.utime(root / "runs/it/a.npy", (1, 1))
    assert store.facts("it")["it/a.npy"].size == 4
    assert store.facts("it") != before
    assert store.facts("it/a.npy") == store.facts("it")


def test_a_file_is_made_once(store: Store) -> None:
    assert store.create("it/run.json", b"mine")
    assert not store.create("it/run.json", b"yours")
    assert store.create("it/run.json", b"mine"), "ours, and the answer was lost"
    assert store.read("it/run.json") == b"mine"


def test_a_large_file_comes_in_pieces(store: Store, root: Path, tmp_path: Path) -> None:
    large = b"".join(bytes([piece]) * PIECE_BYTES for piece in range(6)) + b"and more"
    (tmp_path / "large").write_bytes(large)
    store.adopt(tmp_path / "large", "large")
    assert (root / "runs/large").read_bytes() == large
    with store.writing("second") as file:
        file.write(large)
    assert (root / "runs/second").read_bytes() == large
    with store.reading("second") as file:
        file.seek(6 * PIECE_BYTES)
        assert file.read() == b"and more"
    assert [path.name for path in (root / "runs").iterdir() if "partial" in path.name] == []


def test_half_a_file_is_none(store: Store, served: Direct, root: Path) -> None:
    assert served.asked("/parts/runs/half?at=0&upload=00000000", "PUT", b"first")[0] == 200
    assert served.asked("/parts/runs/half?size=10&upload=00000000", "PUT", b"")[0] == 409
    assert store.size("half") is None
    assert store.names("") == []


def test_parts_come_in_any_order(served: Direct, root: Path) -> None:
    for at, part in ((10, b"third"), (0, b"first"), (5, b"other"), (5, b"secon")):
        assert served.asked(f"/parts/large?at={at}&upload=00000000", "PUT", part)[0] == 200
    for _ in range(2):  # the answer was lost
        assert served.asked("/parts/large?size=15&upload=00000000", "PUT", b"")[0] == 200
    assert (root / "large").read_bytes() == b"firstseconthird"


def test_an_answer_that_is_lost_costs_one_part(store: Store, served: Direct, root: Path) -> None:
    served.num_lost = 3
    with store.writing("large") as file:
        file.write(b"x" * 10)
    assert (root / "runs/large").read_bytes() == b"x" * 10


def test_an_upload_that_fails_leaves_nothing(
    store: Store, served: Direct, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(b"x" * (PIECE_BYTES + 1))
    served.num_lost = 100
    with pytest.raises(OSError, match="connection lost"):
        store.adopt(tmp_path / "large", "large")
    assert list((root / "runs").iterdir()) == []
    served.num_lost = 0
    store.adopt(tmp_path / "large", "large")
    assert store.size("large") == PIECE_BYTES + 1


@pytest.mark.parametrize("size", [4, PIECE_BYTES + 1])
def test_a_file_that_is_given_up_halfway_leaves_nothing(
    store: Store, root: Path, size: int
) -> None:
    write_half(store, "large", b"x" * size)
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_threads_share_one_pod(served: Direct, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    connected_to = []

    def connect(target: str) -> Direct:
        connected_to.append(target)
        time.sleep(0.1)
        return served

    register(connect)
    store = Store("claim://lab/runs")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: store.send(tmp_path / "file", str(number)), range(4)))
    assert connected_to == ["lab"]
    assert store.names("") == ["0", "1", "2", "3"]


def test_two_who_upload_the_same_file_do_not_mix(served: Direct, root: Path) -> None:
    for upload in ("aaaaaaaa", "bbbbbbbb"):
        assert served.asked(f"/parts/large?at=0&upload={upload}", "PUT", b"first")[0] == 200
    assert served.asked("/parts/large?at=5&upload=aaaaaaaa", "PUT", b"second")[0] == 200
    assert served.asked("/parts/large?size=11&upload=aaaaaaaa", "PUT", b"")[0] == 200
    assert served.asked("/parts/large?at=5&upload=bbbbbbbb", "PUT", b"second")[0] == 200
    assert served.asked("/parts/large?size=11&upload=bbbbbbbb", "PUT", b"")[0] == 200
    assert (root / "large").read_bytes() == b"firstsecond"
    assert [path.name for path in root.iterdir()] == ["large"]


def test_parts_that_were_left_behind_are_removed_by_the_next_upload(
    served: Direct, root: Path
) -> None:
    for upload in ("aaaaaaaa", "bbbbbbbb"):
        assert served.asked(f"/parts/large?at=0&upload={upload}", "PUT", b"first")[0] == 200
    old = served.clock.now() - ABANDONED_SECONDS - 60
    os.utime(root / ".large.partial-sent-aaaaaaaa", (old, old))
    assert served.asked("/parts/large?at=0&upload=cccccccc", "PUT", b"first")[0] == 200
    left = sorted(path.name.rpartition("-")[2] for path in root.iterdir())
    assert left == ["bbbbbbbb", "cccccccc"], "another upload may be under way"


@pytest.mark.parametrize("upload", ["", "../../etc", "0" * 40])
def test_an_upload_is_named_by_digits(served: Direct, root: Path, upload: str) -> None:
    assert served.asked(f"/parts/large?at=0&upload={upload}", "PUT", b"x")[0] == 400
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES])
def test_of_any_size(store: Store, tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    store.adopt(tmp_path / "file", "file")
    assert store.size("file") == size


def test_what_is_removed_is_gone(store: Store) -> None:
    store.write("it/a", b"1")
    store.write("it/b/c", b"2")
    store.remove("it")
    assert store.names("") == []


def test_a_run_directory_is_found_there(store: Store) -> None:
    made = RunDirectory.create("claim://lab/runs/it", SystemClock())
    assert RunDirectory.open("claim://lab/runs/it").name == made.name == "it"
    with pytest.raises(NotFound):
        RunDirectory.open("claim://lab/runs/other")


def test_what_workers_there_note_is_read_here(store: Store, root: Path) -> None:
    RunDirectory.create("claim://lab/runs/it", SystemClock())
    there = RunDirectory(root / "runs" / "it")
    assert RunDirectory.open("claim://lab/runs/it").steps() == []
    there.metrics.append({"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0})
    here = RunDirectory.open("claim://lab/runs/it")
    assert [line["step"] for line in here.steps()] == [1, 2]
    assert here.metrics.last() == {"step": 2, "loss": 1.0}
    _, position = here.metrics.read()
    there.metrics.append({"step": 3, "loss": 0.5})
    assert here.metrics.read(position)[0] == [{"step": 3, "loss": 0.5}]


@pytest.mark.parametrize("path", ["/files/runs/a", "/find/runs", "/files/a?create"])
def test_nothing_without_the_key(served: Direct, root: Path, path: str) -> None:
    (root / "runs").mkdir()
    (root / "runs" / "a").write_text("secret")
    stranger = Direct(served.port, key="guessed")
    for method in ("GET", "PUT", "DELETE"):
        code, answer = stranger.asked(path, method, b"")
        assert code == 403
        assert b"secret" not in answer
    assert (root / "runs" / "a").read_text() == "secret"


@pytest.mark.parametrize(
    ("path", "key", "length", "expected"),
    [
        ("/files/a", "guessed", "67108864", 403),
        ("/files/a", KEY, "67108865", 413),
        ("/files/a", KEY, "-1", 400),
        ("/files/a", KEY, "many", 400),
        ("/hello", "guessed", "67108864", 413),
    ],
)
def test_what_is_refused_is_refused_before_any_of_it_has_come(
    served: Direct, path: str, key: str, length: str, expected: int
) -> None:
    """Else strangers could have the pod hold 64 MiB for each of their connections."""
    head = f"PUT {path} HTTP/1.1\r\nHost: it\r\n{KEY_HEADER}: {key}\r\nContent-Length: {length}\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as connection:
        connection.sendall(f"{head}\r\n".encode())
        answer = connection.makefile("rb").read()  # and the connection is closed
    assert answer.startswith(f"HTTP/1.1 {expected} ".encode())


def test_content_that_was_cut_short_is_not_stored(served: Direct, root: Path) -> None:
    head = f"PUT /files/a HTTP/1.1\r\nHost: it\r\n{KEY_HEADER}: {KEY}\r\nContent-Length: 10\r\n\r\n"
    with connected(served) as connection:
        connection.sendall(f"{head}first".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"only 5 of 10 bytes came" in answer
    assert list(root.iterdir()) == []


def test_content_that_nobody_reads_is_no_second_request(served: Direct, root: Path) -> None:
    (root / "a").write_text("there")
    hidden = f"DELETE /files/a HTTP/1.1\r\nHost: it\r\n{KEY_HEADER}: {KEY}\r\n\r\n"
    head = f"GET /hello HTTP/1.1\r\nHost: it\r\nContent-Length: {len(hidden)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as connection:
        connection.sendall((head + hidden).encode())
        assert connection.makefile("rb").read().count(b"HTTP/1.1") == 1
    assert (root / "a").exists()


def connected(served: Direct) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=5)


def test_there_are_only_so_many_connections(served: Direct) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 20):
            stack.enter_context(connected(served))
        wait_for("room", lambda: threading.active_count() - before <= MAX_CONNECTIONS, 5)
    wait_for("more room", lambda: threading.active_count() == before, 5)
    assert served.asked("/hello") == (200, b"hello")


def test_idle_connections_keep_nobody_out(served: Direct) -> None:
    """The oldest of those that have not shown the key makes room; one that has is kept."""
    head = f"GET /files/a HTTP/1.1\r\nHost: it\r\n{KEY_HEADER}: {KEY}\r\n\r\n".encode()
    with ExitStack() as stack:
        proven = stack.enter_context(connected(served))
        proven.sendall(head)
        assert proven.recv(2**16).startswith(b"HTTP/1.1 404")
        oldest = stack.enter_context(connected(served))
        wait_for("the oldest", lambda: served.asked("/hello")[0] == 200, 5)
        served.clock.passed += 1
        for _ in range(MAX_CONNECTIONS - 2):
            stack.enter_context(connected(served))
        for _ in range(3):
            assert served.asked("/hello") == (200, b"hello")
        assert served.asked("/files/a")[0] == 404
        assert oldest.recv(1) == b""
        proven.sendall(head)
        assert proven.recv(2**16).startswith(b"HTTP/1.1 404")


def test_connections_that_showed_the_key_are_not_closed_for_others(served: Direct) -> None:
    head = f"GET /files/a HTTP/1.1\r\nHost: it\r\n{KEY_HEADER}: {KEY}\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            proven = stack.enter_context(connected(served))
            proven.sendall(head)
            assert proven.recv(2**16).startswith(b"HTTP/1.1 404")
        assert stack.enter_context(connected(served)).recv(1) == b""
        proven.sendall(head)
        assert proven.recv(2**16).startswith(b"HTTP/1.1 404")


def test_there_are_only_so_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose connection was closed may still wait for a page."""
    monkeypatch.setattr("headway.http_server.MAX_CONNECTIONS", 4)
    monkeypatch.setattr("headway.http_server.MAX_THREADS", 8)
    is_made = threading.Event()

    def slow() -> Answer:
        is_made.wait(30)
        return "text/plain", b"slow"

    before = threading.active_count()
    listening = bound_to("127.0.0.1", 0)
    with HttpServer(listening, {"/slow": slow}, Patient()) as server, ExitStack() as stack:
        direct = Direct(server.port)
        for _ in range(8 + 5):
            connection = stack.enter_context(connected(direct))
            connection.sendall(b"GET /slow HTTP/1.1\r\nHost: it\r\n\r\n")
        with pytest.raises(ConnectionError):
            direct.asked("/other")
        assert threading.active_count() - before <= 8 + 1
        is_made.set()
        wait_for("room", lambda: threading.active_count() == before + 1, 5)
        assert direct.asked("/other")[0] == 404


def test_who_does_not_show_the_key_is_not_waited_for(served: Direct) -> None:
    """Neither silent, nor by a byte a second, nor by page after page."""
    head = f"GET /files/a HTTP/1.1\r\nHost: it\r\n{KEY_HEADER}: {KEY}\r\n\r\n".encode()
    page = b"GET /hello HTTP/1.1\r\nHost: it\r\n\r\n"
    with connected(served) as silent, connected(served) as slow, connected(served) as proven:
        slow.sendall(page[:-3])
        proven.sendall(head)
        assert proven.recv(2**16).startswith(b"HTTP/1.1 404")
        served.clock.passed += UNPROVEN_SECONDS + 1
        assert (silent.recv(1), slow.recv(1)) == (b"", b"")
        proven.sendall(head)
        assert proven.recv(2**16).startswith(b"HTTP/1.1 404"), "its connection is kept"
    with connected(served) as many:
        many.sendall(2 * page)
        assert many.makefile("rb").read().count(b"hello") == 1


@pytest.mark.parametrize("path", ["../outside", "a/../../outside", "%2e%2e/outside", "link/x"])
def test_nothing_outside_the_claim(served: Direct, root: Path, path: str) -> None:
    (root.parent / "outside").write_text("secret")
    (root / "link").symlink_to("/etc")
    for method in ("GET", "PUT", "DELETE"):
        code, answer = served.asked(f"/files/{path}", method, b"")
        assert code in (400, 404)
        assert b"secret" not in answer
    assert (root.parent / "outside").read_text() == "secret"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_it_is_reached_over_ipv6_and_ipv4() -> None:
    pages = {"/hello": lambda: ("text/plain", b"hello")}
    with HttpServer(bound_to("", 0), pages, Patient()) as server:
        for address in ("127.0.0.1", "::1"):
            connection = HTTPConnection(address, server.port, timeout=5)
            connection.request("GET", "/hello")
            assert connection.getresponse().read() == b"hello"


def test_pages_need_no_key_and_others_are_not_there(served: Direct) -> None:
    stranger = Direct(served.port, key="")
    assert stranger.asked("/hello") == (200, b"hello")
    assert stranger.asked("/other")[0] == 404
    assert served.asked("/files/", "DELETE")[0] == 400
    assert served.asked("/files/x", "GET", None, {"Range": "bytes=5-"})[0] in (404, 416)
