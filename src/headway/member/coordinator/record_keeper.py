"""The record of a running coordinator: claimed at the start, written for each generation, and
confirmed in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TypeVar

from headway.clock import Clock
from headway.errors import RunFailed
from headway.member.coordinator.events import GenerationWritten, WriteRefused
from headway.member.coordinator.record import Entry, GenerationRecord
from headway.member.protocol.generation import Generation, nobody

CONFIRM_SECONDS = 1.0
"""Between two checks whether another coordinator has replaced this one."""
RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 2.0
CLAIM_SECONDS = 60.0
"""For a record that is unavailable at the start; then the process ends and may be restarted."""

Result = TypeVar("Result")


async def claim(
    record: GenerationRecord, clock: Clock, log: Callable[[str], None], after: int | None = None
) -> Entry:
    """Takes the next incarnation. From then on no earlier coordinator can change the run. With
    `after`, the earlier members have all ended, and generations continue behind that number."""
    deadline = clock.monotonic() + CLAIM_SECONDS
    said = ""
    while True:
        try:
            newest = await in_thread(record.read)
            incarnation, generation = newest.incarnation + 1, newest.generation
            if after is not None:
                generation = nobody(incarnation, max(after, generation.number))
            claimed = Entry(newest.version + 1, incarnation, generation)
            if await in_thread(partial(record.swap, newest, claimed)):
                return claimed
            why = "another coordinator is starting at the same time"
        except OSError as error:
            why = str(error)
        if clock.monotonic() > deadline:
            raise RunFailed(f"the membership record cannot be written: {why}")
        if why != said:
            said = why
            log(f"the membership record cannot be written yet, retrying: {why}")
        await asyncio.sleep(RETRY_SECONDS)


async def in_thread(call: Callable[[], Result]) -> Result:
    """In a thread that does not hold the process at its end, as those of an executor do: a call to
    an unavailable store may hang for minutes."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        if not future.done():
            result()

    def work() -> None:
        try:
            outcome = partial(future.set_result, call())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            outcome = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, outcome)

    Thread(target=work, name="record", daemon=True).start()
    return await future


class RecordKeeper:
    def __init__(
        self, record: GenerationRecord, claimed: Entry, log: Callable[[str], None]
    ) -> None:
        self._record = record
        self._entry = claimed
        self._incarnation = claimed.incarnation
        self._log = log
        self._to_write: asyncio.Queue[Generation] = asyncio.Queue()

    def write_soon(self, generation: Generation) -> None:
        self._to_write.put_nowait(generation)

    async def keep(
        self,
        handle: Callable[[GenerationWritten | WriteRefused], None],
        step_down: Callable[[str], None],
    ) -> None:
        """One call at a time, and none is abandoned: it could still write later."""
        while True:
            try:
                generation = await asyncio.wait_for(self._to_write.get(), CONFIRM_SECONDS)
            except TimeoutError:
                await self._confirm(step_down)
                continue
            if await self._write(generation):
                handle(GenerationWritten(generation.number))
            else:
                handle(WriteRefused(generation.number))

    async def _write(self, generation: Generation) -> bool:
        """While the record is unavailable training continues, and the change waits here."""
        entry = Entry(self._entry.version + 1, self._incarnation, generation)
        pause = RETRY_SECONDS
        while True:
            try:
                made = await in_thread(partial(self._record.swap, self._entry, entry))
            except OSError as error:
                if pause == RETRY_SECONDS:
                    self._log(
                        f"generation {generation.number} waits: "
                        f"the membership record cannot be written, retrying: {error}"
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
                continue
            if made:
                self._entry = entry
            return made

    async def _confirm(self, step_down: Callable[[str], None]) -> None:
        """Checks whether another coordinator has replaced this one."""
        try:
            newest = await in_thread(self._record.read)
        except OSError:
            return  # logged when a change has to wait for it
        if newest.incarnation > self._incarnation:
            step_down(f"coordinator {newest.incarnation} has replaced it")
