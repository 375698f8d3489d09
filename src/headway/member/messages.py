"""What a worker and the coordinator say to each other, and how large each part may be.

Every message is a MessagePack array whose first element is its kind. What does not fit its type or
its limits is a ProtocolError, whoever sent it; nothing leaves that the other side would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from headway.errors import HeadwayError
from headway.member.events import Status
from headway.member.generation import Domain, Generation

# Every limit of the protocol. Texts and names count in characters, all else in bytes.
MAX_HANDSHAKE_BYTES = 1024
"""A frame of somebody who has proven nothing yet."""
MAX_PLAIN_BYTES = 64 * 1024
"""A frame to the coordinator that is no request to the store."""
MAX_TO_COORDINATOR_BYTES = 132 * 1024
"""Two values of the store, a key, and the rest."""
MAX_TO_WORKER_BYTES = 4 * 1024 * 1024
"""The whole list of MAX_PODS pods, whatever their names: 3.4 MB at most."""
MAX_RUN = 253
MAX_POD = 320
"""A Kubernetes name has at most 253 characters, a UID 36."""
MAX_PODS = 8192
MAX_PEERS = 64
MAX_SOUND = 65536
MAX_REASON = 1024
MAX_KEY_BYTES = 512
MAX_KEYS = 64
MAX_VALUE_BYTES = 64 * 1024
MAX_WAIT_SECONDS = 600.0
MAX_REQUESTS = 64
"""Requests to the store that a session may have open at a time."""
MAX_NUMBER = 2**63 - 1


class ProtocolError(HeadwayError):
    """The other side said something that it may not say. The connection cannot go on."""


Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Signed = Annotated[int, Meta(ge=-MAX_NUMBER - 1, le=MAX_NUMBER)]
Pod = Annotated[str, Meta(min_length=1, max_length=MAX_POD)]
Reason = Annotated[str, Meta(max_length=MAX_REASON)]
Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)]
Keys = Annotated[tuple[Key, ...], Meta(min_length=1, max_length=MAX_KEYS)]
Value = Annotated[bytes, Meta(max_length=MAX_VALUE_BYTES)]
Wait = Annotated[float, Meta(ge=0.0, le=MAX_WAIT_SECONDS)]


class _Form(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Fields in order, without their names."""


# From a worker


class Beat(_Form, frozen=True, tag=1):
    """All that a pod has to say: first in a session, at each change, and once a second."""

    status: Status


class Goodbye(_Form, frozen=True, tag=2):
    """The process ends now."""

    reason: Reason = ""


class StoreSet(_Form, frozen=True, tag=16):
    request: Number
    """Chosen by the worker; its answer carries the same."""
    generation: Number
    """Keys of different generations have nothing to do with each other."""
    key: Key
    value: Value


class StoreGet(_Form, frozen=True, tag=17):
    request: Number
    generation: Number
    key: Key
    wait_seconds: Wait
    """How long to wait for the key to be there."""


class StoreAdd(_Form, frozen=True, tag=18):
    """To a whole number, kept as decimal text; a missing one is 0."""

    request: Number
    generation: Number
    key: Key
    amount: Signed


class StoreCompareSet(_Form, frozen=True, tag=19):
    request: Number
    generation: Number
    key: Key
    expected: Value
    """Empty: the key must be missing."""
    desired: Value


class StoreCheck(_Form, frozen=True, tag=20):
    """Whether all keys are there, at once or within a time."""

    request: Number
    generation: Number
    keys: Keys
    wait_seconds: Wait


class StoreDelete(_Form, frozen=True, tag=21):
    request: Number
    generation: Number
    key: Key


StoreRequest = StoreSet | StoreGet | StoreAdd | StoreCompareSet | StoreCheck | StoreDelete
FromWorker = Beat | Goodbye | StoreRequest


# From the coordinator


class Kept(_Form, frozen=True, tag=0):
    """Domains that follow one another in the base, and do so still."""

    first: Annotated[int, Meta(ge=0, le=MAX_PODS)]
    count: Annotated[int, Meta(ge=1, le=MAX_PODS)]
    holds: bool | None
    """What is true of them now; None: what was true of each."""


class Came(_Form, frozen=True, tag=1):
    pods: Annotated[tuple[Pod, ...], Meta(min_length=1, max_length=MAX_PODS)]
    since: Number
    holds: bool


class Change(_Form, frozen=True, tag=65):
    """A generation, told by what is different from another one. Base 0: by nothing but itself."""

    base: Number
    base_incarnation: Number
    """A number alone would not tell apart what two coordinators made of it."""
    number: Number
    incarnation: Number
    pieces: Annotated[tuple[Kept | Came, ...], Meta(max_length=MAX_PODS)]
    """Of the new list, in its order. Whoever is in none is out."""
    leader: Number
    paused: bool
    sound: Annotated[tuple[Number, ...], Meta(max_length=MAX_SOUND)]
    reason: Reason


class Welcome(_Form, frozen=True, tag=64):
    """The answer to a session's first Beat, and what is said again to one who missed it."""

    incarnation: Number
    change: Change | None
    """To the current generation; None: the worker's Beat says that it has seen it."""
    went: bool
    """All members have entered it."""


class Go(_Form, frozen=True, tag=66):
    """All have entered this generation: form the group."""

    generation: Number


class Alive(_Form, frozen=True, tag=67):
    """Nothing new. A worker that hears nothing at all would not know that its session is dead."""


class Farewell(_Form, frozen=True, tag=68):
    """The last message of a session that the coordinator closes."""

    reason: Reason


class StoreValue(_Form, frozen=True, tag=80):
    """To get: the value. To compare-set: what is there afterwards."""

    request: Number
    value: Value


class StoreNumber(_Form, frozen=True, tag=81):
    """To add: the sum. To check and delete: 1 if all were there, else 0. To set: 1."""

    request: Number
    number: Signed


class StoreFailed(_Form, frozen=True, tag=82):
    request: Number
    why: Literal["late", "generation", "full", "wrong"]
    """The wait is over; the generation is not (or no longer) served; no room; not a number."""
    reason: Reason = ""


StoreAnswer = StoreValue | StoreNumber | StoreFailed
FromCoordinator = Welcome | Change | Go | Alive | Farewell | StoreAnswer
Message = FromWorker | FromCoordinator

_encoder = msgspec.msgpack.Encoder()
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_from_coordinator: msgspec.msgpack.Decoder[FromCoordinator] = msgspec.msgpack.Decoder(
    FromCoordinator
)
_status_numbers = attrgetter(
    *(field.name for field in msgspec.structs.fields(Status) if field.type is int)
)

Decoded = TypeVar("Decoded")


def from_worker(payload: bytes) -> FromWorker:
    message = _decoded(_from_worker, payload)
    if isinstance(message, Beat):
        _check_status(message.status)
    elif isinstance(message, StoreCheck):
        for key in message.keys:
            _check_key(key)
    elif not isinstance(message, Goodbye):
        _check_key(message.key)
    if len(payload) > MAX_PLAIN_BYTES and isinstance(message, Beat | Goodbye):
        raise ProtocolError(f"a message of {len(payload)} bytes that is no request to the store")
    return message


def from_coordinator(payload: bytes) -> FromCoordinator:
    return _decoded(_from_coordinator, payload)


def encode(message: Message) -> bytes:
    """Raises ProtocolError for what the other side would refuse. What is only for people, and the
    list of peers complained of, is cut to its limit instead: no run should end by a long text."""
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
        # The library's words may repeat what was sent: short, and without control characters.
        said = ascii(str(error))[1:-1][:200]
        raise ProtocolError(f"not a message of this protocol: {said}") from None


def _check_status(status: Status) -> None:
    numbers = _status_numbers(status)
    if min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        raise ProtocolError("a status with a number out of range")
    if status.peers:
        if len(status.peers) > MAX_PEERS:
            raise ProtocolError(f"a status with {len(status.peers)} peers, at most {MAX_PEERS}")
        longest = max(map(len, status.peers))
        if longest > MAX_POD:
            raise ProtocolError(f"a status with a peer of {longest} characters, at most {MAX_POD}")


def _check_key(key: str) -> None:
    if not key.isascii() and len(key.encode()) > MAX_KEY_BYTES:
        raise ProtocolError(f"a key of {len(key.encode())} bytes, at most {MAX_KEY_BYTES}")


def _trimmed(message: Message) -> Message:
    match message:
        case Beat(status) if len(status.peers) > MAX_PEERS:
            peers = status.peers[:MAX_PEERS]
            return Beat(msgspec.structs.replace(status, peers=peers))
        case Welcome(change=Change() as change) if len(change.reason) > MAX_REASON:
            return msgspec.structs.replace(message, change=_trimmed(change))
        case Goodbye() | Change() | Farewell() | StoreFailed() if len(message.reason) > MAX_REASON:
            return msgspec.structs.replace(message, reason=message.reason[:MAX_REASON])
    return message


# Generations as differences


def difference(base: Generation | None, new: Generation) -> Change:
    """What `apply` makes `new` of. A few bytes for each place where something left, and each
    newcomer's name; without a base the whole list."""
    return Change(
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


def apply(change: Change, base: Generation | None) -> Generation:
    """The generation that the change tells of, if `base` is the one it was made from."""
    old: tuple[Domain, ...] = ()
    if change.base:
        if base is None or (base.number, base.incarnation) != (
            change.base,
            change.base_incarnation,
        ):
            raise ProtocolError(
                f"a change of generation {change.base} of coordinator {change.base_incarnation}, "
                "which is not the one at hand"
            )
        old = base.domains
    domains: list[Domain] = []
    num_pods = 0
    for piece in change.pieces:
        if isinstance(piece, Came):
            some = [Domain(piece.pods, piece.since, piece.holds)]
        else:
            if piece.first + piece.count > len(old):
                raise ProtocolError(f"a change that keeps more than the {len(old)} domains before")
            some = _kept(old[piece.first : piece.first + piece.count], piece.holds)
        # Counted piece by piece: a short message must not make a long list.
        num_pods += sum(len(domain.pods) for domain in some)
        if num_pods > MAX_PODS:
            raise ProtocolError(f"a generation of more than {MAX_PODS} pods")
        domains += some
    if change.leader >= max(1, len(domains)):
        raise ProtocolError(f"leader {change.leader} of {len(domains)} domains")
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
        else Domain(domain.pods, domain.since, holds)
        for domain in domains
    ]


def _pieces(old: tuple[Domain, ...], new: tuple[Domain, ...]) -> Iterator[Kept | Came]:
    """Runs of `old` as long as they go on, and whatever is not in it."""
    places = {(domain.pods, domain.since): index for index, domain in enumerate(old)}
    first = count = 0
    ways: set[bool | None] = set()
    """What `holds` of the run could be, so that it is right for all of it."""
    for domain in new:
        index = places.get((domain.pods, domain.since))
        if index is not None:
            fitting = {domain.holds, None} if domain.holds is old[index].holds else {domain.holds}
            if count and index == first + count and ways & fitting:
                count, ways = count + 1, ways & fitting
                continue
        if count:
            yield Kept(first, count, _way(ways))
            count = 0
        if index is None:
            yield Came(domain.pods, domain.since, domain.holds)
        else:
            first, count, ways = index, 1, set(fitting)
    if count:
        yield Kept(first, count, _way(ways))


def _way(ways: set[bool | None]) -> bool | None:
    return None if None in ways else next(iter(ways))
