"""Keys and values of a generation: what is asked is answered once, in time, within limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.member.coordinator import rendezvous
from headway.member.coordinator.rendezvous import Rendezvous, Waiter
from headway.member.protocol.messages import (
    MAX_VALUE_BYTES,
    StoreAdd,
    StoreAnswer,
    StoreCheck,
    StoreCompareSet,
    StoreDelete,
    StoreFailed,
    StoreGather,
    StoreGet,
    StoreNumber,
    StoreRequest,
    StoreSet,
    StoreValue,
    StoreValues,
)

WORKERS = ["a", "b"]


class Asked:
    """A rendezvous with a clock, and all its answers."""

    def __init__(self) -> None:
        self.rendezvous = Rendezvous()
        self.rendezvous.open(1, WORKERS)
        self.now = 100.0
        self.answers: list[StoreAnswer] = []

    def start(self, request: StoreRequest, worker: str = "a") -> Waiter | None:
        return self.rendezvous.handle(request, worker, self.now, self.answers.append)

    def ask(self, request: StoreRequest, worker: str = "a") -> StoreAnswer:
        before = len(self.answers)
        assert self.start(request, worker) is None
        assert len(self.answers) == before + 1
        return self.answers[-1]

    def after(self, seconds: float) -> list[StoreAnswer]:
        """The answers that the time makes."""
        self.now += seconds
        before = len(self.answers)
        self.rendezvous.expire(self.now)
        return self.answers[before:]


@pytest.fixture
def asked() -> Asked:
    return Asked()


def stored(asked: Asked) -> tuple[int, int]:
    """Numbers of keys and of bytes, over all generations."""
    kept = asked.rendezvous._generations.values()
    return sum(len(keys.values) for keys in kept), sum(keys.num_bytes for keys in kept)


def test_what_is_set_can_be_got_by_another(asked: Asked) -> None:
    assert asked.ask(StoreSet(1, 1, "k", b"v")) == StoreNumber(1, 1)
    assert asked.ask(StoreGet(2, 1, "k", 0.0), "b") == StoreValue(2, b"v")


def test_a_get_waits_for_its_key(asked: Asked) -> None:
    assert asked.start(StoreGet(1, 1, "k", 5.0), "b") is not None
    assert asked.after(4.0) == []
    asked.start(StoreSet(2, 1, "k", b"v"))
    assert asked.answers == [StoreValue(1, b"v"), StoreNumber(2, 1)]
    assert asked.after(100.0) == []


def test_a_get_is_late_after_its_time_and_answered_once(asked: Asked) -> None:
    asked.start(StoreGet(1, 1, "k", 5.0))
    (late,) = asked.after(5.0)
    assert isinstance(late, StoreFailed)
    assert (late.request, late.why) == (1, "late")
    assert asked.ask(StoreSet(2, 1, "k", b"v")) == StoreNumber(2, 1)
    failed = asked.ask(StoreGet(3, 1, "other", 0.0))
    assert isinstance(failed, StoreFailed)
    assert failed.why == "late"


def test_a_check_waits_for_all_its_keys_at_the_same_time(asked: Asked) -> None:
    asked.start(StoreCheck(1, 1, ("x", "y"), 5.0))
    asked.ask(StoreSet(2, 1, "x", b""))
    asked.ask(StoreDelete(3, 1, "x"))
    asked.ask(StoreSet(4, 1, "y", b""))
    assert StoreNumber(1, 1) not in asked.answers, "x is gone again"
    asked.start(StoreSet(5, 1, "x", b""))
    assert StoreNumber(1, 1) in asked.answers


def test_a_check_says_no_after_its_time(asked: Asked) -> None:
    asked.ask(StoreSet(1, 1, "x", b""))
    asked.start(StoreCheck(2, 1, ("x", "y"), 1.0))
    assert asked.after(1.0) == [StoreNumber(2, 0)]
    assert asked.ask(StoreCheck(3, 1, ("x", "y"), 0.0)) == StoreNumber(3, 0)
    assert asked.ask(StoreCheck(4, 1, ("x",), 0.0)) == StoreNumber(4, 1)


def test_adding_counts_from_zero_and_wakes(asked: Asked) -> None:
    asked.start(StoreGet(1, 1, "n", 1.0), "b")
    asked.start(StoreAdd(2, 1, "n", 3))
    assert asked.answers == [StoreValue(1, b"3"), StoreNumber(2, 3)]
    assert asked.ask(StoreAdd(3, 1, "n", -5)) == StoreNumber(3, -2)


@pytest.mark.parametrize("value", [b"", b"x", b"1_0", b" 1", b"-", b"9" * 40, b"\xb2"])
def test_adding_to_what_is_no_integer_is_wrong(asked: Asked, value: bytes) -> None:
    asked.ask(StoreSet(1, 1, "n", value))
    failed = asked.ask(StoreAdd(2, 1, "n", 1))
    assert isinstance(failed, StoreFailed)
    assert failed.why == "wrong"


def test_sums_have_64_bits(asked: Asked) -> None:
    asked.ask(StoreAdd(1, 1, "n", 2**63 - 1))
    failed = asked.ask(StoreAdd(2, 1, "n", 1))
    assert isinstance(failed, StoreFailed)
    assert failed.why == "wrong"
    assert asked.ask(StoreAdd(3, 1, "n", 0)) == StoreNumber(3, 2**63 - 1)


def test_compare_set(asked: Asked) -> None:
    swap = lambda expected, desired: asked.ask(  # noqa: E731
        StoreCompareSet(1, 1, "k", expected, desired)
    )
    assert swap(b"x", b"y") == StoreValue(1, b"x"), "missing, and not expected to be"
    assert swap(b"", b"one") == StoreValue(1, b"one")
    assert swap(b"", b"two") == StoreValue(1, b"one")
    assert swap(b"one", b"two") == StoreValue(1, b"two")


def test_deleting(asked: Asked) -> None:
    assert asked.ask(StoreDelete(1, 1, "k")) == StoreNumber(1, 0)
    asked.ask(StoreSet(2, 1, "k", b"v"))
    assert asked.ask(StoreDelete(3, 1, "k")) == StoreNumber(3, 1)
    assert stored(asked) == (0, 0)


def test_generations_have_nothing_to_do_with_each_other(asked: Asked) -> None:
    asked.ask(StoreSet(1, 1, "k", b"old"))
    asked.rendezvous.open(2, ["a"])
    assert asked.ask(StoreGet(2, 1, "k", 0.0)) == StoreValue(2, b"old")
    asked.ask(StoreSet(3, 2, "k", b"new"))
    assert asked.ask(StoreGet(4, 1, "k", 0.0)) == StoreValue(4, b"old")


@pytest.mark.parametrize(("generation", "worker"), [(0, "a"), (2, "a"), (1, "stranger")])
def test_only_members_of_a_generation_that_is_open(
    asked: Asked, generation: int, worker: str
) -> None:
    failed = asked.ask(StoreSet(1, generation, "k", b""), worker)
    assert isinstance(failed, StoreFailed)
    assert failed.why == "generation"


def test_keys_go_when_a_generation_two_newer_is_there(asked: Asked) -> None:
    asked.ask(StoreSet(1, 1, "k", b"v"))
    asked.start(StoreGet(2, 1, "other", 60.0))
    asked.rendezvous.open(2, WORKERS)
    assert stored(asked) == (1, 2)
    asked.rendezvous.open(3, WORKERS)
    assert stored(asked) == (0, 0)
    failed = asked.answers[-1]
    assert isinstance(failed, StoreFailed)
    assert (failed.request, failed.why) == (2, "generation")
    assert asked.after(60.0) == []


def test_a_lost_worker_gets_no_answer(asked: Asked) -> None:
    waiter = asked.start(StoreCheck(1, 1, ("x", "y"), 5.0))
    assert waiter is not None
    asked.rendezvous.cancel(waiter)
    asked.ask(StoreSet(2, 1, "x", b""))
    asked.ask(StoreSet(3, 1, "y", b""))
    assert asked.after(10.0) == []


def test_stored_keys_and_bytes_are_limited(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "MAX_STORED_BYTES", 10)
    monkeypatch.setattr(rendezvous, "MAX_STORED_KEYS", 2)
    asked.ask(StoreSet(1, 1, "k", b"12345678"))
    for request in (
        StoreSet(2, 1, "m", b"1"),
        StoreSet(2, 1, "k", b"1234567890"),
        StoreAdd(2, 1, "n", 1),
        StoreCompareSet(2, 1, "o", b"", b"1"),
    ):
        failed = asked.ask(request)
        assert isinstance(failed, StoreFailed)
        assert failed.why == "full"
    assert asked.ask(StoreSet(3, 1, "k", b"")) == StoreNumber(3, 1)
    asked.ask(StoreSet(4, 1, "m", b"1"))
    failed = asked.ask(StoreSet(5, 1, "n", b"1"))
    assert isinstance(failed, StoreFailed)


def test_answered_waits_do_not_pile_up(asked: Asked) -> None:
    for number in range(5000):
        asked.start(StoreGet(number, 1, f"k{number}", 600.0))
        asked.start(StoreSet(number, 1, f"k{number}", b""))
    asked.after(0.1)
    assert len(asked.rendezvous._deadlines) < 2000


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 3), st.binary(max_size=3))))
def test_bytes_are_counted_right(steps: list[tuple[str, int, bytes]]) -> None:
    asked, there = Asked(), dict[str, bytes]()
    for key, what, value in steps:
        if what == 0:
            asked.ask(StoreDelete(1, 1, key))
            there.pop(key, None)
        elif what == 1:
            asked.ask(StoreCompareSet(1, 1, key, there.get(key, b""), value))
            there[key] = value
        else:
            asked.ask(StoreSet(1, 1, key, value))
            there[key] = value
    assert stored(asked) == (len(there), sum(len(k) + len(v) for k, v in there.items()))


def test_all_members_get_all_values_when_the_last_is_set(asked: Asked) -> None:
    asked.ask(StoreSet(1, 1, "g/1", b"one"))
    assert asked.start(StoreGather(2, 1, "g/", 3, 5.0), "a") is not None
    assert asked.start(StoreGather(3, 1, "g/", 3, 5.0), "b") is not None
    asked.ask(StoreSet(4, 1, "g/0", b"zero"))
    asked.ask(StoreSet(5, 1, "g/3", b"of another group"))
    assert asked.start(StoreSet(6, 1, "g/2", b"two")) is None
    values = (b"zero", b"one", b"two")
    assert asked.answers[-3:] == [
        StoreValues(2, values),
        StoreValues(3, values),
        StoreNumber(6, 1),
    ]
    assert asked.ask(StoreGather(7, 1, "g/", 3, 0.0)) == StoreValues(7, values)
    assert asked.after(100.0) == []


def test_a_gather_that_is_late_says_who_is_missing(asked: Asked) -> None:
    asked.ask(StoreSet(1, 1, "g/1", b"v"))
    asked.start(StoreGather(2, 1, "g/", 4, 5.0))
    assert asked.after(5.0) == [StoreValues(2, (), (0, 2, 3))]
    asked.ask(StoreSet(3, 1, "g/0", b"v"))
    assert asked.ask(StoreGather(4, 1, "g/", 4, 0.0)) == StoreValues(4, (), (2, 3))


def test_what_is_deleted_is_waited_for_again(asked: Asked) -> None:
    asked.ask(StoreSet(1, 1, "g/0", b"v"))
    asked.start(StoreGather(2, 1, "g/", 2, 5.0))
    asked.ask(StoreDelete(3, 1, "g/0"))
    before = len(asked.answers)
    asked.ask(StoreSet(4, 1, "g/1", b"v"))
    assert asked.answers[before:] == [StoreNumber(4, 1)]
    asked.start(StoreSet(5, 1, "g/0", b"w"))
    assert asked.answers[-2] == StoreValues(2, (b"w", b"v"))


def test_a_member_that_ends_or_a_generation_that_does_frees_those_who_gather(asked: Asked) -> None:
    ended = asked.start(StoreGather(1, 1, "g/", 2, 50.0), "a")
    asked.start(StoreGather(2, 1, "g/", 2, 50.0), "b")
    assert ended is not None
    asked.rendezvous.cancel(ended)
    asked.rendezvous.open(2, WORKERS)
    asked.rendezvous.open(3, WORKERS)
    [failed] = asked.answers
    assert isinstance(failed, StoreFailed)
    assert (failed.request, failed.why) == (2, "generation")


def test_more_than_fits_into_an_answer_is_refused(asked: Asked) -> None:
    for number in range(65):
        asked.ask(StoreSet(number, 1, f"g/{number}", b"v" * MAX_VALUE_BYTES))
    failed = asked.ask(StoreGather(100, 1, "g/", 65, 0.0))
    assert isinstance(failed, StoreFailed)
    assert failed.why == "full"


@given(
    st.permutations([*range(9)]),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=6),
)
def test_a_gather_is_answered_by_the_last_of_its_keys_in_any_order(
    order: list[int], gathers: list[tuple[int, int]]
) -> None:
    """`gathers`: how many keys each wants, and after how many were set it asks."""
    asked = Asked()
    answered: dict[int, int] = {}
    for place in range(10):
        for number, (count, after) in enumerate(gathers):
            if after == place:
                asked.start(StoreGather(number, 1, "1", count, 50.0))
        if place < 9:
            asked.start(StoreSet(100 + place, 1, f"1{order[place]}", b"%d" % order[place]))
        for answer in asked.answers:
            if isinstance(answer, StoreValues):
                answered.setdefault(answer.request, place)
        asked.answers.clear()
    for number, (count, after) in enumerate(gathers):
        last = max(place for place in range(9) if order[place] < count)
        assert answered[number] == max(after, last)
