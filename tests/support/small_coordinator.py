"""A coordinator that decides nothing: it does what a test says, over a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from headway.member.protocol.generation import Generation, nobody
from headway.member.protocol.handshake import CoordinatorSide
from headway.member.protocol.messages import (
    Farewell,
    FromCoordinator,
    FromWorker,
    Goodbye,
    Heartbeat,
    StoreAnswer,
    StoreRequest,
    Welcome,
    difference,
)
from headway.member.protocol.status import WorkerStatus
from support.stolen_time import Stopwatch

KEY = bytes(range(32))
RUN = "a-run"


class SmallCoordinator:
    def __init__(
        self,
        incarnation: int = 1,
        port: int = 0,
        *,
        key: bytes = KEY,
        run: str = RUN,
        versions: tuple[int, int] = (1, 1),
        is_refusing: str = "",
        answer: Callable[[StoreRequest], StoreAnswer | None] = lambda request: None,
    ) -> None:
        self.incarnation, self.key, self.run, self.versions = incarnation, key, run, versions
        self.is_refusing = is_refusing
        """It says farewell instead of welcome, with this reason."""
        self.answer = answer
        self.generation: Generation = nobody(incarnation)
        self.is_mute = False
        """It reads, and says nothing."""
        self.is_welcoming = True
        self.heartbeats: list[tuple[float, str, WorkerStatus]] = []
        self.gaps: list[float] = []
        """Seconds before each heartbeat but the first, without what the host took."""
        self._since_heartbeat = Stopwatch()
        self.connected_at: list[float] = []
        self.goodbyes: list[str] = []
        self.requests: list[StoreRequest] = []
        self.sides: dict[socket.socket, CoordinatorSide] = {}
        self._lock = threading.RLock()
        self._is_over = False
        self._listening = socket.create_server(("127.0.0.1", port))
        self._listening.settimeout(0.02)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_over = True
        self._listening.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(5.0)

    def hang_up(self) -> None:
        with self._lock:
            for connection in self.sides:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def publish(self, generation: Generation) -> None:
        with self._lock:
            before, self.generation = self.generation, generation
            self.tell(difference(before if before.number else None, generation))

    def tell(self, message: FromCoordinator) -> None:
        """To all who are connected."""
        with self._lock:
            for connection, side in list(self.sides.items()):
                if side.is_open:
                    with suppress(OSError):
                        connection.sendall(side.send(message))

    def newest(self) -> WorkerStatus:
        return self.heartbeats[-1][2] if self.heartbeats else WorkerStatus()

    def _accept(self) -> None:
        while not self._is_over:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                continue
            self.connected_at.append(time.monotonic())
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(5.0)
        try:
            self._converse(connection)
        except OSError:
            pass
        finally:
            with self._lock:
                self.sides.pop(connection, None)
            connection.close()

    def _converse(self, connection: socket.socket) -> None:
        side = CoordinatorSide(self.key, self.run, self.incarnation, versions=self.versions)
        with self._lock:
            self.sides[connection] = side
        is_first = True
        while not self._is_over and (data := connection.recv(65536)):
            with self._lock:
                received = side.receive(data)
                if not self.is_mute or not side.is_open:
                    connection.sendall(received.reply)
                for message in received.messages:
                    assert not is_first or isinstance(message, Heartbeat), message
                    self._hear(connection, side, message, is_first)
                    is_first = False
            if received.error is not None:
                return

    def _hear(
        self, connection: socket.socket, side: CoordinatorSide, message: FromWorker, is_first: bool
    ) -> None:
        if isinstance(message, Heartbeat):
            if self.heartbeats:
                self.gaps.append(self._since_heartbeat.seconds)
            self._since_heartbeat = Stopwatch()
            self.heartbeats.append((time.monotonic(), side.worker, message.status))
            if self.is_refusing:
                connection.sendall(side.send(Farewell(self.is_refusing)))
            elif is_first and self.is_welcoming and not self.is_mute:
                there = self.generation
                seen = message.status.seen == there.number
                change = None if seen else difference(None, there)
                connection.sendall(side.send(Welcome(self.incarnation, change, False)))
        elif isinstance(message, Goodbye):
            self.goodbyes.append(message.reason)
        else:
            self.requests.append(message)
            answer = self.answer(message)
            if answer is not None:
                connection.sendall(side.send(answer))
