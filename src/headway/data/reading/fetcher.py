"""Threads that fetch items: first those that a reader waits for, then those to prefetch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Generic, TypeVar

from headway.clock import Clock
from headway.data.retry import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    READ_SECONDS,
    is_final,
)

NUM_THREADS = 8
"""Number of parallel requests. A request of 2 MiB takes about 50 ms on S3: about 300 MB/s."""
CLOSE_SECONDS = 5.0

Item = TypeVar("Item", bound=Hashable)


class Fetcher(Generic[Item]):
    """`fetch(item, is_prefetch)` fetches one item and returns whether there was room for it; it
    raises OSError if a retry may help. Threads start with the first item and end with `close`; they
    do not keep the process from exiting."""

    def __init__(self, fetch: Callable[[Item, bool], bool], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._changed = Condition()
        # Items that are waited for or being fetched; no thread is fetching the urgent ones yet.
        self._pending: dict[Item, Future[None]] = {}
        self._urgent: deque[Item] = deque()
        self._prefetches: deque[Item] = deque()
        self._prefetch_after = clock.monotonic()
        self._pause = 0.0
        self._threads: list[Thread] = []
        self._closed = False

    def is_closed(self) -> bool:
        return self._closed

    def wait_for(self, items: Iterable[Item]) -> None:
        """Returns when all items are fetched; after all have ended, raises the error if one
        failed."""
        futures = [self._request(item) for item in items]
        deadline = self._clock.monotonic() + READ_SECONDS
        errors = []
        for future in futures:
            try:
                future.result(timeout=max(0.0, deadline - self._clock.monotonic()))
            except OSError as error:
                if not future.done():
                    raise TimeoutError("the store does not answer") from None
                errors.append(error)
        if errors:
            raise next((error for error in errors if is_final(error)), errors[0])

    def prefetch(self, items: Iterable[Item]) -> None:
        """Replaces the items to prefetch."""
        with self._changed:
            self._prefetches = deque(items)
            self._start_threads()
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._prefetches.clear()
            for item in self._urgent:
                self._pending.pop(item).set_exception(OSError("the set was closed"))
            self._urgent.clear()
            self._changed.notify_all()
        deadline = self._clock.monotonic() + CLOSE_SECONDS
        for thread in self._threads:  # a request that hangs is abandoned
            thread.join(max(0.0, deadline - self._clock.monotonic()))

    def _request(self, item: Item) -> Future[None]:
        with self._changed:
            if self._closed:
                raise OSError("the set was closed")
            future = self._pending.get(item)
            if future is None:
                future = self._pending[item] = Future()
                self._urgent.append(item)
                self._start_threads()
                self._changed.notify()
            return future

    def _start_threads(self) -> None:
        if not self._threads and not self._closed:
            self._threads = [
                Thread(target=self._work, name="fetcher", daemon=True) for _ in range(NUM_THREADS)
            ]
            for thread in self._threads:
                thread.start()

    def _work(self) -> None:
        for item, is_prefetch in self._items_to_fetch():
            has_room, trouble = True, None
            try:
                has_room = self._fetch(item, is_prefetch)
            except Exception as error:  # noqa: BLE001 - raised where the item is waited for
                trouble = error
            with self._changed:
                future = self._pending.pop(item)
                if is_prefetch:
                    self._prefetch_ended(item, has_room, trouble)
            if trouble is None:
                future.set_result(None)
            else:
                future.set_exception(trouble)

    def _items_to_fetch(self) -> Iterator[tuple[Item, bool]]:
        """The next items, each with whether it is a prefetch; ends with `close`."""
        while True:
            with self._changed:
                while not self._closed and not self._urgent and not self._prefetch_is_due():
                    self._changed.wait(self._rest_of_pause())
                if self._closed:
                    return
                is_prefetch = not self._urgent
                item = (self._prefetches if is_prefetch else self._urgent).popleft()
                if is_prefetch and item in self._pending:
                    continue
                self._pending.setdefault(item, Future())
            yield item, is_prefetch

    def _prefetch_is_due(self) -> bool:
        return bool(self._prefetches) and self._rest_of_pause() is None

    def _rest_of_pause(self) -> float | None:
        left = self._prefetch_after - self._clock.monotonic()
        return left if left > 0 else None

    def _prefetch_ended(self, item: Item, has_room: bool, trouble: Exception | None) -> None:
        """A failed prefetch is retried later, and the others wait too: usually the store is not
        answering. One that can never succeed raises its error when a reader waits for it."""
        if not has_room:
            self._prefetches.clear()
        if isinstance(trouble, OSError) and not is_final(trouble):
            if self._rest_of_pause() is None:  # else another one failed at the same time
                self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LONGEST_PAUSE_SECONDS)
                self._prefetch_after = self._clock.monotonic() + self._pause
            self._prefetches.append(item)
            self._changed.notify_all()
        elif trouble is None and self._pause:
            self._pause = 0.0
            self._prefetch_after = self._clock.monotonic()
            self._changed.notify_all()
