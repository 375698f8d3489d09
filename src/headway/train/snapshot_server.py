"""Parts of snapshots, read from the memory of another node. A worker serves what its node holds, to
whoever has the token that the workers of a generation share; nothing can be written.

A request has a fixed size: the token, the name of the snapshot, the part, first byte and length. A
length of zero asks for what is known of the part (PartFacts, as JSON). The answer is a length and
so many bytes; a length of -1: there is no such part here, or not yet; -2: it has failed.

Training waits whenever a thread of such low priority is interrupted while it has the interpreter's
lock, so it should need that rarely: a socket with a timeout of Python's returns to it for every few
packets, so these have none. Nor should a call last for long: many kernels do not interrupt one, and
a thread that trains has no core until it returns.
"""

from __future__ import annotations

import errno
import hmac
import math
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from headway.member.protocol.sockets import bound_to, split_address
from headway.state.s3_ranges import fill
from headway.state.store import Store
from headway.train.snapshot_choice import Name
from headway.train.snapshot_memory import PartFacts, PartFile

MISSING, FAILED = -1, -2
REQUEST = struct.Struct("!16sqqqqq")
ANSWER = struct.Struct("!q")
TOKEN_BYTES = 16
IDLE_SECONDS = 60.0
"""After which a connection without a request, or one that does not take its answer, is closed."""
CONNECT_SECONDS = 10.0
"""Also for the first request, which follows at once."""
MOST_UNPROVEN = 64
"""Connections that have not shown the token yet. More wait until one of them has, or is closed."""
ACCEPT_PAUSE_SECONDS = 0.2
"""After an error: too many open files, say."""
MOST_FACTS_BYTES = 2**30
LOOPBACK = "127.0.0.1"
CALL_BYTES = 2**17
"""Sent or received in one call."""

Find = Callable[[Name, int], PartFile | None]
Address = tuple[str, int]


class PartMissing(OSError):
    """The other node has no such part."""


class PartFailed(OSError):
    """And it will not have it."""


def reachable_host(coordinator: str | None) -> str:
    """The address of this machine at which the other workers reach it: the one from which it
    reaches the coordinator, as they do. Nothing is sent."""
    if coordinator is None:
        return LOOPBACK
    host, port = split_address(coordinator)
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def yield_to_training() -> None:
    """This thread leaves the processor to training, where both want it: it gets one part in 300 of
    one that training wants all the time, and what is left while ranks wait for each other."""
    if sys.platform == "linux":  # elsewhere only whole processes have a priority
        with suppress(OSError):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))


class SnapshotServer:
    """Serves in threads of its own, until the process ends or `close`."""

    def __init__(self, host: str, find: Find) -> None:
        self.token = b""
        """None is accepted before it is set."""
        self.failed: Name | None = None
        """The newest snapshot that this worker could not make."""
        self._find = find
        self._unproven = threading.Semaphore(MOST_UNPROVEN)
        self._closed = threading.Event()
        self._socket = bound_to(host, 0)
        self._socket.listen(64)
        self.address: Address = self._socket.getsockname()[:2]
        threading.Thread(target=self._accept, name="headway-snapshots", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            self._unproven.acquire()
            try:
                connection, _ = self._socket.accept()
                threading.Thread(
                    target=self._serve, args=(connection,), name="headway-snapshot", daemon=True
                ).start()
            except (OSError, RuntimeError):  # RuntimeError: no more threads
                self._unproven.release()
                self._closed.wait(ACCEPT_PAUSE_SECONDS)

    def _serve(self, connection: socket.socket) -> None:
        yield_to_training()
        with connection, suppress(OSError):
            try:
                request = self._first_request(connection)
            finally:
                self._unproven.release()
            while request is not None:
                _, step, generation, part, start, length = REQUEST.unpack(request)
                self._answer(connection, (step, generation), part, start, length)
                request = self._request(connection)

    def _first_request(self, connection: socket.socket) -> bytearray | None:
        _limit_waits(connection, CONNECT_SECONDS)
        request = self._request(connection)
        _limit_waits(connection, IDLE_SECONDS)
        return request

    def _request(self, connection: socket.socket) -> bytearray | None:
        """None: there are no more, or this one has not the token."""
        request = bytearray(REQUEST.size)
        is_whole = _receive(connection, memoryview(request))
        token = request[:TOKEN_BYTES]
        has_token = is_whole and self.token and hmac.compare_digest(token, self.token)
        return request if has_token else None

    def _answer(
        self, connection: socket.socket, name: Name, part: int, start: int, length: int
    ) -> None:
        file = self._find(name, part)
        facts = None if file is None else file.facts
        if file is None or facts is None:
            connection.sendall(ANSWER.pack(FAILED if name == self.failed else MISSING))
        elif length == 0:
            content = msgspec.json.encode(facts)
            connection.sendall(ANSWER.pack(len(content)) + content)
        else:
            with file.path.open("rb") as content_file:
                size = os.fstat(content_file.fileno()).st_size
                count = max(0, min(length, size - start)) if start >= 0 else 0
                connection.sendall(ANSWER.pack(count))
                _send_file(connection, content_file.fileno(), start, count)


class PartReader:
    """One connection, made when it is first used. Not for several threads."""

    def __init__(self, address: Address, token: bytes) -> None:
        self._address, self._token = address, token
        self._connection: socket.socket | None = None

    def facts(self, name: Name, part: int) -> PartFacts:
        """Raises PartMissing, PartFailed."""
        count = self._ask(name, part, 0, 0)
        with self._closed_on_error():
            if count > MOST_FACTS_BYTES:
                raise OSError(f"{count} bytes of facts about a part")
            content = bytearray(count)
            self._fill(memoryview(content))
        try:
            return msgspec.json.decode(content, type=PartFacts)
        except msgspec.DecodeError as error:
            raise OSError(f"the facts about a part are damaged: {error}") from error

    def read_into(self, name: Name, part: int, start: int, places: list[memoryview]) -> int:
        """Fills the places, one after the other, with what the part has from `start` on. Returns
        the number of bytes."""
        count = self._ask(name, part, start, sum(map(len, places)))
        connection = self._connected()
        left = count

        def receive(place: memoryview) -> int:
            nonlocal left
            received = _receive_some(connection, place[:left]) if left else 0
            left -= received
            return received

        with self._closed_on_error():
            found = fill(receive, places)
            if found < count:
                raise OSError(f"{self._address[0]} ended after {found} of {count} bytes")
        return found

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self, name: Name, part: int, start: int, length: int) -> int:
        connection = self._connected()
        with self._closed_on_error():
            connection.sendall(REQUEST.pack(self._token, *name, part, start, length))
            answer = bytearray(ANSWER.size)
            self._fill(memoryview(answer))
        count: int = ANSWER.unpack(answer)[0]
        if count == FAILED:
            raise PartFailed(f"rank {part} could not take its part of step {name[0]}")
        if count < 0 or (length and count > length):
            raise PartMissing(f"part {part} of step {name[0]} is not in the memory of the node")
        return count

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Half of an answer may still come: the next request needs another connection."""
        try:
            yield
        except OSError:
            self.close()
            raise

    def _fill(self, place: memoryview) -> None:
        if not _receive(self._connected(), place):
            raise ConnectionResetError(f"{self._address[0]} closed the connection")

    def _connected(self) -> socket.socket:
        if self._connection is None:
            made = socket.create_connection(self._address, CONNECT_SECONDS)
            _limit_waits(made, IDLE_SECONDS)
            self._connection = made
        return self._connection


class PartStore(Store):
    """The parts of one snapshot as the files of a store, wherever they are: `rank-PART.safetensors`
    in any folder."""

    def __init__(self, name: Name, find: Find, holders: tuple[Address, ...], token: bytes) -> None:
        """`holders`: by part. What this node holds itself is read here."""
        self.root, self.is_local, self.is_served = "peers", True, False
        self._name, self._find, self._holders, self._token = name, find, holders, token
        self._threads = threading.local()

    def read_into(self, name: str, start: int, places: list[memoryview]) -> int:
        """A part that cannot be read is as good as damaged: its node may have been lost."""
        try:
            return self._read_into(name, start, places)
        except OSError as error:
            raise OSError(errno.EIO, f"{error}") from error

    def _read_into(self, name: str, start: int, places: list[memoryview]) -> int:
        part = int(name.rpartition("rank-")[2].removesuffix(".safetensors"))
        if (file := self._find(self._name, part)) is not None:
            with file.path.open("rb", buffering=0) as content:
                content.seek(start)
                return fill(content.readinto, places)
        readers = self._threads.__dict__.setdefault("readers", {})
        address = self._holders[part]
        if address not in readers:
            readers[address] = PartReader(address, self._token)
        return int(readers[address].read_into(self._name, part, start, places))


def _limit_waits(connection: socket.socket, seconds: float) -> None:
    """By the kernel: a call that has waited for so long raises BlockingIOError."""
    connection.settimeout(None)
    timeout = struct.pack("@ll", math.ceil(seconds), 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, timeout)


def _send_file(connection: socket.socket, descriptor: int, start: int, count: int) -> None:
    while count:
        sent = os.sendfile(connection.fileno(), descriptor, start, min(count, CALL_BYTES))
        if not sent:
            raise OSError("a part became shorter while it was sent")
        start, count = start + sent, count - sent


def _receive_some(connection: socket.socket, place: memoryview) -> int:
    """As much as one call is for, unless the connection ends."""
    try:
        return connection.recv_into(place, min(len(place), CALL_BYTES), socket.MSG_WAITALL)
    except BlockingIOError:
        raise TimeoutError(f"nothing came for {IDLE_SECONDS:.0f} s") from None


def _receive(connection: socket.socket, place: memoryview) -> bool:
    """Whether all of it came."""
    return fill(lambda rest: _receive_some(connection, rest), [place]) == len(place)
