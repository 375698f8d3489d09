"""Threads that bring things: what is waited for first, then what will be wanted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Generic, TypeVar

from headway.clock import Clock
from headway.data.patience import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    READ_SECONDS,
    is_final,
)

NUM_THREADS = 8
"""Requests at once. One request of 2 MiB takes some 50 ms on S3, so this is about 300 MB/s."""
CLOSE_SECONDS = 5.0

Item = TypeVar("Item", bound=Hashable)


class Fetcher(Generic[Item]):
    """`bring(item, wished)` gets one thing and says whether there was room for it; OSError means
    that it can be tried again. Threads start with the first item and end with `close`; none of
    them keeps the process from ending."""

    def __init__(self, bring: Callable[[Item, bool], bool], clock: Clock) -> None:
        self._bring = bring
        self._clock = clock
        self._changed = Condition()
        # Items that are waited for or on their way; the urgent ones have not left yet.
        self._flights: dict[Item, Future[None]] = {}
        self._urgent: deque[Item] = deque()
        self._wishes: deque[Item] = deque()
        self._wishes_rest_until = clock.monotonic()
        self._pause = 0.0
        self._threads: list[Thread] = []
        self._closed = False

    def is_closed(self) -> bool:
        return self._closed

    def wait_for(self, items: Iterable[Item]) -> None:
        """Until all have come; an error when one did not, after the others have."""
        flights = [self._board(item) for item in items]
        deadline = self._clock.monotonic() + READ_SECONDS
        troubles = []
        for flight in flights:
            try:
                flight.result(timeout=max(0.0, deadline - self._clock.monotonic()))
            except OSError as error:
                if not flight.done():
                    raise TimeoutError("it does not answer") from None
                troubles.append(error)
        if troubles:
            raise next((error for error in troubles if is_final(error)), troubles[0])

    def wish(self, items: Iterable[Item]) -> None:
        """In place of what was wished for before."""
        with self._changed:
            self._wishes = deque(items)
            self._start_threads()
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._wishes.clear()
            for item in self._urgent:
                self._flights.pop(item).set_exception(OSError("the set was closed"))
            self._urgent.clear()
            self._changed.notify_all()
        deadline = self._clock.monotonic() + CLOSE_SECONDS
        for thread in self._threads:  # a request that hangs is left behind
            thread.join(max(0.0, deadline - self._clock.monotonic()))

    def _board(self, item: Item) -> Future[None]:
        with self._changed:
            if self._closed:
                raise OSError("the set was closed")
            flight = self._flights.get(item)
            if flight is None:
                flight = self._flights[item] = Future()
                self._urgent.append(item)
                self._start_threads()
                self._changed.notify()
            return flight

    def _start_threads(self) -> None:
        if not self._threads and not self._closed:
            self._threads = [
                Thread(target=self._work, name="fetcher", daemon=True) for _ in range(NUM_THREADS)
            ]
            for thread in self._threads:
                thread.start()

    def _work(self) -> None:
        for item, wished in self._items_to_bring():
            has_room, trouble = True, None
            try:
                has_room = self._bring(item, wished)
            except Exception as error:  # noqa: BLE001 - raised where the item is waited for
                trouble = error
            with self._changed:
                flight = self._flights.pop(item)
                if wished:
                    self._wish_ended(item, has_room, trouble)
            if trouble is None:
                flight.set_result(None)
            else:
                flight.set_exception(trouble)

    def _items_to_bring(self) -> Iterator[tuple[Item, bool]]:
        """Each with whether it is only wished for; ends when it is closed."""
        while True:
            with self._changed:
                while not self._closed and not self._urgent and not self._wish_is_due():
                    self._changed.wait(self._rest_of_pause())
                if self._closed:
                    return
                wished = not self._urgent
                item = (self._wishes if wished else self._urgent).popleft()
                if wished and item in self._flights:
                    continue
                self._flights.setdefault(item, Future())
            yield item, wished

    def _wish_is_due(self) -> bool:
        return bool(self._wishes) and self._rest_of_pause() is None

    def _rest_of_pause(self) -> float | None:
        left = self._wishes_rest_until - self._clock.monotonic()
        return left if left > 0 else None

    def _wish_ended(self, item: Item, has_room: bool, trouble: Exception | None) -> None:
        """One that failed is tried again later, and the others wait with it: mostly it is the store
        that is away. One that will never come fails again, aloud, when it is waited for."""
        if not has_room:
            self._wishes.clear()
        if isinstance(trouble, OSError) and not is_final(trouble):
            if self._rest_of_pause() is None:  # else it failed together with another one
                self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LONGEST_PAUSE_SECONDS)
                self._wishes_rest_until = self._clock.monotonic() + self._pause
            self._wishes.append(item)
            self._changed.notify_all()
        elif trouble is None and self._pause:
            self._pause = 0.0
            self._wishes_rest_until = self._clock.monotonic()
            self._changed.notify_all()
