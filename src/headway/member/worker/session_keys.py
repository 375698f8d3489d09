"""The keys of one generation, which the coordinator keeps for its members: set, read, counted and
waited for through a worker's session. Every wait has a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from headway.member.protocol.messages import (
    MAX_KEYS,
    MAX_WAIT_SECONDS,
    StoreAdd,
    StoreAnswer,
    StoreCheck,
    StoreCompareSet,
    StoreDelete,
    StoreGather,
    StoreGet,
    StoreNumber,
    StoreRequest,
    StoreSet,
    StoreValue,
    StoreValues,
)
from headway.member.worker.session import Session
from headway.member.worker.session_view import Late

REQUEST_SECONDS = 2.0
"""Timeout of requests that are answered at once. The session may reconnect in between."""


class NotAllSet(Late):
    """The time is over. `numbers`: some of those that are missing."""

    def __init__(self, numbers: tuple[int, ...], seconds: float) -> None:
        some = ", ".join(map(str, numbers[:4])) + (" ..." if len(numbers) > 4 else "")
        super().__init__(f"waited {seconds:.3g} s for {some} to be set")
        self.numbers = numbers


class SessionKeys:
    """Raises SessionError: the time is over, the generation has lost a member, or the connection
    broke where a retry could do the thing twice."""

    def __init__(self, session: Session, generation: int, prefix: str = "") -> None:
        self.session, self.generation, self.prefix = session, generation, prefix

    def set(self, key: str, value: bytes, seconds: float = REQUEST_SECONDS) -> None:
        name = self.prefix + key
        self._ask(
            f"setting {name}",
            lambda number: StoreSet(number, self.generation, name, value),
            seconds,
        )

    def get(self, key: str, seconds: float) -> bytes:
        """The value, once it is set."""
        name, wait = self.prefix + key, min(seconds, MAX_WAIT_SECONDS)
        answer = self._ask(
            f"{name} to be set",
            lambda number: StoreGet(number, self.generation, name, wait),
            seconds,
        )
        assert isinstance(answer, StoreValue)
        return answer.value

    def gather(self, key: str, count: int, seconds: float) -> tuple[bytes, ...]:
        """The values of `KEY0` to `KEY{count - 1}`, once all are set. Raises NotAllSet."""
        name, wait = self.prefix + key, min(seconds, MAX_WAIT_SECONDS)
        answer = self._ask(
            f"{name}0 to {count - 1} to be set",
            lambda number: StoreGather(number, self.generation, name, count, wait),
            seconds + REQUEST_SECONDS,
        )
        assert isinstance(answer, StoreValues)
        if answer.missing:
            raise NotAllSet(answer.missing, seconds)
        return answer.values

    def add(self, key: str, amount: int) -> int:
        name = self.prefix + key
        return self._number(
            f"adding to {name}",
            lambda number: StoreAdd(number, self.generation, name, amount),
            REQUEST_SECONDS,
        )

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """The value afterwards. Nothing expected: the key must be missing."""
        name = self.prefix + key
        answer = self._ask(
            f"setting {name} if it is as expected",
            lambda number: StoreCompareSet(number, self.generation, name, expected, desired),
            REQUEST_SECONDS,
        )
        assert isinstance(answer, StoreValue)
        return answer.value

    def delete(self, key: str) -> bool:
        name = self.prefix + key
        return bool(
            self._number(
                f"deleting {name}",
                lambda number: StoreDelete(number, self.generation, name),
                REQUEST_SECONDS,
            )
        )

    def missing(self, keys: Sequence[str], seconds: float = 0.0) -> list[str]:
        """The first batch of keys that are not all set within the time; empty if all are set."""
        deadline = time.monotonic() + seconds
        for begin in range(0, len(keys), MAX_KEYS):
            some = list(keys[begin : begin + MAX_KEYS])
            names = tuple(self.prefix + key for key in some)
            left = min(max(0.0, deadline - time.monotonic()), MAX_WAIT_SECONDS)

            def make(number: int, names: tuple[str, ...] = names, left: float = left) -> StoreCheck:
                return StoreCheck(number, self.generation, names, left)

            if not self._number(f"{names[0]} to be set", make, left + REQUEST_SECONDS):
                return some
        return []

    def _number(self, what: str, make: Callable[[int], StoreRequest], seconds: float) -> int:
        answer = self._ask(what, make, seconds)
        assert isinstance(answer, StoreNumber)
        return answer.number

    def _ask(self, what: str, make: Callable[[int], StoreRequest], seconds: float) -> StoreAnswer:
        return self.session.ask(self.generation, make, seconds, what)
