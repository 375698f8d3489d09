"""The store of keys and values through which the members of a generation form their groups. Pure:
times come in, answers go out by the callback that came with the request.

Each generation has keys of its own, for its members only. They are kept for one generation more: a
member may be about to read them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from headway.member.protocol.messages import (
    MAX_GATHERED_BYTES,
    MAX_NUMBER,
    MAX_PEERS,
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

KEPT_GENERATIONS = 2
MAX_STORED_KEYS = 2**17
"""Keys of a generation. 5,000 members that each leave 16 keys use 80,000."""
MAX_STORED_BYTES = 2**26
"""Bytes of keys and values of a generation. The coordinator is planned for tens of megabytes."""

Reply = Callable[[StoreAnswer], None]


class Waiter:
    """A request that is answered when its keys are set, or when its time is over."""

    __slots__ = ("missing", "over", "reply", "request", "values")

    def __init__(
        self, request: StoreGet | StoreCheck | StoreGather, reply: Reply, values: _Keys
    ) -> None:
        self.request = request
        self.reply = reply
        self.values = values
        self.missing = values.missing(request)
        self.over = False

    @property
    def late(self) -> StoreAnswer:
        match self.request:
            case StoreGet():
                return StoreFailed(self.request.request, "late", "no member has set it")
            case StoreCheck():
                return StoreNumber(self.request.request, 0)
            case StoreGather():
                ranks = sorted(int(key[len(self.request.key) :]) for key in self.missing)
                return StoreValues(self.request.request, (), tuple(ranks[:MAX_PEERS]))

    @property
    def answer(self) -> StoreAnswer:
        match self.request:
            case StoreGet():
                return StoreValue(self.request.request, self.values.values[self.request.key])
            case StoreCheck():
                return StoreNumber(self.request.request, 1)
            case StoreGather():
                values = tuple(self.values.values[key] for key in _gathered(self.request))
                if sum(map(len, values)) > MAX_GATHERED_BYTES:
                    reason = f"more than {MAX_GATHERED_BYTES} bytes for one answer"
                    return StoreFailed(self.request.request, "full", reason)
                return StoreValues(self.request.request, values)


class _Keys:
    """Keys and values of one generation."""

    def __init__(self, workers: Collection[str]) -> None:
        self.workers = frozenset(workers)
        self.values: dict[str, bytes] = {}
        self.num_bytes = 0
        self.waiters: dict[str, dict[Waiter, None]] = {}
        """By each key that is missing, those that wait for it."""
        self.gathers: dict[tuple[str, int], _Gather] = {}
        """By the keys' beginning and their number: what all members of a group wait for."""

    def missing(self, request: StoreGet | StoreCheck | StoreGather) -> set[str]:
        match request:
            case StoreGet():
                wanted: Iterable[str] = (request.key,)
            case StoreCheck():
                wanted = request.keys
            case StoreGather():
                group = (request.key, request.count)
                if group in self.gathers:
                    return self.gathers[group].missing
                wanted = _gathered(request)
        return {key for key in wanted if key not in self.values}


class _Gather:
    """Members that wait for the same keys. Each would have a list of all that are missing, and
    be looked at for each that comes: a group's square."""

    __slots__ = ("missing", "waiters")

    def __init__(self, missing: set[str]) -> None:
        self.missing = missing
        self.waiters: dict[Waiter, None] = {}


def _gathered(request: StoreGather) -> Iterator[str]:
    return (f"{request.key}{number}" for number in range(request.count))


class Rendezvous:
    def __init__(self) -> None:
        self._generations: dict[int, _Keys] = {}
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._order = count()
        self._num_waiting = 0

    def open(self, generation: int, workers: Collection[str]) -> None:
        """Opens the newest generation. Those older than the one before it are dropped."""
        self._generations[generation] = _Keys(workers)
        for old in sorted(self._generations)[:-KEPT_GENERATIONS]:
            keys = self._generations.pop(old)
            waiting = {waiter for waiters in keys.waiters.values() for waiter in waiters}
            gathering = {waiter for gather in keys.gathers.values() for waiter in gather.waiters}
            for waiter in waiting | gathering:
                self._end(waiter, _no_generation(waiter.request.request, old))

    def handle(self, request: StoreRequest, worker: str, now: float, reply: Reply) -> Waiter | None:
        """Answers at once, or returns a waiter that is answered later or cancelled."""
        keys = self._generations.get(request.generation)
        if keys is None or worker not in keys.workers:
            reply(_no_generation(request.request, request.generation))
            return None
        match request:
            case StoreGet() | StoreCheck() | StoreGather():
                waiter = Waiter(request, reply, keys)
                if waiter.missing and request.wait_seconds > 0:
                    return self._wait(waiter, now + request.wait_seconds)
                reply(waiter.late if waiter.missing else waiter.answer)
            case StoreSet():
                reply(self.set(keys, request))
            case StoreAdd():
                reply(self.add(keys, request))
            case StoreCompareSet():
                reply(self.compare_set(keys, request))
            case StoreDelete():
                reply(self.delete(keys, request))
        return None

    def set(self, keys: _Keys, request: StoreSet) -> StoreAnswer:
        if not self._put(keys, request.key, request.value):
            return _full(request.request)
        return StoreNumber(request.request, 1)

    def add(self, keys: _Keys, request: StoreAdd) -> StoreAnswer:
        before = keys.values.get(request.key, b"0")
        number = _integer(before)
        if number is None:
            reason = f"the value of {request.key} is not an integer"
            return StoreFailed(request.request, "wrong", reason)
        total = number + request.amount
        if not -MAX_NUMBER - 1 <= total <= MAX_NUMBER:
            return StoreFailed(request.request, "wrong", f"{request.key} would exceed 64 bits")
        if not self._put(keys, request.key, b"%d" % total):
            return _full(request.request)
        return StoreNumber(request.request, total)

    def compare_set(self, keys: _Keys, request: StoreCompareSet) -> StoreAnswer:
        there = keys.values.get(request.key)
        if there == request.expected or (there is None and not request.expected):
            if not self._put(keys, request.key, request.desired):
                return _full(request.request)
            return StoreValue(request.request, request.desired)
        return StoreValue(request.request, request.expected if there is None else there)

    def delete(self, keys: _Keys, request: StoreDelete) -> StoreAnswer:
        value = keys.values.pop(request.key, None)
        if value is None:
            return StoreNumber(request.request, 0)
        keys.num_bytes -= len(request.key.encode()) + len(value)
        for gather in _gathers_of(keys, request.key):
            gather.missing.add(request.key)
        return StoreNumber(request.request, 1)

    def cancel(self, waiter: Waiter) -> None:
        """The session that asked has ended."""
        self._end(waiter, None)

    def expire(self, now: float) -> None:
        """Answers the waiters whose time is over."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, waiter = heappop(self._deadlines)
            self._end(waiter, waiter.late)
        if len(self._deadlines) > 2 * self._num_waiting + 1000:
            # Most were answered long before their time.
            self._deadlines = [entry for entry in self._deadlines if not entry[2].over]
            heapify(self._deadlines)

    def _wait(self, waiter: Waiter, deadline: float) -> Waiter:
        self._watch(waiter)
        self._num_waiting += 1
        heappush(self._deadlines, (deadline, next(self._order), waiter))
        return waiter

    def _watch(self, waiter: Waiter) -> None:
        request = waiter.request
        if isinstance(request, StoreGather):
            group = (request.key, request.count)
            gather = waiter.values.gathers.setdefault(group, _Gather(waiter.missing))
            gather.waiters[waiter] = None
            return
        for key in waiter.missing:
            waiter.values.waiters.setdefault(key, {})[waiter] = None

    def _end(self, waiter: Waiter, answer: StoreAnswer | None) -> None:
        if waiter.over:
            return
        waiter.over = True
        self._num_waiting -= 1
        self._forget(waiter)
        if answer is not None:
            waiter.reply(answer)

    def _forget(self, waiter: Waiter) -> None:
        request, keys = waiter.request, waiter.values
        if isinstance(request, StoreGather):
            gather = keys.gathers[request.key, request.count]
            del gather.waiters[waiter]
            if not gather.waiters:
                del keys.gathers[request.key, request.count]
            return
        for key in waiter.missing:
            waiters = keys.waiters.get(key)
            if waiters is not None:
                waiters.pop(waiter, None)
                if not waiters:
                    del keys.waiters[key]

    def _put(self, keys: _Keys, key: str, value: bytes) -> bool:
        before = keys.values.get(key)
        grown = len(value) - len(before) if before is not None else len(key.encode()) + len(value)
        if grown > 0 and keys.num_bytes + grown > MAX_STORED_BYTES:
            return False
        if before is None and len(keys.values) >= MAX_STORED_KEYS:
            return False
        keys.values[key] = value
        keys.num_bytes += grown
        for waiter in keys.waiters.pop(key, ()):
            waiter.missing.discard(key)
            if not waiter.missing:
                # One that came before may have been deleted meanwhile.
                waiter.missing = keys.missing(waiter.request)
                self._watch(waiter)
            if not waiter.missing:
                self._end(waiter, waiter.answer)
        for gather in _gathers_of(keys, key):
            gather.missing.discard(key)
            if not gather.missing:
                for waiter in list(gather.waiters):
                    self._end(waiter, waiter.answer)
        return True


def _gathers_of(keys: _Keys, key: str) -> list[_Gather]:
    """Those that wait for this key, among others."""
    return [
        gather
        for (begin, count), gather in keys.gathers.items()
        if key.startswith(begin) and _is_rank(key[len(begin) :], count)
    ]


def _is_rank(text: str, count: int) -> bool:
    return text.isascii() and text.isdigit() and text == str(int(text)) and int(text) < count


def _integer(value: bytes) -> int | None:
    """Python would also take spaces and underscores."""
    digits = value[1:] if value[:1] == b"-" else value
    return int(value) if digits.isdigit() and len(digits) <= 19 else None


def _no_generation(number: int, generation: int) -> StoreFailed:
    return StoreFailed(number, "generation", f"generation {generation} is not open to this worker")


def _full(number: int) -> StoreFailed:
    return StoreFailed(number, "full", "the store of this generation has no room left")
