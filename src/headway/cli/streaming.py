"""Preparing in the background while a run trains on what is finished."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headway.cli.output import say, short_count
from headway.cli.progress import MovingLine
from headway.clock import SystemClock
from headway.data.making.pool import end_with_parent
from headway.data.making.prepare import Job, prepare
from headway.data.making.recipe import RECIPE
from headway.data.reading.growing import FAILED, GrowingSet
from headway.data.reading.tokenset import TokenSet
from headway.errors import HeadwayError, RunFailed
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.data.reading.sets import SampleSet

POLITENESS = 10
"""Training goes first: it is what people wait for."""
SHOW_SECONDS = 0.5
END_SECONDS = 10.0


class Preparation:
    """Another process that prepares; ends with this one, and goes on at the next start."""

    def __init__(self, job: Job) -> None:
        self.job = replace(job, settings=job.settings.model_copy(update={"in_sequence": True}))
        Store(job.into).remove(FAILED)
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_prepare, args=(self.job,))
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """What is finished is kept; a preparation that has not ended by now is not waited for."""
        self._process.terminate()
        self._process.join(END_SECONDS)

    def wait_until_begun(self) -> None:
        """Until the tokenizer is there: other sets may need it."""
        store = Store(self.job.into)
        line = MovingLine()
        while store.size(RECIPE) is None:
            self._raise_if_failed(store)
            line.show("preparing train: reading the list of sources")
            time.sleep(SHOW_SECONDS)
        line.close()

    def _raise_if_failed(self, store: Store) -> None:
        if store.size(FAILED) is not None:
            raise RunFailed(f"preparing failed: {store.read(FAILED).decode()}")
        if not self._process.is_alive() and self._process.exitcode:
            raise RunFailed(f"preparing ended with exit code {self._process.exitcode}")


def wait_for_first_samples(samples: SampleSet, sequence_length: int) -> None:
    """Of a set that is still being prepared; and says of any set that is read in sequence that it
    is: that is part of what the run is."""
    if not isinstance(samples, GrowingSet | TokenSet) or not samples.in_sequence:
        return
    going_on = ""
    if isinstance(samples, GrowingSet):
        going_on = _waited_for(samples, sequence_length)
    say(
        f"training starts{going_on}: samples come in the order of the sources, mixed within "
        f"windows of {short_count(samples.section_tokens)} tokens"
    )


def _waited_for(samples: GrowingSet, sequence_length: int) -> str:
    """How far the preparation is when there is enough to begin with."""
    line = MovingLine()

    def show() -> None:
        line.show(
            f"waiting for the first {short_count(samples.section_tokens)} tokens: "
            f"{short_count(samples.num_tokens)} are prepared"
        )

    samples.wait_for(1, sequence_length, show)
    line.close()
    done, units = samples.progress
    return "" if done == units else f" while the data is being prepared ({done} of {units} done)"


def _prepare(job: Job) -> None:
    """In the other process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent decides
    os.nice(POLITENESS)
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        prepare(job, lambda _: None, SystemClock())
    except HeadwayError as error:
        Store(job.into).write(FAILED, str(error).encode())
        raise SystemExit(int(error.exit_code)) from None
