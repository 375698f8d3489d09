"""Bytes to messages and back: frames, the proof of the run's key, and a tag on every frame.

No sockets: `receive` takes what has come in, and says what it means and what to answer. The layouts
are in docs/reference/coordinator-protocol.md; both sides are here, so that they cannot differ.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from headway.errors import BadInput
from headway.member.keys import MIN_KEY_BYTES
from headway.member.messages import (
    MAX_HANDSHAKE_BYTES,
    MAX_POD,
    MAX_RUN,
    MAX_TO_COORDINATOR_BYTES,
    MAX_TO_WORKER_BYTES,
    FromCoordinator,
    FromWorker,
    Message,
    ProtocolError,
    encode,
    from_coordinator,
    from_worker,
)

LOWEST_VERSION = 1
HIGHEST_VERSION = 1
HANDSHAKE_SECONDS = 5.0
"""From the connection to the proof: three messages of busy machines, with a packet lost twice."""
ALIVE_SECONDS = 2.0
"""The coordinator says something at least so often..."""
DEAF_SECONDS = 10.0
"""... and a worker that has heard nothing for so long connects anew."""

MAGIC = b"HEADWAY\0"
NONCE_BYTES = 32
PROOF_BYTES = 32
TAG_BYTES = 16
LENGTH_BYTES = 4

WORKER_HELLO, COORDINATOR_HELLO, PROOF, REFUSAL = 1, 2, 3, 4
OTHER_VERSION, OTHER_RUN, WRONG_PROOF = 1, 2, 3

_HEAD = struct.Struct(">B8sHH")
_HELLO = struct.Struct(">B8sHH32s")
_COORDINATOR_HELLO = struct.Struct(">B8sHH32sQ")
_REFUSAL = struct.Struct(">B8sHHB")

KEY_HINT = "worker and coordinator must read the same key file, and both or neither use TLS"

Incoming = TypeVar("Incoming")


class Refused(ProtocolError):
    """The two do not belong together: another version, another run, another key."""

    def __init__(self, message: str, hint: str | None = None, code: int = 0) -> None:
        super().__init__(message, hint)
        self.code = code


class Received(NamedTuple, Generic[Incoming]):
    messages: list[Incoming]
    reply: bytes
    """To be sent now."""
    error: ProtocolError | None
    """After it nothing is accepted: send `reply` and close."""


class Packed(NamedTuple):
    """A message as bytes. One that goes to thousands of sessions is encoded and hashed once."""

    payload: bytes
    digest: bytes


def pack(message: Message) -> Packed:
    payload = encode(message)
    return Packed(payload, _digest(payload))


class _Side(Generic[Incoming]):
    """One end of a connection: first the handshake, then frames with tags."""

    def __init__(
        self,
        key: bytes,
        binding: bytes,
        versions: tuple[int, int],
        nonce: bytes | None,
        max_incoming: int,
        max_outgoing: int,
        decode: Callable[[bytes], Incoming],
    ) -> None:
        assert len(key) >= MIN_KEY_BYTES, "a key of a run has 32 bytes or more"
        assert nonce is None or len(nonce) == NONCE_BYTES
        self.error: ProtocolError | None = None
        self.version = 0
        """Agreed on; 0 until then."""
        self._key = key
        self._binding = binding
        self._versions = versions
        self._nonce = nonce or secrets.token_bytes(NONCE_BYTES)
        self._max_incoming = max_incoming
        self._max_outgoing = max_outgoing
        self._decode = decode
        self._buffer = bytearray()
        self._needed = 0
        self._handshake: Callable[[bytes], bytes] | None = None
        """What to do with the next payload, until the connection is open."""
        self._num_received = 0
        self._num_sealed = 0

    @property
    def is_open(self) -> bool:
        """Both have proven the key, and nothing was wrong since."""
        return self._handshake is None and self.error is None

    @property
    def num_buffered_bytes(self) -> int:
        return len(self._buffer)

    def receive(self, data: bytes) -> Received[Incoming]:
        """What `data`, after all before it, means. How it was cut makes no difference."""
        if self.error is not None:
            return Received([], b"", self.error)
        if self._buffer:
            # Appended, not joined: a long frame in many small pieces is copied once.
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
                    raise ProtocolError(f"a frame of {length} bytes, 1 to {most} are taken here")
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
            if isinstance(error, Refused):
                reply += self._refusal(error)
            return Received(messages, reply, error)
        if begin < size:
            self._buffer += data[begin:]
        return Received(messages, reply, None)

    def seal(self, packed: Packed) -> bytes:
        """The frame for it. Frames must be sent in the order in which they are sealed."""
        if not self.is_open:
            raise self.error or ProtocolError("the handshake is not over yet")
        payload, digest = packed
        assert len(payload) <= self._max_outgoing
        tag = _tag(self._outgoing, self._num_sealed, digest)
        self._num_sealed += 1
        return len(payload).to_bytes(LENGTH_BYTES, "big") + payload + tag

    def send(self, message: Message) -> bytes:
        """The frame for a message that goes to this connection alone."""
        return self.seal(pack(message))

    def _verified(self, payload: bytes, tag: bytes) -> Incoming:
        expected = _tag(self._incoming, self._num_received, _digest(payload))
        if not hmac.compare_digest(tag, expected):
            raise ProtocolError(
                f"frame {self._num_received} was changed on the way, is not in its place, or is "
                "not of this connection"
            )
        self._num_received += 1
        return self._decode(payload)

    def _agreed_version(self, other: str, payload: bytes) -> int:
        """From the first bytes of a hello or a refusal, which are the same in all versions."""
        magic, lowest, highest = _head(payload)
        if magic != MAGIC or lowest > highest:
            raise ProtocolError("not Headway's protocol")
        version = min(highest, self._versions[1])
        if version < max(lowest, self._versions[0]):
            raise Refused(*_other_versions(other, (lowest, highest), self._versions), OTHER_VERSION)
        return version

    def _derive(self, worker_hello: bytes, coordinator_hello: bytes) -> Callable[[bytes], bytes]:
        """HKDF: the transcript under the run's key, expanded by label."""
        label = b"headway session %d" % self.version
        transcript = hashlib.sha256()
        for part in (label, self._binding, worker_hello, coordinator_hello):
            transcript.update(len(part).to_bytes(LENGTH_BYTES, "big") + part)
        secret = hmac.digest(self._key, transcript.digest(), "sha256")
        return lambda purpose: hmac.digest(secret, purpose + b"\x01", "sha256")

    def _open(self, incoming: bytes, outgoing: bytes) -> None:
        self._incoming = hashlib.blake2b(key=incoming, digest_size=TAG_BYTES)
        self._outgoing = hashlib.blake2b(key=outgoing, digest_size=TAG_BYTES)
        self._handshake = None
        self._key = b""

    def _refusal(self, error: Refused) -> bytes:
        """What the other side is told of it. Nothing, unless a side has something to tell."""
        return b""

    def _end(self, error: ProtocolError) -> None:
        self.error = error
        self._key = b""
        self._buffer = bytearray()


class CoordinatorSide(_Side[FromWorker]):
    """A connection that a worker has made. Says nothing before it is spoken to."""

    def __init__(
        self,
        key: bytes,
        run: str,
        incarnation: int,
        *,
        binding: bytes = b"",
        versions: tuple[int, int] = (LOWEST_VERSION, HIGHEST_VERSION),
        nonce: bytes | None = None,
    ) -> None:
        super().__init__(
            key,
            binding,
            versions,
            nonce,
            MAX_TO_COORDINATOR_BYTES,
            MAX_TO_WORKER_BYTES,
            from_worker,
        )
        self.pod = ""
        """Who it says it is; proven to be of this run when the connection is open."""
        self._run = run
        self._incarnation = incarnation
        self._handshake = self._hello

    def _hello(self, payload: bytes) -> bytes:
        _expect(payload, WORKER_HELLO)
        self.version = self._agreed_version("worker", payload)
        run, pod = _names(payload)
        if run != self._run:
            raise Refused("the worker is of another run", code=OTHER_RUN)
        self.pod = pod
        hello = _COORDINATOR_HELLO.pack(
            COORDINATOR_HELLO, MAGIC, *self._versions, self._nonce, self._incarnation
        )
        self._keys = self._derive(payload, hello)
        self._handshake = self._proof
        return _frame(hello + self._keys(b"coordinator proof"))

    def _proof(self, payload: bytes) -> bytes:
        _expect(payload, PROOF)
        if not hmac.compare_digest(payload[1:], self._keys(b"worker proof")):
            raise Refused("the worker has another key", KEY_HINT, WRONG_PROOF)
        self._open(self._keys(b"worker to coordinator"), self._keys(b"coordinator to worker"))
        del self._keys
        return b""

    def _refusal(self, error: Refused) -> bytes:
        return _frame(_REFUSAL.pack(REFUSAL, MAGIC, *self._versions, error.code))


class WorkerSide(_Side[FromCoordinator]):
    """A connection to the coordinator. Send `hello` first."""

    def __init__(
        self,
        key: bytes,
        run: str,
        pod: str,
        *,
        newest_incarnation: int = 0,
        binding: bytes = b"",
        versions: tuple[int, int] = (LOWEST_VERSION, HIGHEST_VERSION),
        nonce: bytes | None = None,
    ) -> None:
        """`newest_incarnation` is the highest one met so far: an older coordinator is refused."""
        super().__init__(
            key,
            binding,
            versions,
            nonce,
            MAX_TO_WORKER_BYTES,
            MAX_TO_COORDINATOR_BYTES,
            from_coordinator,
        )
        self.incarnation = 0
        """The coordinator's; proven when the connection is open."""
        self._newest = newest_incarnation
        self._hello = (
            _HELLO.pack(WORKER_HELLO, MAGIC, *versions, self._nonce)
            + _name_field(run, MAX_RUN)
            + _name_field(pod, MAX_POD)
        )
        self._handshake = self._answer

    @property
    def hello(self) -> bytes:
        return _frame(self._hello)

    def _answer(self, payload: bytes) -> bytes:
        if payload[0] == REFUSAL:
            raise self._refused(payload)
        _expect(payload, COORDINATOR_HELLO)
        self.version = self._agreed_version("coordinator", payload)
        if len(payload) != _COORDINATOR_HELLO.size + PROOF_BYTES:
            raise ProtocolError("a hello of the wrong length")
        hello, proof = payload[:-PROOF_BYTES], payload[-PROOF_BYTES:]
        keys = self._derive(self._hello, hello)
        if not hmac.compare_digest(proof, keys(b"coordinator proof")):
            raise Refused("the coordinator has another key", KEY_HINT, WRONG_PROOF)
        *_, self.incarnation = _COORDINATOR_HELLO.unpack(hello)
        if self.incarnation < self._newest:
            raise ProtocolError(
                f"this is coordinator {self.incarnation}, and {self._newest} has taken its place"
            )
        self._open(keys(b"coordinator to worker"), keys(b"worker to coordinator"))
        return _frame(bytes([PROOF]) + keys(b"worker proof"))

    def _refused(self, payload: bytes) -> ProtocolError:
        """Anyone on the way could have said it: a reason to look, not to give up for good."""
        if len(payload) != _REFUSAL.size:
            return ProtocolError("a refusal of the wrong length")
        self._agreed_version("coordinator", payload)
        code = payload[-1]
        if code == OTHER_RUN:
            text = "the coordinator is of another run"
            return Refused(text, "look at the address it was reached at", code)
        if code == WRONG_PROOF:
            return Refused("the coordinator has another key", KEY_HINT, code)
        return Refused(f"the coordinator refused, for reason {code}", code=code)


def certificate_binding(certificate: bytes) -> bytes:
    """Ties a session to the TLS connection below it: the server's certificate (DER) as each side
    sees it. Somebody in between has another one. (TLS 1.3 has no `tls-unique`, and Python's ssl
    does not export keying material.)"""
    return b"tls-server-end-point:" + hashlib.sha256(certificate).digest()


def _frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=32).digest()


def _tag(keyed: hashlib.blake2b, number: int, digest: bytes) -> bytes:
    mac = keyed.copy()
    mac.update(number.to_bytes(8, "big") + digest)
    return mac.digest()


def _expect(payload: bytes, kind: int) -> None:
    if payload[0] != kind:
        raise ProtocolError(f"handshake message {payload[0]} where {kind} was due")


def _head(payload: bytes) -> tuple[bytes, int, int]:
    if len(payload) < _HEAD.size:
        raise ProtocolError("a hello that is cut off")
    _, magic, lowest, highest = _HEAD.unpack_from(payload)
    return magic, lowest, highest


def require_name(name: str, most: int) -> None:
    if not 0 < len(name) <= most or not _is_plain(name):
        raise BadInput(f"{name[:most]!r}: a name is 1 to {most} letters, digits and signs of ASCII")


def _name_field(name: str, most: int) -> bytes:
    require_name(name, most)
    return len(name).to_bytes(2, "big") + name.encode()


def _names(payload: bytes) -> tuple[str, str]:
    """Run and pod of a worker's hello."""
    names = []
    begin = _HELLO.size
    for most in (MAX_RUN, MAX_POD):
        length = int.from_bytes(payload[begin : begin + 2], "big")
        # Bytes beyond ASCII become signs that are not plain.
        name = payload[begin + 2 : begin + 2 + length].decode("ascii", "replace")
        if not 0 < length <= most or len(name) != length or not _is_plain(name):
            raise ProtocolError("a hello whose names are too long, cut off or not plain")
        names.append(name)
        begin += 2 + length
    if begin != len(payload):
        raise ProtocolError("a hello of the wrong length")
    return names[0], names[1]


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isprintable() and " " not in name


def _other_versions(other: str, theirs: tuple[int, int], ours: tuple[int, int]) -> tuple[str, str]:
    older = f"the {other} is older" if theirs[1] < ours[0] else f"the {other} is newer"
    said = [str(low) if low == high else f"{low} to {high}" for low, high in (theirs, ours)]
    return (
        f"{older}: it speaks version {said[0]} of the protocol, and this side {said[1]}",
        "start workers and coordinator from the same version of Headway",
    )
