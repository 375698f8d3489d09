"""Bytes to messages and back: frames, with a tag on each once the handshake is done.

No sockets: `receive` takes what has come in, and says what it means and what to answer. The layouts
are in docs/reference/coordinator-protocol.md.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from headway.member.protocol.messages import (
    MAX_HANDSHAKE_BYTES,
    Message,
    ProtocolError,
    encode,
)

HEARTBEAT_SECONDS = 1.0
"""Longest time between two heartbeats of a worker."""
ALIVE_SECONDS = 2.0
"""Longest time between two messages of the coordinator..."""
DEAF_SECONDS = 10.0
"""... and time without a message after which a worker reconnects."""

TAG_BYTES = 16
LENGTH_BYTES = 4

Incoming = TypeVar("Incoming")


class Received(NamedTuple, Generic[Incoming]):
    messages: list[Incoming]
    reply: bytes
    """Bytes to be sent now."""
    error: ProtocolError | None
    """Error after which nothing is accepted: send `reply` and close."""


class PackedMessage(NamedTuple):
    """An encoded message. One that goes to thousands of sessions is encoded and hashed once."""

    payload: bytes
    digest: bytes


def pack(message: Message) -> PackedMessage:
    payload = encode(message)
    return PackedMessage(payload, _digest(payload))


class FramedStream(Generic[Incoming]):
    """One end of a connection: frames of a handshake first, then messages in frames with tags."""

    def __init__(
        self,
        handshake: Callable[[bytes], bytes],
        max_incoming: int,
        max_outgoing: int,
        decode: Callable[[bytes], Incoming],
    ) -> None:
        self.error: ProtocolError | None = None
        self._max_incoming = max_incoming
        self._max_outgoing = max_outgoing
        self._decode = decode
        self._buffer = bytearray()
        self._needed = 0
        self._handshake: Callable[[bytes], bytes] | None = handshake
        """Answers the next payload, until the connection is open."""
        self._num_received = 0
        self._num_sealed = 0

    @property
    def is_open(self) -> bool:
        """Whether both sides have proven the key, and nothing was wrong since."""
        return self._handshake is None and self.error is None

    def receive(self, data: bytes) -> Received[Incoming]:
        """The messages in `data` and all that came before it, however it was split."""
        if self.error is not None:
            return Received([], b"", self.error)
        if self._buffer:
            # Appended, not joined: a long frame in many small parts is copied once.
            self._buffer += data
            if len(self._buffer) < self._needed:
                return Received([], b"", None)
            data = bytes(self._buffer)
            self._buffer.clear()
        messages: list[Incoming] = []
        reply = b""
        begin, size = 0, len(data)
        self._needed = LENGTH_BYTES
        try:
            while size - begin >= LENGTH_BYTES:
                start = begin + LENGTH_BYTES
                length = int.from_bytes(data[begin:start], "big")
                opened = self._handshake is None
                most = self._max_incoming if opened else MAX_HANDSHAKE_BYTES
                if not 0 < length <= most:
                    raise ProtocolError(f"frame of {length} bytes; it must have 1 to {most}")
                end = start + length + (TAG_BYTES if opened else 0)
                if end > size:
                    self._needed = end - begin
                    break
                payload = data[start : start + length]
                if self._handshake is None:
                    messages.append(self._verified(payload, data[start + length : end]))
                else:
                    reply += self._handshake(payload)
                begin = end
        except ProtocolError as error:
            self._end(error)
            return Received(messages, reply + self._refusal(error), error)
        if begin < size:
            self._buffer += data[begin:]
        return Received(messages, reply, None)

    def seal(self, packed: PackedMessage) -> bytes:
        """The frame of a message. Frames must be sent in the order in which they are sealed."""
        if not self.is_open:
            raise self.error or ProtocolError("the handshake is not complete")
        payload, digest = packed
        assert len(payload) <= self._max_outgoing
        tag = _tag(self._outgoing, self._num_sealed, digest)
        self._num_sealed += 1
        return len(payload).to_bytes(LENGTH_BYTES, "big") + payload + tag

    def send(self, message: Message) -> bytes:
        """The frame of a message that goes to this connection alone."""
        return self.seal(pack(message))

    def _verified(self, payload: bytes, tag: bytes) -> Incoming:
        expected = _tag(self._incoming, self._num_received, _digest(payload))
        if not hmac.compare_digest(tag, expected):
            raise ProtocolError(
                f"frame {self._num_received} does not verify: it was altered or reordered, or "
                "belongs to another connection"
            )
        self._num_received += 1
        return self._decode(payload)

    def _open(self, incoming: bytes, outgoing: bytes) -> None:
        self._incoming = hashlib.blake2b(key=incoming, digest_size=TAG_BYTES)
        self._outgoing = hashlib.blake2b(key=outgoing, digest_size=TAG_BYTES)
        self._handshake = None

    def _refusal(self, error: ProtocolError) -> bytes:
        """What the other side is told about an error. Only a coordinator tells, and only why it
        refused the handshake."""
        return b""

    def _end(self, error: ProtocolError) -> None:
        self.error = error
        self._buffer = bytearray()


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=32).digest()


def _tag(keyed: hashlib.blake2b, number: int, digest: bytes) -> bytes:
    mac = keyed.copy()
    mac.update(number.to_bytes(8, "big") + digest)
    return mac.digest()
