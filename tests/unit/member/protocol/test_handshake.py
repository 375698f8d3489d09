"""Nobody is heard without the run's key."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import BadInput
from headway.member.protocol.handshake import (
    HIGHEST_VERSION,
    LOWEST_VERSION,
    OTHER_RUN,
    OTHER_VERSION,
    WRONG_PROOF,
    CoordinatorSide,
    HandshakeRefused,
    WorkerSide,
)
from headway.member.protocol.messages import (
    MAX_HANDSHAKE_BYTES,
    MAX_WORKER_NAME,
    Go,
    Heartbeat,
    ProtocolError,
)
from headway.member.protocol.status import WorkerStatus
from support.fuzz import CORPUS, KEY, RUN, WORKER, flipped, shake_hands
from support.session_sides import ANSWERED, SAID, assert_dead, opened, refused

OTHER_KEY = bytes(reversed(KEY))


def test_both_know_each_other_after_the_handshake() -> None:
    worker, coordinator = opened()
    assert coordinator.worker == WORKER
    assert worker.incarnation == 3
    assert worker.version == coordinator.version == HIGHEST_VERSION
    assert coordinator.receive(b"".join(map(worker.send, SAID))).messages == SAID
    assert worker.receive(b"".join(map(coordinator.send, ANSWERED))).messages == ANSWERED


def test_the_first_message_may_come_with_the_proof() -> None:
    worker, coordinator = WorkerSide(KEY, RUN, WORKER), CoordinatorSide(KEY, RUN, 3)
    proof = worker.receive(coordinator.receive(worker.hello).reply).reply
    assert coordinator.receive(proof + worker.send(SAID[0])).messages == SAID[:1]


def test_nothing_is_open_or_sealed_before_the_proof() -> None:
    worker, coordinator = WorkerSide(KEY, RUN, WORKER), CoordinatorSide(KEY, RUN, 3)
    for side in (worker, coordinator):
        assert not side.is_open
        with pytest.raises(ProtocolError, match="not complete"):
            side.send(Go(1))
    coordinator.receive(worker.hello)
    assert not coordinator.is_open


def test_a_coordinator_without_the_key_is_refused_by_the_worker() -> None:
    worker = WorkerSide(KEY, RUN, WORKER)
    answer = CoordinatorSide(OTHER_KEY, RUN, 3).receive(worker.hello).reply
    error = refused(worker, answer)
    assert isinstance(error, HandshakeRefused)
    assert error.code == WRONG_PROOF
    assert "same key file" in str(error)
    assert_dead(worker, answer)


@pytest.mark.trap(28)
def test_a_worker_without_the_key_is_refused_by_the_coordinator() -> None:
    """Even one that does not mind what the coordinator proves."""
    coordinator = CoordinatorSide(KEY, RUN, 3)
    worker, accomplice = WorkerSide(OTHER_KEY, RUN, WORKER), CoordinatorSide(OTHER_KEY, RUN, 3)
    coordinator.receive(worker.hello)
    proof = worker.receive(accomplice.receive(worker.hello).reply).reply
    received = coordinator.receive(proof + worker.send(SAID[0]))
    assert received.messages == []
    assert isinstance(received.error, HandshakeRefused)
    assert_dead(coordinator, proof, worker.send(SAID[0]))
    told = refused(WorkerSide(OTHER_KEY, RUN, WORKER), received.reply)
    assert isinstance(told, HandshakeRefused)
    assert told.code == WRONG_PROOF


@given(bit=st.integers(min_value=0), at_worker=st.booleans())
def test_a_handshake_with_any_bit_changed_opens_nothing(bit: int, at_worker: bool) -> None:
    worker, coordinator = WorkerSide(KEY, RUN, WORKER), CoordinatorSide(KEY, RUN, 3)
    hello = worker.hello if at_worker else flipped(worker.hello, bit % (8 * len(worker.hello)))
    answer = coordinator.receive(hello).reply
    if at_worker:
        answer = flipped(answer, bit % (8 * len(answer)))
    received = worker.receive(answer)
    assert not worker.is_open
    coordinator.receive(received.reply)
    assert not coordinator.is_open


@given(bit=st.integers(0, 8 * 37 - 1))
def test_a_changed_proof_opens_nothing(bit: int) -> None:
    worker, coordinator = WorkerSide(KEY, RUN, WORKER), CoordinatorSide(KEY, RUN, 3)
    proof = worker.receive(coordinator.receive(worker.hello).reply).reply
    coordinator.receive(flipped(proof, bit))
    assert not coordinator.is_open


def test_a_recorded_session_is_refused_by_a_fresh_connection() -> None:
    worker, coordinator = WorkerSide(KEY, RUN, WORKER), CoordinatorSide(KEY, RUN, 3)
    answer = coordinator.receive(worker.hello).reply
    proof = worker.receive(answer).reply
    frames = b"".join(map(worker.send, SAID))
    assert coordinator.receive(proof + frames).messages == SAID
    again = CoordinatorSide(KEY, RUN, 3)
    error = refused(again, worker.hello + proof + frames)
    assert isinstance(error, HandshakeRefused)
    assert_dead(again, proof, frames)
    # And what the coordinator said is of no use to one who plays the coordinator.
    newer = WorkerSide(KEY, RUN, WORKER)
    refused(newer, answer)


def test_nothing_works_when_it_is_reflected() -> None:
    worker = WorkerSide(KEY, RUN, WORKER)
    refused(worker, worker.hello)

    coordinator = CoordinatorSide(KEY, RUN, 3)
    answer = coordinator.receive(WorkerSide(KEY, RUN, WORKER).hello).reply
    refused(coordinator, answer)

    coordinator = CoordinatorSide(KEY, RUN, 3)
    own_proof = coordinator.receive(WorkerSide(KEY, RUN, WORKER).hello).reply[-32:]
    refused(coordinator, b"\x00\x00\x00\x21\x03" + own_proof)

    # By the tag already: a message that makes sense both ways would be refused, too.
    worker, coordinator = opened()
    assert "belongs to another connection" in str(refused(coordinator, coordinator.send(Go(1))))
    assert "belongs to another connection" in str(refused(worker, worker.send(SAID[0])))


@pytest.mark.trap(1)
def test_another_run_is_refused_and_told_so() -> None:
    coordinator, worker = CoordinatorSide(KEY, RUN, 3), WorkerSide(KEY, "other", WORKER)
    received = coordinator.receive(worker.hello)
    assert isinstance(received.error, HandshakeRefused)
    told = refused(worker, received.reply)
    assert isinstance(told, HandshakeRefused)
    assert told.code == OTHER_RUN
    assert RUN.encode() not in received.reply


@pytest.mark.parametrize(
    ("of_worker", "of_coordinator", "says"),
    [
        ((1, 1), (2, 3), "the coordinator is newer: it speaks versions 2 to 3 of the session"),
        ((4, 5), (2, 3), "the coordinator is older: it speaks versions 2 to 3 of the session"),
    ],
)
def test_versions_without_overlap_say_who_is_older(
    of_worker: tuple[int, int], of_coordinator: tuple[int, int], says: str
) -> None:
    worker = WorkerSide(KEY, RUN, WORKER, versions=of_worker)
    coordinator = CoordinatorSide(KEY, RUN, 3, versions=of_coordinator)
    received = coordinator.receive(worker.hello)
    assert isinstance(received.error, HandshakeRefused)
    assert received.error.code == OTHER_VERSION
    told = refused(worker, received.reply)
    assert says in str(told)
    assert "hint: run the workers and the coordinator with the same version" in str(told)


def test_the_highest_version_that_both_speak_is_taken() -> None:
    worker = WorkerSide(KEY, RUN, WORKER, versions=(1, 3))
    coordinator = CoordinatorSide(KEY, RUN, 3, versions=(2, 7))
    shake_hands(worker, coordinator)
    assert worker.version == coordinator.version == 3


def test_nobody_on_the_way_can_have_an_older_version_taken() -> None:
    worker = WorkerSide(KEY, RUN, WORKER, versions=(1, 3))
    coordinator = CoordinatorSide(KEY, RUN, 3, versions=(1, 3))
    # Magic is at 5, lowest and highest follow at 13 and 15.
    hello = worker.hello[:15] + b"\x00\x01" + worker.hello[17:]
    answer = coordinator.receive(hello).reply
    refused(worker, answer[:15] + b"\x00\x01" + answer[17:])


def test_an_older_coordinator_is_not_followed() -> None:
    worker, coordinator = (
        WorkerSide(KEY, RUN, WORKER, newest_incarnation=4),
        CoordinatorSide(KEY, RUN, 3),
    )
    error = refused(worker, coordinator.receive(worker.hello).reply)
    assert "coordinator 3, which coordinator 4 has replaced" in str(error)
    shake_hands(WorkerSide(KEY, RUN, WORKER, newest_incarnation=3), CoordinatorSide(KEY, RUN, 3))


@pytest.mark.parametrize(
    "name", sorted({path.name for path in (CORPUS / "strangers").iterdir()} - {"hello"})
)
def test_strangers_are_refused_as_soon_as_that_is_clear(name: str) -> None:
    data = (CORPUS / "strangers" / name).read_bytes()
    coordinator = CoordinatorSide(KEY, RUN, 3)
    if name == "length-only":
        assert coordinator.receive(data).error is None
        data = bytes(MAX_HANDSHAKE_BYTES)
    refused(coordinator, data)


def test_names_must_be_plain() -> None:
    for worker in ("", "a b", "ä", "a\n", "p" * (MAX_WORKER_NAME + 1)):
        with pytest.raises(BadInput):
            WorkerSide(KEY, RUN, worker)
    longest = WorkerSide(KEY, "r" * 253, "p" * MAX_WORKER_NAME)
    assert len(longest.hello) < MAX_HANDSHAKE_BYTES
    shake_hands(longest, CoordinatorSide(KEY, "r" * 253, 3))


@pytest.mark.parametrize("version", range(LOWEST_VERSION, HIGHEST_VERSION + 1))
def test_the_handshake_is_as_written_down(version: int) -> None:
    """docs/reference/coordinator-protocol.md, followed by hand, by workers of every version."""

    def field(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, "sha256").digest()

    def tag(key: bytes, number: int, payload: bytes) -> bytes:
        inner = hashlib.blake2b(payload, digest_size=32).digest()
        data = number.to_bytes(8, "big") + inner
        return hashlib.blake2b(data, key=key, digest_size=16).digest()

    hello = b"\x01HEADWAY\0" + bytes([0, 1, 0, version]) + b"n" * 32
    hello += b"\x00\x06fuzzed" + b"\x00\x05pod-0"
    coordinator = CoordinatorSide(KEY, "fuzzed", 3, nonce=b"m" * 32)
    answer = coordinator.receive(field(hello)).reply
    own = b"\x02HEADWAY\0" + bytes.fromhex("00010002") + b"m" * 32 + bytes(7) + b"\x03"
    parts = field(b"headway session %d" % version) + field(b"") + field(hello) + field(own)
    secret = mac(KEY, hashlib.sha256(parts).digest())
    assert answer == field(own + mac(secret, b"coordinator proof\x01"))
    assert coordinator.receive(field(b"\x03" + mac(secret, b"worker proof\x01"))).error is None
    assert coordinator.is_open
    to_coordinator, to_worker = (
        mac(secret, way + b"\x01") for way in (b"worker to coordinator", b"coordinator to worker")
    )
    for number, seen in enumerate((b"\x07", b"\x08")):
        payload = b"\x92\x01\x81\xa4seen" + seen
        frame = field(payload) + tag(to_coordinator, number, payload)
        assert coordinator.receive(frame).messages == [Heartbeat(WorkerStatus(seen=seen[0]))]
    go = b"\x92\x42\x09"
    assert coordinator.send(Go(9)) == field(go) + tag(to_worker, 0, go)


@pytest.mark.parametrize("length", [0, MAX_HANDSHAKE_BYTES + 1, 2**31, 2**32 - 1])
def test_before_the_proof_only_small_frames_are_taken(length: int) -> None:
    for side in (CoordinatorSide(KEY, RUN, 3), WorkerSide(KEY, RUN, WORKER)):
        assert f"frame of {length} bytes" in str(refused(side, length.to_bytes(4, "big")))
