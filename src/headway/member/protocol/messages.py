"""What a worker and the coordinator say to each other, and how large each part may be.

Every message is a MessagePack array whose first element is its kind. What does not fit its type or
its limits is a ProtocolError on either side; nothing is sent that the other side would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from headway.errors import HeadwayError
from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.status import WorkerStatus

# Every limit of the protocol. Texts and names count in characters, all else in bytes.
MAX_HANDSHAKE_BYTES = 1024
"""Size of a frame before the key is proven."""
MAX_PLAIN_BYTES = 64 * 1024
"""Size of a frame to the coordinator, other than a request to the store."""
MAX_TO_COORDINATOR_BYTES = 132 * 1024
"""Room for two values of the store, a key, and the rest."""
MAX_TO_WORKER_BYTES = 4 * 1024 * 1024
"""Room for the whole list of MAX_WORKERS workers: 3.4 MB with the longest names."""
MAX_RUN = 253
MAX_WORKER_NAME = 320
"""A Kubernetes name has at most 253 characters; start, rank and token follow."""
MAX_WORKERS = 8192
MAX_PEERS = 64
MAX_SOUND = 65536
MAX_REASON = 1024
MAX_KEY_BYTES = 512
MAX_KEYS = 64
MAX_VALUE_BYTES = 64 * 1024
MAX_WAIT_SECONDS = 600.0
MAX_GATHERED_BYTES = MAX_TO_WORKER_BYTES - 64 * 1024
"""Bytes of the values in one answer. What gloo says of a member has 200 at most."""
MAX_REQUESTS = 64
"""Open requests to the store per session."""
MAX_NUMBER = 2**63 - 1


class ProtocolError(HeadwayError):
    """The other side violated the protocol. The connection ends."""


Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Signed = Annotated[int, Meta(ge=-MAX_NUMBER - 1, le=MAX_NUMBER)]
WorkerName = Annotated[str, Meta(min_length=1, max_length=MAX_WORKER_NAME)]
Reason = Annotated[str, Meta(max_length=MAX_REASON)]
Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)]
Keys = Annotated[tuple[Key, ...], Meta(min_length=1, max_length=MAX_KEYS)]
Value = Annotated[bytes, Meta(max_length=MAX_VALUE_BYTES)]
Wait = Annotated[float, Meta(ge=0.0, le=MAX_WAIT_SECONDS)]


class _Form(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array of the fields in order, without their names."""


# From a worker


class Heartbeat(_Form, frozen=True, tag=1):
    """The worker's whole status: first in a session, at each change, and once a second."""

    status: WorkerStatus


class Goodbye(_Form, frozen=True, tag=2):
    """The process ends now."""

    reason: Reason = ""


class StoreSet(_Form, frozen=True, tag=16):
    request: Number
    """Number chosen by the worker; the answer carries the same."""
    generation: Number
    """Generation that the key belongs to; each has keys of its own."""
    key: Key
    value: Value


class StoreGet(_Form, frozen=True, tag=17):
    request: Number
    generation: Number
    key: Key
    wait_seconds: Wait
    """How long to wait for the key to be set."""


class StoreAdd(_Form, frozen=True, tag=18):
    """Adds to an integer, kept as decimal text; a missing one is 0."""

    request: Number
    generation: Number
    key: Key
    amount: Signed


class StoreCompareSet(_Form, frozen=True, tag=19):
    request: Number
    generation: Number
    key: Key
    expected: Value
    """Value expected; empty: the key must be missing."""
    desired: Value


class StoreCheck(_Form, frozen=True, tag=20):
    """Asks whether all keys are set, now or within a time."""

    request: Number
    generation: Number
    keys: Keys
    wait_seconds: Wait


class StoreDelete(_Form, frozen=True, tag=21):
    request: Number
    generation: Number
    key: Key


class StoreGather(_Form, frozen=True, tag=22):
    """Asks for the values of all members of a group at once: of the keys that begin with `key` and
    end with 0 to `count` - 1."""

    request: Number
    generation: Number
    key: Key
    count: Annotated[int, Meta(ge=1, le=MAX_WORKERS)]
    wait_seconds: Wait
    """How long to wait for the last of them to be set."""


StoreRequest = (
    StoreSet | StoreGet | StoreAdd | StoreCompareSet | StoreCheck | StoreDelete | StoreGather
)
FromWorker = Heartbeat | Goodbye | StoreRequest


# From the coordinator


class Kept(_Form, frozen=True, tag=0):
    """A run of consecutive domains of the base that is unchanged."""

    first: Annotated[int, Meta(ge=0, le=MAX_WORKERS)]
    count: Annotated[int, Meta(ge=1, le=MAX_WORKERS)]
    holds: bool | None
    """Whether they hold the state now; None: each as before."""


class Came(_Form, frozen=True, tag=1):
    workers: Annotated[tuple[WorkerName, ...], Meta(min_length=1, max_length=MAX_WORKERS)]
    since: Number
    holds: bool


class GenerationChange(_Form, frozen=True, tag=65):
    """A generation as the difference to another one. Base 0: the whole of it."""

    base: Number
    base_incarnation: Number
    """Incarnation that wrote the base: two coordinators may have used the same number."""
    number: Number
    incarnation: Number
    pieces: Annotated[tuple[Kept | Came, ...], Meta(max_length=MAX_WORKERS)]
    """Parts of the new list, in its order. Domains of the base that are in none have left."""
    leader: Number
    paused: bool
    sound: Annotated[tuple[Number, ...], Meta(max_length=MAX_SOUND)]
    reason: Reason


class Welcome(_Form, frozen=True, tag=64):
    """The answer to a session's first Heartbeat."""

    incarnation: Number
    change: GenerationChange | None
    """Change to the current generation; None: the worker has seen it already."""
    went: bool
    """Whether all members have entered it."""


class Go(_Form, frozen=True, tag=66):
    """All members have entered this generation: form the group."""

    generation: Number


class Alive(_Form, frozen=True, tag=67):
    """Nothing new. Without it a worker could not tell a quiet coordinator from a dead session."""


class Farewell(_Form, frozen=True, tag=68):
    """The last message of a session that the coordinator closes."""

    reason: Reason


class StoreValue(_Form, frozen=True, tag=80):
    """Answers get with the value, compare-set with the value afterwards."""

    request: Number
    value: Value


class StoreNumber(_Form, frozen=True, tag=81):
    """Answers add with the sum, check and delete with 1 if all keys were set, else 0; set with
    1."""

    request: Number
    number: Signed


class StoreFailed(_Form, frozen=True, tag=82):
    request: Number
    why: Literal["late", "generation", "full", "wrong"]
    """The time is over; the generation is not open to the worker; no room, or too much for one
    answer; not a number."""
    reason: Reason = ""


class StoreValues(_Form, frozen=True, tag=83):
    """Answers gather. If its time is over, `missing` are some of those that are not set, and there
    are no values."""

    request: Number
    values: Annotated[tuple[Value, ...], Meta(max_length=MAX_WORKERS)]
    missing: Annotated[tuple[Number, ...], Meta(max_length=MAX_PEERS)] = ()


StoreAnswer = StoreValue | StoreNumber | StoreFailed | StoreValues
FromCoordinator = Welcome | GenerationChange | Go | Alive | Farewell | StoreAnswer
Message = FromWorker | FromCoordinator

_encoder = msgspec.msgpack.Encoder()
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_from_coordinator: msgspec.msgpack.Decoder[FromCoordinator] = msgspec.msgpack.Decoder(
    FromCoordinator
)
_status_numbers = attrgetter(
    *(field.name for field in msgspec.structs.fields(WorkerStatus) if field.type is int)
)

Decoded = TypeVar("Decoded")


def from_worker(payload: bytes) -> FromWorker:
    message = _decoded(_from_worker, payload)
    if isinstance(message, Heartbeat):
        _check_status(message.status)
    elif isinstance(message, StoreCheck):
        for key in message.keys:
            _check_key(key)
    elif not isinstance(message, Goodbye):
        _check_key(message.key)
    if len(payload) > MAX_PLAIN_BYTES and isinstance(message, Heartbeat | Goodbye):
        raise ProtocolError(f"message of {len(payload)} bytes; the limit is {MAX_PLAIN_BYTES}")
    return message


def from_coordinator(payload: bytes) -> FromCoordinator:
    return _decoded(_from_coordinator, payload)


def encode(message: Message) -> bytes:
    """Raises ProtocolError for what the other side would refuse. Reasons, and the list of peers
    complained of, are cut to their limits instead: a long text must not end a run."""
    try:
        payload = _encoder.encode(_trimmed(message))
    except (OverflowError, UnicodeEncodeError) as error:
        raise ProtocolError(f"cannot be sent: {ascii(str(error))[1:-1][:200]}") from None
    if isinstance(message, FromWorker):
        from_worker(payload)
    else:
        from_coordinator(payload)
    return payload


def _decoded(decoder: msgspec.msgpack.Decoder[Decoded], payload: bytes) -> Decoded:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The library's message may repeat what was sent: cut, and without control characters.
        said = ascii(str(error))[1:-1][:200]
        raise ProtocolError(f"invalid message: {said}") from None


def _check_status(status: WorkerStatus) -> None:
    numbers = _status_numbers(status)
    if min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        raise ProtocolError("status: a number is out of range")
    if status.peers:
        if len(status.peers) > MAX_PEERS:
            raise ProtocolError(f"status: {len(status.peers)} peers; the limit is {MAX_PEERS}")
        longest = max(map(len, status.peers))
        if longest > MAX_WORKER_NAME:
            raise ProtocolError(
                f"a status with a peer of {longest} characters, at most {MAX_WORKER_NAME}"
            )


def _check_key(key: str) -> None:
    if not key.isascii() and len(key.encode()) > MAX_KEY_BYTES:
        raise ProtocolError(f"key of {len(key.encode())} bytes; the limit is {MAX_KEY_BYTES}")


def _trimmed(message: Message) -> Message:
    match message:
        case Heartbeat(status) if len(status.peers) > MAX_PEERS:
            peers = status.peers[:MAX_PEERS]
            return Heartbeat(msgspec.structs.replace(status, peers=peers))
        case Welcome(change=GenerationChange() as change) if len(change.reason) > MAX_REASON:
            return msgspec.structs.replace(message, change=_trimmed(change))
        case Goodbye() | GenerationChange() | Farewell() | StoreFailed() if (
            len(message.reason) > MAX_REASON
        ):
            return msgspec.structs.replace(message, reason=message.reason[:MAX_REASON])
    return message


# Generations as differences


def difference(base: Generation | None, new: Generation) -> GenerationChange:
    """The change from which `apply` makes `new`: a few bytes for each place where a domain left,
    and each newcomer's name. Without a base, the whole list."""
    return GenerationChange(
        base=base.number if base else 0,
        base_incarnation=base.incarnation if base and base.number else 0,
        number=new.number,
        incarnation=new.incarnation,
        pieces=tuple(_pieces(base.domains if base and base.number else (), new.domains)),
        leader=new.leader,
        paused=new.paused,
        sound=new.sound,
        reason=new.reason,
    )


def apply(change: GenerationChange, base: Generation | None) -> Generation:
    """The generation that the change describes, if `base` is the one it was made from."""
    old: tuple[Domain, ...] = ()
    if change.base:
        if base is None or (base.number, base.incarnation) != (
            change.base,
            change.base_incarnation,
        ):
            raise ProtocolError(
                f"change based on generation {change.base} of coordinator "
                f"{change.base_incarnation}, which this worker does not have"
            )
        old = base.domains
    domains: list[Domain] = []
    num_workers = 0
    for piece in change.pieces:
        if isinstance(piece, Came):
            some = [Domain(piece.workers, piece.since, piece.holds)]
        else:
            if piece.first + piece.count > len(old):
                raise ProtocolError(f"change keeps more than the {len(old)} domains of its base")
            some = _kept(old[piece.first : piece.first + piece.count], piece.holds)
        # Counted part by part: a short message must not make a long list.
        num_workers += sum(len(domain.workers) for domain in some)
        if num_workers > MAX_WORKERS:
            raise ProtocolError(f"generation of more than {MAX_WORKERS} workers")
        domains += some
    if change.leader >= max(1, len(domains)):
        raise ProtocolError(f"leader {change.leader} is not one of {len(domains)} domains")
    return Generation(
        number=change.number,
        incarnation=change.incarnation,
        domains=tuple(domains),
        leader=change.leader,
        paused=change.paused,
        sound=change.sound,
        reason=change.reason,
    )


def _kept(domains: tuple[Domain, ...], holds: bool | None) -> list[Domain]:
    return [
        domain
        if holds is None or domain.holds is holds
        else Domain(domain.workers, domain.since, holds)
        for domain in domains
    ]


def _pieces(old: tuple[Domain, ...], new: tuple[Domain, ...]) -> Iterator[Kept | Came]:
    """Runs of `old`, as long as possible, and the domains that are not in it."""
    places = {(domain.workers, domain.since): index for index, domain in enumerate(old)}
    first = count = 0
    ways: set[bool | None] = set()
    """Values of `holds` that are right for the whole run."""
    for domain in new:
        index = places.get((domain.workers, domain.since))
        if index is not None:
            fitting = {domain.holds, None} if domain.holds is old[index].holds else {domain.holds}
            if count and index == first + count and ways & fitting:
                count, ways = count + 1, ways & fitting
                continue
        if count:
            yield Kept(first, count, _way(ways))
            count = 0
        if index is None:
            yield Came(domain.workers, domain.since, domain.holds)
        else:
            first, count, ways = index, 1, set(fitting)
    if count:
        yield Kept(first, count, _way(ways))


def _way(ways: set[bool | None]) -> bool | None:
    return None if None in ways else next(iter(ways))
