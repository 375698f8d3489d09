"""Hostile bytes for a coordinator, from a seed, and what may come of them.

`cases(count, seed)` mutates the corpus in tests/data/wire. A case is bytes to send, after an honest
handshake or without one. `attack` plays it against the coordinator's side of a connection, without
sockets; a server is tried in the same way: send `case.chunks`, and let `judge` compare.

    python tests/support/fuzz.py corpus      writes the corpus anew
    python tests/support/fuzz.py 100000 7    so many cases from seed 7
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.handshake import PROOF, PROOF_BYTES, CoordinatorSide, WorkerSide
from headway.member.protocol.messages import (
    MAX_HANDSHAKE_BYTES,
    MAX_KEY_BYTES,
    MAX_PEERS,
    MAX_TO_COORDINATOR_BYTES,
    MAX_VALUE_BYTES,
    Alive,
    Farewell,
    FromWorker,
    Go,
    Goodbye,
    Heartbeat,
    Message,
    StoreAdd,
    StoreCheck,
    StoreCompareSet,
    StoreDelete,
    StoreFailed,
    StoreGather,
    StoreGet,
    StoreNumber,
    StoreSet,
    StoreValue,
    Welcome,
    difference,
    encode,
)
from headway.member.protocol.status import WorkerStatus
from headway.member.protocol.wire import LENGTH_BYTES, TAG_BYTES, PackedMessage

CORPUS = Path(__file__).parents[1] / "data" / "wire"
KEY = hashlib.sha256(b"the key of a run that is only tested").digest()
RUN, WORKER, INCARNATION = "fuzzed", "pod-0", 3

Expected = Literal["refused", "nothing", "checked"]


@dataclass(frozen=True)
class Case:
    name: str
    opens: bool
    """An honest handshake of KEY, RUN and WORKER comes first."""
    make: Callable[[WorkerSide], list[bytes]] = field(repr=False)
    """The bytes that follow, for a connection that is open (`opens`), or for a fresh one."""
    expected: Expected
    """refused: the connection must end. nothing: it may also be left waiting for more. Either way
    `accepted` messages are taken, and not one more. checked: sent by one who has the key, so that
    it may be accepted, but only within all limits."""
    accepted: int = 0

    def chunks(self, worker: WorkerSide) -> list[bytes]:
        return self.make(worker)


@dataclass
class Outcome:
    accepted: list[FromWorker]
    refused: bool
    num_buffered_bytes: int = 0


def judge(case: Case, outcome: Outcome) -> None:
    if case.expected == "checked":
        for message in outcome.accepted:
            encode(message)
    else:
        assert len(outcome.accepted) == case.accepted, f"{case.name}: {outcome.accepted}"
    if case.expected == "refused":
        assert outcome.refused, f"{case.name}: was not refused"
    most = MAX_TO_COORDINATOR_BYTES + TAG_BYTES if case.opens else MAX_HANDSHAKE_BYTES
    assert outcome.num_buffered_bytes <= most + LENGTH_BYTES, case.name


def attack(case: Case) -> Outcome:
    """Plays the case, and then goes on as if nothing had happened: the dead must stay dead."""
    coordinator = CoordinatorSide(KEY, RUN, INCARNATION)
    worker = WorkerSide(KEY, RUN, WORKER)
    if case.opens:
        shake_hands(worker, coordinator)
    outcome = Outcome([], False)
    for chunk in case.chunks(worker):
        received = coordinator.receive(chunk)
        outcome.accepted += received.messages
        outcome.num_buffered_bytes = max(outcome.num_buffered_bytes, len(coordinator._buffer))
    if coordinator.error is not None:
        outcome.refused = True
        assert not coordinator.is_open
        assert not coordinator._buffer
        after = worker.send(Heartbeat(WorkerStatus())) if worker.is_open else worker.hello
        assert coordinator.receive(after).messages == []
        assert len(str(coordinator.error)) < 1000
    judge(case, outcome)
    return outcome


def shake_hands(worker: WorkerSide, coordinator: CoordinatorSide) -> None:
    hello = coordinator.receive(worker.hello)
    proof = worker.receive(hello.reply)
    coordinator.receive(proof.reply)
    assert worker.is_open
    assert coordinator.is_open


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    for index in range(count):
        yield case(seed, index)


def case(seed: int, index: int) -> Case:
    chance = random.Random(f"{seed}:{index}")
    kind = KINDS[index % len(KINDS)]
    made = kind(chance)
    name = f"seed {seed} case {index}: {kind.__name__.strip('_')}"
    return Case(name, made.opens, made.make, made.expected, made.accepted)


def stored(folder: str) -> list[bytes]:
    return list(_stored(folder).values())


@cache
def _stored(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((CORPUS / folder).iterdir())}


# Before anything is proven


def _outsider(chunks: Sequence[bytes], expected: Expected = "nothing") -> Case:
    return Case("", False, lambda _: list(chunks), expected)


def _noise(chance: random.Random) -> Case:
    return _outsider(_cut(chance, chance.randbytes(chance.randint(1, 3000))))


def _stranger(chance: random.Random) -> Case:
    return _outsider(_cut(chance, chance.choice(stored("strangers"))))


def _changed_stranger(chance: random.Random) -> Case:
    return _outsider(_cut(chance, changed(chance, chance.choice(stored("strangers")))))


def _replayed_session(chance: random.Random) -> Case:
    return _outsider(_cut(chance, chance.choice(stored("sessions"))), "refused")


def _changed_session(chance: random.Random) -> Case:
    return _outsider(_cut(chance, changed(chance, chance.choice(stored("sessions")))))


def _reflected_answer(chance: random.Random) -> Case:
    coordinator = CoordinatorSide(KEY, RUN, INCARNATION)
    answer = coordinator.receive(_hello(chance)).reply
    return _outsider([answer], "refused")


def _reflected_proof(chance: random.Random) -> Case:
    """The coordinator's own proof, if another one of its answers is given back to it."""
    coordinator = CoordinatorSide(KEY, RUN, INCARNATION)
    proof = coordinator.receive(_hello(chance)).reply[-PROOF_BYTES:]
    return _outsider([_hello(chance), _frame(bytes([PROOF]) + proof)], "refused")


def _guessed_proof(chance: random.Random) -> Case:
    guess = chance.choice([bytes(PROOF_BYTES), chance.randbytes(PROOF_BYTES), b"", b"\xff" * 900])
    return _outsider([_hello(chance), _frame(bytes([PROOF]) + guess)], "refused")


def _frame_before_proof(chance: random.Random) -> Case:
    frame = _frame(chance.choice(stored("messages"))) + chance.randbytes(TAG_BYTES)
    return _outsider(_cut(chance, _hello(chance) + frame), "refused")


def _stalled(chance: random.Random) -> Case:
    hello = _hello(chance)
    return _outsider([hello[: chance.randrange(len(hello))]])


def _long_before_proof(chance: random.Random) -> Case:
    most = chance.choice([MAX_TO_COORDINATOR_BYTES, 2**32 - 1])
    length = chance.randint(MAX_HANDSHAKE_BYTES + 1, most)
    before = chance.choice([b"", _hello(chance)])
    return _outsider(
        [before + length.to_bytes(4, "big") + bytes(chance.randint(0, 500))], "refused"
    )


# In an open connection, on the way


def _tampering(
    change: Callable[[random.Random, list[bytes]], bytes],
    chance: random.Random,
    expected: Expected = "refused",
) -> Case:
    """Some honest frames, and then `change` made of those that follow."""
    num_honest, script_seed = chance.randint(0, 3), chance.random()

    def make(worker: WorkerSide) -> list[bytes]:
        again = random.Random(script_seed)
        payloads = [again.choice(_valid()) for _ in range(num_honest + 3)]
        frames = [worker.seal(packed(payload)) for payload in payloads]
        bad = change(again, frames[num_honest:])
        return _cut(again, b"".join(frames[:num_honest]) + bad)

    return Case("", True, make, expected, num_honest)


def _flipped_bit(chance: random.Random) -> Case:
    def change(chance: random.Random, frames: list[bytes]) -> bytes:
        return flipped(frames[0], chance.randrange(8 * LENGTH_BYTES, 8 * len(frames[0])))

    return _tampering(change, chance)


def _flipped_length(chance: random.Random) -> Case:
    def change(chance: random.Random, frames: list[bytes]) -> bytes:
        return flipped(frames[0], chance.randrange(8 * LENGTH_BYTES)) + b"".join(frames[1:])

    return _tampering(change, chance, "nothing")


def _dropped(chance: random.Random) -> Case:
    return _tampering(lambda _, frames: frames[1], chance)


def _doubled(chance: random.Random) -> Case:
    def make(worker: WorkerSide) -> list[bytes]:
        frame = worker.seal(packed(_valid()[0]))
        return [frame, frame]

    return Case("", True, make, "refused", 1)


def _swapped(chance: random.Random) -> Case:
    return _tampering(lambda _, frames: frames[1] + frames[0], chance)


def _cut_off(chance: random.Random) -> Case:
    return _tampering(
        lambda chance, frames: frames[0][: chance.randrange(len(frames[0]))], chance, "nothing"
    )


def _foreign(chance: random.Random) -> Case:
    """Frames of another open connection of the same worker and key, from the same place in it."""
    other = WorkerSide(KEY, RUN, WORKER)
    shake_hands(other, CoordinatorSide(KEY, RUN, INCARNATION))
    frames = [other.seal(packed(payload)) for payload in chance.choices(_valid(), k=6)]
    return _tampering(lambda chance, ours: frames[chance.randrange(6)] + ours[0], chance)


def _noise_inside(chance: random.Random) -> Case:
    noise = chance.randbytes(chance.randint(1, 500))
    return _tampering(lambda _, frames: noise + frames[0], chance, "nothing")


def _long_inside(chance: random.Random) -> Case:
    length = chance.choice([0, chance.randint(MAX_TO_COORDINATOR_BYTES + 1, 2**32 - 1)])
    return _tampering(lambda _, frames: length.to_bytes(4, "big") + frames[0], chance)


def _waiting_inside(chance: random.Random) -> Case:
    length = chance.randint(2000, MAX_TO_COORDINATOR_BYTES)
    rest = bytes(chance.randint(0, 1000))
    return _tampering(lambda _, frames: length.to_bytes(4, "big") + rest, chance, "nothing")


# From one who has the key


def _insider(payload: bytes, expected: Expected) -> Case:
    return Case("", True, lambda worker: [worker.seal(packed(payload))], expected)


def _bomb(chance: random.Random) -> Case:
    return _insider(chance.choice(stored("bombs")), "refused")


def _changed_bomb(chance: random.Random) -> Case:
    return _insider(changed(chance, chance.choice(stored("bombs"))), "checked")


def _changed_message(chance: random.Random) -> Case:
    return _insider(changed(chance, chance.choice(stored("messages"))), "checked")


def _too_large(chance: random.Random) -> Case:
    heartbeat = {"seen": 1, "peers": ["p"] * (MAX_PEERS + 1)}
    large: list[object] = [
        [1, heartbeat],
        [1, {"peers": ["p" * 5000]}],
        [1, {"seen": -1}],
        [1, {"healed": 2**63}],
        [1, {"waits": -1}],
        [1, {"padding": "p" * 70_000}],
        [2, "r" * 5000],
        [16, 1, 1, "k" * (MAX_KEY_BYTES + 1), b""],
        [16, 1, 1, "é" * (MAX_KEY_BYTES // 2 + 1), b""],
        [16, 1, 1, "", b""],
        [16, 1, 1, "k", bytes(MAX_VALUE_BYTES + 1)],
        [17, 1, 1, "k", float(chance.choice(["nan", "inf", "-1", "601"]))],
        [18, 1, 1, "k", 2**63],
        [20, 1, 1, ["k"] * 65, 0.0],
        [20, 1, 1, [], 0.0],
        [21, -1, 1, "k"],
    ]
    return _insider(msgspec.msgpack.encode(chance.choice(large)), "refused")


KINDS: list[Callable[[random.Random], Case]] = [
    _noise,
    _stranger,
    _changed_stranger,
    _replayed_session,
    _changed_session,
    _reflected_answer,
    _reflected_proof,
    _guessed_proof,
    _frame_before_proof,
    _stalled,
    _long_before_proof,
    _flipped_bit,
    _flipped_length,
    _dropped,
    _doubled,
    _swapped,
    _cut_off,
    _foreign,
    _noise_inside,
    _long_inside,
    _waiting_inside,
    _bomb,
    _changed_bomb,
    _changed_message,
    _too_large,
]


# Ways to change bytes


def packed(payload: bytes) -> PackedMessage:
    """Like `pack`, but takes anything."""
    return PackedMessage(payload, hashlib.blake2b(payload, digest_size=32).digest())


def flipped(data: bytes, bit: int) -> bytes:
    number = int.from_bytes(data, "little") ^ (1 << bit)
    return number.to_bytes(len(data), "little")


def changed(chance: random.Random, data: bytes) -> bytes:
    """A few changes at random places; never the bytes as they were."""
    made = bytearray(data)
    while bytes(made) == data or chance.random() < 0.4:
        at = chance.randrange(len(made) + 1)
        match chance.randrange(7):
            case 0 if made:
                made = bytearray(flipped(bytes(made), chance.randrange(8 * len(made))))
            case 1:
                del made[at:]
            case 2:
                del made[at : at + chance.randint(1, 8)]
            case 3:
                made[at:at] = chance.randbytes(chance.randint(1, 8))
            case 4:
                made[at:at] = made[chance.randrange(len(made) + 1) :][: chance.randint(1, 64)]
            case 5:
                # Lengths and types of MessagePack are where its decoders go wrong.
                made[at : at + 1] = bytes([chance.randint(0x80, 0xDF)])
            case 6:
                made[at : at + 4] = chance.choice([0, 1, 2**16, 2**31, 2**32 - 1]).to_bytes(
                    4, "big"
                )
    return bytes(made)


def _cut(chance: random.Random, data: bytes) -> list[bytes]:
    if chance.random() < 0.5 or len(data) < 2:
        return [data]
    cuts = sorted(chance.randrange(len(data)) for _ in range(chance.randint(1, 5)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _hello(chance: random.Random) -> bytes:
    return WorkerSide(KEY, RUN, WORKER, nonce=chance.randbytes(32)).hello


def _frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@cache
def _valid() -> list[bytes]:
    return [encode(message) for message in MESSAGES.values()]


# The corpus

MESSAGES: dict[str, FromWorker] = {
    "beat-first": Heartbeat(WorkerStatus()),
    "beat": Heartbeat(WorkerStatus(9, 9, 9, 9, 0, (), 0, True, False)),
    "beat-trouble": Heartbeat(WorkerStatus(9, 9, 9, 8, 9, ("pod-1", "pod-2"), 9, True, True)),
    "beat-waits": Heartbeat(WorkerStatus(9, 9, 9, 9, 0, (), 9, True, False)),
    "goodbye": Goodbye("ends as planned"),
    "set": StoreSet(1, 9, "ranks/0", bytes(range(64))),
    "get": StoreGet(2, 9, "ranks/1", 2.0),
    "add": StoreAdd(3, 9, "arrived", -1),
    "compare-set": StoreCompareSet(4, 9, "leader", b"", b"pod-0"),
    "check": StoreCheck(5, 9, ("ranks/0", "ranks/1"), 0.5),
    "gather": StoreGather(7, 9, "ranks/", 2, 0.5),
    "delete": StoreDelete(2**63 - 1, 9, "ranks/0"),
}
_BEFORE = Generation(
    8,
    2,
    tuple(Domain((f"pod-{i}",), 1 + i % 3, i != 3) for i in range(6)),
    0,
    False,
    (7,),
    "before",
)
_AFTER = Generation(
    9,
    3,
    (*_BEFORE.domains[:2], *_BEFORE.domains[4:], Domain(("pod-7", "pod-8"), 9, False)),
    0,
    False,
    (),
    "pod-2 is lost: silent",
)
ANSWERS: dict[str, Message] = {
    "welcome": Welcome(3, difference(None, _BEFORE), True),
    "welcome-known": Welcome(3, None, False),
    "change": difference(_BEFORE, _AFTER),
    "go": Go(9),
    "alive": Alive(),
    "farewell": Farewell("replaced by a newer session of the same worker"),
    "value": StoreValue(2, b"value"),
    "number": StoreNumber(3, -7),
    "failed": StoreFailed(4, "late", "nobody has set it"),
}
BASE, NEXT = _BEFORE, _AFTER


def corpus() -> dict[str, bytes]:
    """Every file of the corpus that is generated. Finds of the fuzzer may lie beside them."""
    files = {f"messages/{name}": encode(message) for name, message in MESSAGES.items()}
    files |= {f"answers/{name}": encode(message) for name, message in ANSWERS.items()}
    files |= {f"bombs/{name}": payload for name, payload in _bombs().items()}
    files |= {f"strangers/{name}": data for name, data in _strangers().items()}
    files |= {f"sessions/{name}": data for name, data in _sessions().items()}
    return files


def _bombs() -> dict[str, bytes]:
    """Short, refused, and dear to a decoder that believes what it is told."""
    heartbeat, peers = b"\x92\x01", b"\x92\x01\x81\xa5peers"
    return {
        "empty-array": b"\x90",
        "nil": b"\xc0",
        "no-array": msgspec.msgpack.encode({"kind": 1}),
        "unknown-kind": b"\x91\x7f",
        "answer-to-coordinator": encode(Go(9)),
        "deep-arrays": heartbeat + b"\x81\xa1x" + b"\x91" * 3000 + b"\xc0",
        "deep-maps": heartbeat + b"\x81\xa1x" + b"\x81\xa1x" * 1500 + b"\xc0",
        "huge-array": peers + b"\xdd\xff\xff\xff\xff",
        "huge-array-16": peers + b"\xdc\xff\xff",
        "huge-map": heartbeat + b"\xdf\xff\xff\xff\xff",
        "huge-text": peers + b"\x91\xdb\xff\xff\xff\xff",
        "huge-value": b"\x95\x10\x01\x01\xa1k\xc6\xff\xff\xff\xff",
        "huge-outer": b"\xdd\xff\xff\xff\xff\x01",
        "extension": heartbeat + b"\xc9\xff\xff\xff\xff\x01",
        "time": b"\x92\x02\xd6\xff\x00\x00\x00\x00",
        "bad-text": b"\x92\x02\xa2\xc3\x28",
        "surrogate": b"\x92\x02\xa3\xed\xa0\x80",
        "trailing": encode(Goodbye()) + b"\xc0",
        "too-many-fields": msgspec.msgpack.encode([2, "reason", "more"]),
        "peers-without-end": msgspec.msgpack.encode([1, {"peers": [""] * 400}]),
        "wrong-types": msgspec.msgpack.encode([1, {"seen": True, "ready": 1}]),
        "big-number": b"\x92\x01\x81\xa4seen\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    }


def _strangers() -> dict[str, bytes]:
    hello = WorkerSide(KEY, RUN, WORKER, nonce=bytes(32)).hello
    return {
        "http": b"GET / HTTP/1.1\r\nHost: coordinator\r\n\r\n",
        "tls": bytes.fromhex("16030100c8010000c40303") + bytes(32) + b"\x20" + bytes(32),
        "ssh": b"SSH-2.0-OpenSSH_9.9\r\n",
        "zeros": bytes(64),
        "ones": b"\xff" * 64,
        "length-only": b"\x00\x00\x04\x00",
        "empty-frame": b"\x00\x00\x00\x00",
        "hello": hello,
        "hello-twice": hello * 2,
        "hello-without-magic": hello.replace(b"HEADWAY", b"headway"),
        "hello-of-another-run": WorkerSide(KEY, "other", WORKER, nonce=bytes(32)).hello,
        "hello-of-version-0": WorkerSide(KEY, RUN, WORKER, versions=(0, 0), nonce=bytes(32)).hello,
        "hello-of-version-9": WorkerSide(KEY, RUN, WORKER, versions=(7, 9), nonce=bytes(32)).hello,
        "hello-with-more": _frame(hello[4:] + b"more"),
        "hello-cut-off": _frame(hello[4:30]),
        "hello-without-names": _frame(hello[4:49] + bytes(4)),
        "hello-with-control-characters": hello.replace(b"pod-0", b"p\r\n\x1b0"),
    }


def _sessions() -> dict[str, bytes]:
    """All that a worker sent in sessions that were accepted when they were new."""
    recorded = {}
    for index, name in enumerate(["short", "all-messages"]):
        coordinator = CoordinatorSide(KEY, RUN, INCARNATION, nonce=bytes([index]) * 32)
        worker = WorkerSide(KEY, RUN, WORKER, nonce=bytes([100 + index]) * 32)
        proof = worker.receive(coordinator.receive(worker.hello).reply).reply
        said = list(MESSAGES.values())[: 2 if name == "short" else None]
        frames = b"".join(worker.send(message) for message in said)
        assert coordinator.receive(proof + frames).messages == said
        recorded[name] = worker.hello + proof + frames
    return recorded


def main(arguments: Sequence[str]) -> None:
    if arguments == ["corpus"]:
        for name, data in corpus().items():
            (CORPUS / name).parent.mkdir(parents=True, exist_ok=True)
            (CORPUS / name).write_bytes(data)
        return
    count, seed = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
    began = time.monotonic()
    refused = sum(attack(each).refused for each in cases(count, seed))
    seconds = time.monotonic() - began
    print(f"{count} cases from seed {seed} in {seconds:.1f} s: {refused} refused, none got through")


if __name__ == "__main__":
    main(sys.argv[1:])
