"""Encodes chunks on all cores, in order, with a bounded number in flight."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Self

from headway.data.formats.chunks import Chunk
from headway.data.prepare.encode import EncodedChunk, Encoder
from headway.data.prepare.recipe import Recipe
from headway.errors import HeadwayError

AHEAD = 3
"""Chunks in flight per process: enough to keep all processes busy, few enough to bound memory."""

Task = tuple[Any, Chunk | None]
"""A value that is returned with the tokens, and a chunk; None is passed through in order."""


class EncoderPool:
    """Encodes in several processes; with one, in this process, with the tokenizer's own threads."""

    def __init__(self, recipe: Recipe, tokenizer_folder: Path, processes: int) -> None:
        self._executor: ProcessPoolExecutor | None = None
        self._limit = processes * AHEAD
        # Always created here, so that its errors are raised once and in this process.
        self._encoder = Encoder(recipe, tokenizer_folder)
        if processes > 1:
            # The fork server imports tokenizers and numpy once for all processes.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["headway.data.prepare.encode"])
            self._executor = ProcessPoolExecutor(
                processes, context, initializer=_begin, initargs=(recipe, tokenizer_folder)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def encode(self, tasks: Iterator[Task]) -> Iterator[tuple[Any, EncodedChunk | None]]:
        if self._executor is None:
            for what, chunk in tasks:
                yield what, None if chunk is None else self._encoder.encode(chunk)
            return
        under_way: deque[tuple[Any, Future[EncodedChunk] | None]] = deque()
        for what, chunk in tasks:
            future = None if chunk is None else self._submit(chunk)
            under_way.append((what, future))
            while len(under_way) > self._limit:
                yield self._next(under_way)
        while under_way:
            yield self._next(under_way)

    def _submit(self, chunk: Chunk) -> Future[EncodedChunk]:
        assert self._executor is not None
        try:
            return self._executor.submit(_encode, chunk)
        except BrokenProcessPool as error:
            raise _killed() from error

    @staticmethod
    def _next(
        under_way: deque[tuple[Any, Future[EncodedChunk] | None]],
    ) -> tuple[Any, EncodedChunk | None]:
        what, future = under_way.popleft()
        try:
            return what, None if future is None else future.result()
        except BrokenProcessPool as error:
            raise _killed() from error


def _killed() -> HeadwayError:
    return HeadwayError(
        "a tokenising process was killed",
        "if memory ran out, use fewer --processes; run the same command to resume. In a script of "
        'yours, call run() below `if __name__ == "__main__":`',
    )


_encoder: Encoder


def _begin(recipe: Recipe, tokenizer_folder: Path) -> None:
    """Initialises each new process."""
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    threading.Thread(target=end_with_parent, daemon=True).start()
    _encoder = Encoder(recipe, tokenizer_folder)


def end_with_parent() -> None:
    """Exits when the parent is gone: a killed parent cannot stop its processes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(chunk: Chunk) -> EncodedChunk:
    return _encoder.encode(chunk)
