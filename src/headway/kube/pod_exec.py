"""A command in a container of a pod, with this process's input, output and terminal.

A WebSocket with the subprotocol v5.channel.k8s.io, which Kubernetes has from 1.30 on: channels 0 to
2 are input, output and errors, channel 3 how the command ended, channel 4 the terminal's size. With
v4 the end of input could not be told.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from headway.errors import BadInput, HeadwayError
from headway.kube.channels import ChannelMessages, opened_channels

SUBPROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CONNECT_SECONDS = 10.0
"""For the connection. The API server then waits 30 s for the kubelet, and says so on channel 3."""
WRITE_SECONDS = 20.0
CHECK_SECONDS = 10.0
"""Silence after which the pod is looked at: a machine without power closes no connection."""
TURN_SECONDS = 0.25
"""How soon a new size of the terminal is noticed."""
PEEK_SECONDS = 0.001
"""For what has arrived already: 0 would make an error of an incomplete TLS record."""
READ_BYTES = 2**16
MOST_READS = 4
PIECE_BYTES = 4096
"""Written at a time: a socket that can be written to has room for it. If writing had to wait,
output would not be read meanwhile, and the command might wait for that."""

TerminalSize = tuple[int, int]
"""Columns and lines."""


class CommandNotRun(BadInput):
    """The container's runtime could not start the command, and says why."""


class CommandLost(HeadwayError):
    """The connection ended before the command did."""


@dataclass(frozen=True)
class LocalEnds:
    """This process's side of the command."""

    stdin: int
    """A file descriptor."""
    stdout: Callable[[bytes], object]
    stderr: Callable[[bytes], object]
    size: Callable[[], TerminalSize] | None = None
    """None: no terminal."""


class PodCommand:
    """A command that has been asked for. `opened` is closed when it has ended."""

    def __init__(self, raw: httpcore2.NetworkStream, opened: ExitStack) -> None:
        self._raw = raw
        self._opened = opened
        self._socket = raw.get_extra_info("socket")
        self._messages = ChannelMessages()
        self._outgoing = bytearray()
        self._has_input = True
        self._size: TerminalSize | None = None
        self._status = bytearray()
        self._outcome: dict[str, Any] | None = None

    def exit_code(
        self,
        ends: LocalEnds,
        require_pod: Callable[[], None],
        check_seconds: float = CHECK_SECONDS,
    ) -> int:
        """Relays until the command has ended. `require_pod` raises if its pod is gone."""
        with self._opened:
            try:
                self._relay(ends, require_pod, check_seconds)
            except (
                httpcore2.NetworkError,
                httpcore2.TimeoutException,
                LocalProtocolError,
                RemoteProtocolError,
            ) as error:
                words = f"the connection broke before the command ended: {error}"
                raise CommandLost(words) from None
        if self._outcome is None:
            raise CommandLost("the connection was closed before the command ended")
        return ended_with(self._outcome)

    def _relay(
        self, ends: LocalEnds, require_pod: Callable[[], None], check_seconds: float
    ) -> None:
        # What came with the answer to the request is in memory: no select would tell of it.
        has_more = self._receive(ends)
        heard = time.monotonic()
        while not self._is_over:
            self._note_size(ends)
            wants_input = self._has_input and not self._outgoing
            readable, writable, _ = select.select(
                [self._socket, ends.stdin] if wants_input else [self._socket],
                [self._socket] if self._outgoing else [],
                [],
                0 if has_more else TURN_SECONDS,
            )
            if has_more or self._socket in readable:
                has_more = self._receive(ends)
                heard = time.monotonic()
            if ends.stdin in readable and not self._is_over:
                self._take(os.read(ends.stdin, READ_BYTES))
            if writable and self._outgoing:
                self._write_piece()
            if time.monotonic() - heard > check_seconds:
                require_pod()
                heard = time.monotonic()

    @property
    def _is_over(self) -> bool:
        return self._outcome is not None or self._messages.is_over

    def _write_piece(self) -> None:
        piece = bytes(self._outgoing[:PIECE_BYTES])
        try:
            self._raw.write(piece, WRITE_SECONDS)
        except httpcore2.WriteError:
            # Closed there. How the command ended may be waiting to be read; if not, reading fails.
            self._outgoing.clear()
            self._has_input = False
            return
        del self._outgoing[: len(piece)]

    def _take(self, typed: bytes) -> None:
        if typed:
            self._outgoing += self._messages.sent(STDIN, typed)
            return
        self._has_input = False
        self._outgoing += self._messages.sent(CLOSE, bytes([STDIN]))

    def _note_size(self, ends: LocalEnds) -> None:
        if ends.size is None or (size := ends.size()) == self._size:
            return
        self._size = size
        words = json.dumps({"Width": size[0], "Height": size[1]})
        self._outgoing += self._messages.sent(RESIZE, words.encode())

    def _receive(self, ends: LocalEnds) -> bool:
        """What has arrived, or a part of it, so that what is typed has its turn: Ctrl-C above all.
        Returns whether there may be more."""
        has_more = False
        for _ in range(MOST_READS):
            has_more = not self._is_over
            if not has_more:
                break
            try:
                received = self._raw.read(READ_BYTES, PEEK_SECONDS)
            except httpcore2.ReadTimeout:
                has_more = False
                break
            for channel, content, is_whole in self._messages.receive(received):
                match channel:
                    case 1:
                        ends.stdout(content)
                    case 2:
                        ends.stderr(content)
                    case 3:
                        self._status += content
                        if is_whole and self._status:
                            self._outcome = json.loads(self._status)
        self._outgoing += self._messages.taken_replies()
        return has_more


def open_exec(
    http: httpx2.Client,
    namespace: str,
    pod: str,
    container: str,
    command: Sequence[str],
    has_terminal: bool,
) -> PodCommand:
    """Raises UpgradeRefused."""
    parameters = {
        "container": container,
        "command": list(command),
        "stdin": "true",
        "stdout": "true",
        # A terminal has one output.
        "stderr": "false" if has_terminal else "true",
        "tty": "true" if has_terminal else "false",
    }
    path = f"api/v1/namespaces/{namespace}/pods/{pod}/exec"
    return PodCommand(*opened_channels(http, path, parameters, SUBPROTOCOL, CONNECT_SECONDS))


def ended_with(status: dict[str, Any]) -> int:
    """The exit code in the Status that the kubelet sends. Raises CommandNotRun if there is none."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise CommandNotRun(str(status.get("message") or status.get("reason") or "no reason given"))
