"""One thread that does beforehand what will be needed next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

CLOSE_SECONDS = 5.0

Made = TypeVar("Made")


class Ahead:
    """The thread starts with the first work, and never keeps the process from ending."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(self, work: Callable[[], Made]) -> Future[Made]:
        """What it makes; an error of the work is raised where the result is asked for."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="ahead", daemon=True)
            self._thread.start()
        made: Future[Made] = Future()
        self._work.put((made, work))
        return made

    def close(self) -> None:
        self._work.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            made, work = task
            try:
                made.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                made.set_exception(error)
            del task, made, work  # a batch is large, and the next task may be long in coming
