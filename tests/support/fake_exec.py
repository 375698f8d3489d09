"""The API server's end of `exec`: a WebSocket with v5.channel.k8s.io, and the command as a process
of this machine. It can be silent, cut off, or say that there is no such command."""

from __future__ import annotations

import json
import socket
import subprocess
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import IO, Any

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping
from wsproto.utilities import LocalProtocolError, generate_accept_token

END_SECONDS = 20.0
Object = dict[str, Any]


class FakeExec:
    def __init__(self) -> None:
        self.subprotocol = "v5.channel.k8s.io"
        """Chosen by the server."""
        self.asked: list[dict[str, list[str]]] = []
        """Queries."""
        self.sizes: list[tuple[int, int]] = []
        """That the terminal had."""
        self.processes: list[subprocess.Popen[bytes]] = []
        self.is_cut = False
        """Closed without a word on how the command ended."""
        self.is_silent = False
        """As after a machine lost power: nothing comes, and nothing is closed."""
        self.is_over = Event()
        """Whoever is kept waiting is let go."""

    def serve(self, client: socket.socket, key: str, query: dict[str, list[str]]) -> None:
        self.asked.append(query)
        token = generate_accept_token(key.encode()).decode()
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += f"Sec-WebSocket-Protocol: {self.subprotocol}\r\nSec-WebSocket-Accept: {token}\r\n"
        client.sendall(f"{head}\r\n".encode())
        if self.is_silent:
            self.is_over.wait(60)
        elif not self.is_cut:
            _Command(self, client).run(query["command"])


class _Command:
    def __init__(self, fake: FakeExec, client: socket.socket) -> None:
        self._fake = fake
        self._client = client
        self._websocket = Connection(ConnectionType.SERVER)
        self._lock = Lock()

    def run(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        except FileNotFoundError:
            words = f'exec: "{command[0]}": executable file not found in $PATH'
            self._end({"status": "Failure", "reason": "InternalError", "message": words})
            return
        self._fake.processes.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        sides = [(1, process.stdout), (2, process.stderr)]
        readers = [Thread(target=self._pass_on, args=side, daemon=True) for side in sides]
        input_ = Thread(target=self._take, args=(process.stdin,), daemon=True)
        for thread in (*readers, input_):
            thread.start()
        code = process.wait(END_SECONDS)
        for thread in readers:
            thread.join(END_SECONDS)
        if code == 0:
            self._end({"status": "Success"})
        else:
            cause = {"reason": "ExitCode", "message": str(abs(code))}
            self._end({"status": "Failure", "details": {"causes": [cause]}})
        input_.join(END_SECONDS)

    def _pass_on(self, channel: int, file: IO[bytes]) -> None:
        """Closes the pipe when the client is gone, so that a command that goes on writing ends."""
        with suppress(OSError), file:
            while content := file.read1(2**15):  # type: ignore[attr-defined]
                self._send(bytes([channel]) + content)

    def _take(self, stdin: IO[bytes]) -> None:
        """Blocks, as the real one does, while the command does not read."""
        message = b""
        with suppress(OSError, ValueError), stdin:
            while received := self._client.recv(2**16):
                with self._lock:
                    self._websocket.receive_data(received)
                    events = list(self._websocket.events())
                for event in events:
                    if not isinstance(event, BytesMessage):
                        continue
                    message += bytes(event.data)
                    if event.message_finished:
                        channel, content, message = message[0], message[1:], b""
                        if channel == 0:
                            stdin.write(content)
                            stdin.flush()
                        elif channel == 4:
                            size = json.loads(content)
                            self._fake.sizes.append((size["Width"], size["Height"]))
                        elif (channel, content) == (255, b"\0"):
                            stdin.close()

    def _send(self, message: bytes) -> None:
        with self._lock:
            frames = self._websocket.send(Ping(b"?")) + self._websocket.send(BytesMessage(message))
        self._client.sendall(frames)

    def _end(self, status: Object) -> None:
        with suppress(OSError, LocalProtocolError):
            self._send(b"\3" + json.dumps({"kind": "Status", **status}).encode())
            self._client.sendall(self._websocket.send(CloseConnection(1000)))
            self._client.shutdown(socket.SHUT_WR)
