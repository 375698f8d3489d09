"""The handshake: how a worker and a coordinator prove to each other that they have the run's key.

Both sides are here, so that they cannot differ. The layouts and what they protect against are in
docs/reference/coordinator-protocol.md.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable
from typing import TypeVar

from headway.errors import BadInput
from headway.member.protocol.keys import MIN_KEY_BYTES
from headway.member.protocol.messages import (
    MAX_RUN,
    MAX_TO_COORDINATOR_BYTES,
    MAX_TO_WORKER_BYTES,
    MAX_WORKER_NAME,
    FromCoordinator,
    FromWorker,
    ProtocolError,
    from_coordinator,
    from_worker,
)
from headway.member.protocol.wire import LENGTH_BYTES, FramedStream, frame

LOWEST_VERSION = 1
HIGHEST_VERSION = 2
"""From 2 on the first Heartbeat says which Headway the worker is."""
HANDSHAKE_SECONDS = 5.0
"""Time from the connection to the proof: three messages of busy machines, with a packet lost
twice."""

MAGIC = b"HEADWAY\0"
NONCE_BYTES = 32
PROOF_BYTES = 32
WORKER_HELLO, COORDINATOR_HELLO, PROOF, REFUSAL = 1, 2, 3, 4
OTHER_VERSION, OTHER_RUN, WRONG_PROOF = 1, 2, 3

_HEAD = struct.Struct(">B8sHH")
_HELLO = struct.Struct(">B8sHH32s")
_COORDINATOR_HELLO = struct.Struct(">B8sHH32sQ")
_REFUSAL = struct.Struct(">B8sHHB")

KEY_HINT = "give the worker and the coordinator the same key file"

Incoming = TypeVar("Incoming")


class HandshakeRefused(ProtocolError):
    """Worker and coordinator do not belong together: another version, another run, another key."""

    def __init__(self, message: str, hint: str | None = None, code: int = 0) -> None:
        super().__init__(message, hint)
        self.code = code


class _ProvenStream(FramedStream[Incoming]):
    """What both sides of the handshake share."""

    def __init__(
        self,
        key: bytes,
        versions: tuple[int, int],
        nonce: bytes | None,
        *,
        handshake: Callable[[bytes], bytes],
        max_incoming: int,
        max_outgoing: int,
        decode: Callable[[bytes], Incoming],
    ) -> None:
        super().__init__(handshake, max_incoming, max_outgoing, decode)
        assert len(key) >= MIN_KEY_BYTES, "a key of a run has 32 bytes or more"
        assert nonce is None or len(nonce) == NONCE_BYTES
        self.version = 0
        """Version agreed on; 0 until then."""
        self._key = key
        self._versions = versions
        self._nonce = nonce or secrets.token_bytes(NONCE_BYTES)

    def _agreed_version(self, other: str, payload: bytes) -> int:
        """Reads the first bytes of a hello or a refusal, which are the same in all versions."""
        magic, lowest, highest = _head(payload)
        if magic != MAGIC or lowest > highest:
            raise ProtocolError("this is not Headway's session protocol")
        version = min(highest, self._versions[1])
        if version < max(lowest, self._versions[0]):
            raise HandshakeRefused(
                *_other_version(other, (lowest, highest), self._versions), OTHER_VERSION
            )
        return version

    def _derive(self, worker_hello: bytes, coordinator_hello: bytes) -> Callable[[bytes], bytes]:
        """HKDF: the transcript under the run's key, expanded by label."""
        label = b"headway session %d" % self.version
        transcript = hashlib.sha256()
        # The empty part is the place for a binding to an encrypted channel below; there is none.
        for part in (label, b"", worker_hello, coordinator_hello):
            transcript.update(len(part).to_bytes(LENGTH_BYTES, "big") + part)
        secret = hmac.digest(self._key, transcript.digest(), "sha256")
        return lambda purpose: hmac.digest(secret, purpose + b"\x01", "sha256")

    def _open(self, incoming: bytes, outgoing: bytes) -> None:
        super()._open(incoming, outgoing)
        self._key = b""

    def _end(self, error: ProtocolError) -> None:
        super()._end(error)
        self._key = b""


class CoordinatorSide(_ProvenStream[FromWorker]):
    """A connection that a worker has made. It sends nothing before the worker does."""

    def __init__(
        self,
        key: bytes,
        run: str,
        incarnation: int,
        *,
        versions: tuple[int, int] = (LOWEST_VERSION, HIGHEST_VERSION),
        nonce: bytes | None = None,
    ) -> None:
        super().__init__(
            key,
            versions,
            nonce,
            handshake=self._hello,
            max_incoming=MAX_TO_COORDINATOR_BYTES,
            max_outgoing=MAX_TO_WORKER_BYTES,
            decode=from_worker,
        )
        self.worker = ""
        """Name the worker gives itself; proven to belong to this run once the connection is
        open."""
        self._run = run
        self._incarnation = incarnation

    def _hello(self, payload: bytes) -> bytes:
        _expect(payload, WORKER_HELLO)
        self.version = self._agreed_version("worker", payload)
        run, worker = _names(payload)
        if run != self._run:
            raise HandshakeRefused("the worker belongs to another run", code=OTHER_RUN)
        self.worker = worker
        hello = _COORDINATOR_HELLO.pack(
            COORDINATOR_HELLO, MAGIC, *self._versions, self._nonce, self._incarnation
        )
        self._keys = self._derive(payload, hello)
        self._handshake = self._proof
        return frame(hello + self._keys(b"coordinator proof"))

    def _proof(self, payload: bytes) -> bytes:
        _expect(payload, PROOF)
        if not hmac.compare_digest(payload[1:], self._keys(b"worker proof")):
            raise HandshakeRefused("the worker has a different key", KEY_HINT, WRONG_PROOF)
        self._open(self._keys(b"worker to coordinator"), self._keys(b"coordinator to worker"))
        del self._keys
        return b""

    def _refusal(self, error: ProtocolError) -> bytes:
        if not isinstance(error, HandshakeRefused):
            return b""
        return frame(_REFUSAL.pack(REFUSAL, MAGIC, *self._versions, error.code))


class WorkerSide(_ProvenStream[FromCoordinator]):
    """A connection to the coordinator. Send `hello` first."""

    def __init__(
        self,
        key: bytes,
        run: str,
        worker: str,
        *,
        newest_incarnation: int = 0,
        versions: tuple[int, int] = (LOWEST_VERSION, HIGHEST_VERSION),
        nonce: bytes | None = None,
    ) -> None:
        """`newest_incarnation` is the highest one met so far: an older coordinator is refused."""
        super().__init__(
            key,
            versions,
            nonce,
            handshake=self._answer,
            max_incoming=MAX_TO_WORKER_BYTES,
            max_outgoing=MAX_TO_COORDINATOR_BYTES,
            decode=from_coordinator,
        )
        self.incarnation = 0
        """Incarnation of the coordinator; proven once the connection is open."""
        self._newest = newest_incarnation
        self._hello = (
            _HELLO.pack(WORKER_HELLO, MAGIC, *versions, self._nonce)
            + _name_field(run, MAX_RUN)
            + _name_field(worker, MAX_WORKER_NAME)
        )

    @property
    def hello(self) -> bytes:
        return frame(self._hello)

    def _answer(self, payload: bytes) -> bytes:
        if payload[0] == REFUSAL:
            raise self._refused(payload)
        _expect(payload, COORDINATOR_HELLO)
        self.version = self._agreed_version("coordinator", payload)
        if len(payload) != _COORDINATOR_HELLO.size + PROOF_BYTES:
            raise ProtocolError("the hello has the wrong length")
        hello, proof = payload[:-PROOF_BYTES], payload[-PROOF_BYTES:]
        keys = self._derive(self._hello, hello)
        if not hmac.compare_digest(proof, keys(b"coordinator proof")):
            raise HandshakeRefused("the coordinator has a different key", KEY_HINT, WRONG_PROOF)
        *_, self.incarnation = _COORDINATOR_HELLO.unpack(hello)
        if self.incarnation < self._newest:
            raise ProtocolError(
                f"this is coordinator {self.incarnation}, which coordinator {self._newest} has "
                "replaced"
            )
        self._open(keys(b"coordinator to worker"), keys(b"worker to coordinator"))
        return frame(bytes([PROOF]) + keys(b"worker proof"))

    def _refused(self, payload: bytes) -> ProtocolError:
        """Anyone on the way can forge a refusal: it is reported and retried, never final."""
        if len(payload) != _REFUSAL.size:
            return ProtocolError("the refusal has the wrong length")
        self._agreed_version("coordinator", payload)
        code = payload[-1]
        if code == OTHER_RUN:
            text = "the coordinator belongs to another run"
            return HandshakeRefused(text, "check the coordinator's address", code)
        if code == WRONG_PROOF:
            return HandshakeRefused("the coordinator has a different key", KEY_HINT, code)
        return HandshakeRefused(f"the coordinator refused the connection (code {code})", code=code)


def _expect(payload: bytes, kind: int) -> None:
    if payload[0] != kind:
        raise ProtocolError(f"handshake message {payload[0]} instead of {kind}")


def _head(payload: bytes) -> tuple[bytes, int, int]:
    if len(payload) < _HEAD.size:
        raise ProtocolError("the hello is truncated")
    _, magic, lowest, highest = _HEAD.unpack_from(payload)
    return magic, lowest, highest


def require_name(name: str, most: int) -> None:
    if not 0 < len(name) <= most or not _is_plain(name):
        raise BadInput(
            f"{name[:most]!r}: a name has 1 to {most} printable ASCII characters, no spaces"
        )


def _name_field(name: str, most: int) -> bytes:
    require_name(name, most)
    return len(name).to_bytes(2, "big") + name.encode()


def _names(payload: bytes) -> tuple[str, str]:
    """The names of run and worker in a worker's hello."""
    names = []
    begin = _HELLO.size
    for most in (MAX_RUN, MAX_WORKER_NAME):
        length = int.from_bytes(payload[begin : begin + 2], "big")
        # Bytes beyond ASCII become characters that are not plain.
        name = payload[begin + 2 : begin + 2 + length].decode("ascii", "replace")
        if not 0 < length <= most or len(name) != length or not _is_plain(name):
            raise ProtocolError("a name in the hello is too long, truncated or not printable ASCII")
        names.append(name)
        begin += 2 + length
    if begin != len(payload):
        raise ProtocolError("the hello has the wrong length")
    return names[0], names[1]


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isprintable() and " " not in name


def _other_version(other: str, theirs: tuple[int, int], ours: tuple[int, int]) -> tuple[str, str]:
    own = "coordinator" if other == "worker" else "worker"
    age = "older" if theirs[1] < ours[0] else "newer"
    named = [
        f"version {low}" if low == high else f"versions {low} to {high}"
        for low, high in (theirs, ours)
    ]
    return (
        f"the {other} is {age}: it speaks {named[0]} of the session protocol, "
        f"and this {own} speaks {named[1]}",
        "run the workers and the coordinator with the same version of Headway",
    )
