"""Messages are exact, small, and within their limits on both sides."""

from __future__ import annotations

import time
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.member.protocol import messages
from headway.member.protocol.generation import Domain, Generation, nobody
from headway.member.protocol.messages import (
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_NUMBER,
    MAX_PEERS,
    MAX_PLAIN_BYTES,
    MAX_REASON,
    MAX_SOUND,
    MAX_TO_COORDINATOR_BYTES,
    MAX_TO_WORKER_BYTES,
    MAX_VALUE_BYTES,
    MAX_WORKER_NAME,
    MAX_WORKERS,
    Came,
    Farewell,
    FromCoordinator,
    FromWorker,
    GenerationChange,
    Go,
    Goodbye,
    Heartbeat,
    Kept,
    Message,
    ProtocolError,
    StoreAdd,
    StoreCheck,
    StoreCompareSet,
    StoreFailed,
    StoreGet,
    StoreNumber,
    StoreSet,
    Welcome,
    apply,
    difference,
    encode,
    from_coordinator,
    from_worker,
)
from headway.member.protocol.status import WorkerStatus
from support.fuzz import ANSWERS, MESSAGES

numbers = st.integers(0, MAX_NUMBER)
# Few names and flags, so that generations have much in common, in another order.
domains = st.builds(
    Domain,
    workers=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3).map(tuple),
    since=st.integers(0, 2),
    holds=st.booleans(),
)


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    members = tuple(draw(st.lists(domains, max_size=12)))
    return Generation(
        number=draw(st.one_of(st.integers(0, 3), numbers)),
        incarnation=draw(numbers),
        domains=members,
        leader=draw(st.integers(0, max(0, len(members) - 1))),
        paused=draw(st.booleans()),
        sound=tuple(draw(st.lists(numbers, max_size=4))),
        reason=draw(st.text(max_size=20)),
    )


@st.composite
def changed(draw: st.DrawFn, base: Generation) -> Generation:
    """What really follows: some leave, some flags turn, some come."""
    kept = [
        Domain(domain.workers, domain.since, domain.holds or draw(st.booleans()))
        for domain in base.domains
        if draw(st.integers(0, 4))
    ]
    new = draw(st.lists(domains, max_size=3))
    return Generation(base.number + 1, 5, (*kept, *new), 0, False, (base.number,), "next")


@pytest.mark.parametrize("message", [*MESSAGES.values(), *ANSWERS.values()])
def test_what_is_encoded_is_decoded(message: Message) -> None:
    decode = from_worker if message in MESSAGES.values() else from_coordinator
    assert decode(encode(message)) == message


@given(generations(), generations())
def test_a_difference_is_exact(base: Generation, new: Generation) -> None:
    change = from_coordinator(encode(difference(base, new)))
    assert isinstance(change, GenerationChange)
    assert apply(change, base) == new


@given(st.data(), generations())
def test_a_difference_between_neighbours_is_exact(data: st.DataObject, base: Generation) -> None:
    if base.number == MAX_NUMBER:
        return
    new = data.draw(changed(base))
    assert apply(difference(base, new), base) == new


@given(generations())
def test_a_whole_generation_needs_no_base(new: Generation) -> None:
    whole = difference(None, new)
    assert all(isinstance(piece, Came) for piece in whole.pieces)
    assert apply(whole, None) == apply(whole, nobody(1)) == apply(whole, new) == new


@given(generations(), generations(), generations())
def test_a_change_of_something_else_is_refused(
    base: Generation, new: Generation, other: Generation
) -> None:
    change = difference(base, new)
    same = (base.number, base.incarnation) == (other.number, other.incarnation)
    if base.number == 0 or same:
        return
    for wrong in (other, None):
        with pytest.raises(ProtocolError, match="this worker does not have"):
            apply(change, wrong)


def large_generation(number: int, count: int, holds: bool = True) -> Generation:
    members = tuple(Domain((f"{i:036d}",), 3, holds) for i in range(count))
    return Generation(number, 2, members, 0, False, (number - 1,), "x")


def test_a_change_of_5000_is_small_and_quick() -> None:
    base = large_generation(7, 5000)
    workers = base.domains
    lost = msgspec.structs.replace(base, number=8, domains=workers[:2000] + workers[2001:])
    assert len(encode(difference(base, lost))) < 100
    newcomer = Domain(("n" * 36,), 8, False)
    joined = msgspec.structs.replace(base, number=8, domains=(*workers, newcomer))
    assert len(encode(difference(base, joined))) < 100
    scattered = msgspec.structs.replace(base, number=8, domains=workers[::2])
    assert len(encode(difference(base, scattered))) < 2500 * 8
    # All newcomers have been healed since, and one leaves.
    healed = large_generation(8, 5000)
    assert len(encode(difference(large_generation(7, 5000, holds=False), healed))) < 100
    took = []
    for _ in range(5):
        began = time.process_time()
        apply(difference(base, lost), base)
        took.append(time.process_time() - began)
    assert min(took) < 0.5  # 6 ms


def test_flags_of_any_pattern_stay_in_few_pieces() -> None:
    mixed = tuple(Domain((str(i),), 1, i % 3 == 0) for i in range(90))
    base = Generation(1, 1, mixed, 0, False, (), "")
    one_out = msgspec.structs.replace(base, number=2, domains=mixed[1:])
    assert difference(base, one_out).pieces == (Kept(1, 89, None),)
    all_hold = tuple(Domain(domain.workers, 1, True) for domain in mixed)
    healed = msgspec.structs.replace(base, number=2, domains=all_hold)
    assert difference(base, healed).pieces == (Kept(0, 90, True),)


def test_the_largest_of_everything_fits_its_frame() -> None:
    workers = tuple(Domain(("p" * MAX_WORKER_NAME,), MAX_NUMBER, False) for _ in range(MAX_WORKERS))
    sound = (MAX_NUMBER,) * MAX_SOUND
    largest = Generation(MAX_NUMBER, MAX_NUMBER, workers, 0, True, sound, "€" * MAX_REASON)
    welcome = Welcome(MAX_NUMBER, difference(None, largest), True)
    payload = encode(welcome)
    assert len(payload) <= MAX_TO_WORKER_BYTES
    assert from_coordinator(payload) == welcome
    value, key = bytes(MAX_VALUE_BYTES), "k" * MAX_KEY_BYTES
    swap = StoreCompareSet(MAX_NUMBER, MAX_NUMBER, key, value, value)
    assert len(encode(swap)) <= MAX_TO_COORDINATOR_BYTES
    assert len(encode(StoreCheck(1, 1, (key,) * MAX_KEYS, 1.0))) <= MAX_TO_COORDINATOR_BYTES
    assert (
        len(encode(Heartbeat(WorkerStatus(peers=("p" * MAX_WORKER_NAME,) * MAX_PEERS))))
        <= MAX_PLAIN_BYTES
    )


@pytest.mark.parametrize(
    "message",
    [
        StoreSet(1, 1, "k" * (MAX_KEY_BYTES + 1), b""),
        StoreSet(1, 1, "é" * (MAX_KEY_BYTES // 2 + 1), b""),
        StoreSet(1, 1, "", b""),
        StoreSet(1, 1, "k", bytes(MAX_VALUE_BYTES + 1)),
        StoreCheck(1, 1, ("k",) * (MAX_KEYS + 1), 1.0),
        StoreCheck(1, 1, ("é" * MAX_KEY_BYTES,), 1.0),
        StoreGet(1, 1, "k", float("nan")),
        StoreGet(1, 1, "k", 601.0),
        StoreGet(1, 1, "k", -0.1),
        StoreAdd(1, 1, "k", 2**63),
        StoreNumber(1, -(2**63) - 1),
        StoreFailed(1, "other"),  # type: ignore[arg-type]
        Heartbeat(WorkerStatus(seen=-1)),
        Heartbeat(WorkerStatus(trouble=2**63)),
        Heartbeat(WorkerStatus(waits=2**63)),
        Heartbeat(WorkerStatus(peers=("p" * (MAX_WORKER_NAME + 1),))),
        Go(-1),
        GenerationChange(0, 0, 1, 1, (Kept(0, 0, None),), 0, False, (), ""),
        GenerationChange(0, 0, 1, 1, (Came((), 1, False),), 0, False, (), ""),
        GenerationChange(
            0, 0, 1, 1, (Came(("p" * (MAX_WORKER_NAME + 1),), 1, False),), 0, False, (), ""
        ),
    ],
)
def test_what_is_beyond_a_limit_does_not_leave(message: Message) -> None:
    with pytest.raises(ProtocolError):
        encode(message)


def test_what_is_beyond_a_limit_is_not_taken() -> None:
    """The same without our own encoder in between."""
    for wrong in ([1, {"peers": ["p"] * (MAX_PEERS + 1)}], [1, {"padding": "p" * MAX_PLAIN_BYTES}]):
        with pytest.raises(ProtocolError):
            from_worker(msgspec.msgpack.encode(wrong))


def test_texts_for_people_and_complaints_are_cut() -> None:
    cut = from_coordinator(encode(Farewell("r" * (MAX_REASON + 1))))
    assert cut == Farewell("r" * MAX_REASON)
    assert from_worker(encode(Goodbye("€" * 5000))) == Goodbye("€" * MAX_REASON)
    long = msgspec.structs.replace(large_generation(2, 2), reason="r" * 5000)
    told = from_coordinator(encode(Welcome(1, difference(None, long), False)))
    assert isinstance(told, Welcome)
    assert told.change is not None
    assert len(told.change.reason) == MAX_REASON
    complaint = from_worker(encode(Heartbeat(WorkerStatus(trouble=3, peers=("p",) * 5000))))
    assert complaint == Heartbeat(WorkerStatus(trouble=3, peers=("p",) * MAX_PEERS))


@pytest.mark.parametrize(
    ("pieces", "leader", "says"),
    [
        ((Kept(0, 4, None),), 0, "keeps more"),
        ((Kept(3, 1, None),), 0, "keeps more"),
        ((Kept(0, 3, None),), 3, "leader 3 is not one of 3"),
        ((), 1, "leader 1 is not one of 0"),
        ((Came(("p",) * 5000, 1, False),) * 2, 0, f"more than {MAX_WORKERS}"),
        ((Kept(0, 3, None),) * MAX_WORKERS, 0, f"more than {MAX_WORKERS}"),
    ],
)
def test_changes_that_make_no_sense_are_refused(
    pieces: tuple[Kept | Came, ...], leader: int, says: str
) -> None:
    base = large_generation(7, 3)
    change = GenerationChange(7, 2, 8, 2, pieces, leader, False, (), "")
    with pytest.raises(ProtocolError, match=says):
        apply(change, base)


def test_errors_do_not_repeat_what_was_sent() -> None:
    said = msgspec.msgpack.encode([82, 1, "x\n\x1b[31m" * 10000])
    with pytest.raises(ProtocolError) as caught:
        from_coordinator(said)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_the_reference_names_every_message_field_and_limit() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/coordinator-protocol.md").read_text()
    for message in (*get_args(FromWorker), *get_args(FromCoordinator), Kept, Came):
        config = message.__struct_config__
        row = next((line for line in page.splitlines() if f" {message.__name__} |" in line), "")
        assert row.startswith(f"| {config.tag}"), message.__name__
        for name in message.__struct_fields__:
            assert f"`{name}`" in row or f"`{name.removesuffix('_seconds')}`" in row, (row, name)
    for name in WorkerStatus.__struct_fields__:
        assert f"\n| `{name}` |" in page
    limits = [
        value
        for name, value in vars(messages).items()
        if name.startswith("MAX_") and value not in (MAX_NUMBER, messages.MAX_WAIT_SECONDS)
    ]
    assert [limit for limit in limits if f"{limit:,}" not in page] == []
