"""The object store in memory, with each request counted as a real one would be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from support.fake_s3 import FakeS3, fake_s3

REQUESTS = ("pipe_file", "cat_file", "ls", "find", "glob", "info", "rm", "open")
PAGE_KEYS = 1000
"""Of one listing's request."""


class Requests:
    def __init__(self) -> None:
        self.num = 0
        self.num_bytes = 0
        """That were read, and names that were listed, at 100 each."""
        self._inside = threading.local()
        self._lock = threading.Lock()

    def during(self, call: Callable[[], object]) -> tuple[int, int]:
        """Requests and bytes of a call."""
        num, num_bytes = self.num, self.num_bytes
        call()
        return self.num - num, self.num_bytes - num_bytes

    def counting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(files: FakeS3, *arguments: Any, **options: Any) -> Any:
            if getattr(self._inside, "is_so", False):
                return method(files, *arguments, **options)
            self._inside.is_so = True
            found: Any = b""
            try:
                found = method(files, *arguments, **options)
                return found
            finally:
                self._inside.is_so = False
                names = len(found) if isinstance(found, list | dict) else 0
                with self._lock:
                    self.num += 1 + names // PAGE_KEYS
                    self.num_bytes += 100 * names + (len(found) if type(found) is bytes else 0)

        return counted


@contextmanager
def counted_s3() -> Iterator[Requests]:
    requests = Requests()
    with fake_s3() as s3:
        for name in REQUESTS:
            setattr(s3, name, requests.counting(getattr(s3, name)))
        yield requests
