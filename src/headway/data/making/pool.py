"""Chunks to tokens on all cores, in the order they came, with a bounded number on their way."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headway.data.formats.chunks import Chunk
from headway.data.making.encode import Encoded, Encoder
from headway.data.making.recipe import Recipe
from headway.errors import HeadwayError

AHEAD = 3
"""Chunks on their way for each process: it never waits, and memory stays small."""

Task = tuple[Any, Chunk | None]
"""What the caller wants back beside the tokens, and a chunk; None passes through in its turn."""


class EncoderPool:
    """`processes` of 1 works in this process, with the tokenizer's own threads."""

    def __init__(self, recipe: Recipe, tokenizer_folder: Path, processes: int) -> None:
        self._executor: ProcessPoolExecutor | None = None
        self._limit = processes * AHEAD
        # Made here in any case: what is wrong with it is said once, and not by a dying process.
        self._encoder = Encoder(recipe, tokenizer_folder)
        if processes > 1:
            # A server that is forked from: tokenizers and numpy are imported once.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["headway.data.making.encode"])
            self._executor = ProcessPoolExecutor(
                processes, context, initializer=_begin, initargs=(recipe, tokenizer_folder)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def encode(self, tasks: Iterator[Task]) -> Iterator[tuple[Any, Encoded | None]]:
        if self._executor is None:
            for what, chunk in tasks:
                yield what, None if chunk is None else self._encoder.encode(chunk)
            return
        under_way: deque[tuple[Any, Future[Encoded] | None]] = deque()
        for what, chunk in tasks:
            future = None if chunk is None else self._submit(chunk)
            under_way.append((what, future))
            while len(under_way) > self._limit:
                yield self._next(under_way)
        while under_way:
            yield self._next(under_way)

    def _submit(self, chunk: Chunk) -> Future[Encoded]:
        assert self._executor is not None
        try:
            return self._executor.submit(_encode, chunk)
        except BrokenProcessPool as error:
            raise _killed() from error

    @staticmethod
    def _next(
        under_way: deque[tuple[Any, Future[Encoded] | None]],
    ) -> tuple[Any, Encoded | None]:
        what, future = under_way.popleft()
        try:
            return what, None if future is None else future.result()
        except BrokenProcessPool as error:
            raise _killed() from error


def _killed() -> HeadwayError:
    return HeadwayError(
        "a tokenising process was killed",
        "out of memory? --processes with fewer; the same command goes on where it stopped",
    )


_encoder: Encoder


def _begin(recipe: Recipe, tokenizer_folder: Path) -> None:
    """In each new process."""
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    threading.Thread(target=end_with_parent, daemon=True).start()
    _encoder = Encoder(recipe, tokenizer_folder)


def end_with_parent() -> None:
    """A parent that is killed cannot tell its processes to end; they would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(chunk: Chunk) -> Encoded:
    return _encoder.encode(chunk)
