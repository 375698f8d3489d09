"""Thousands of sessions with one coordinator, for pods that run in name only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from threading import Event, Thread

from cluster_tool.commands import run as command
from cluster_tool.commands import try_to
from cluster_tool.kwok import ADDRESSES
from support.member_client import Member, are_one_group
from support.waiting import until, wait_for

COMING_AT_ONCE = 250
"""More would be waited for by the coordinator for longer than it takes to open them."""


class Sessions:
    """Of all pods of a run with its coordinator, each from its own address."""

    def __init__(
        self, coordinator: tuple[str, int], key: bytes, run: str, pods: Mapping[str, str]
    ) -> None:
        """`pods`: the address of each, by name."""
        self._coordinator, self._key, self._run = coordinator, key, run
        self._pods = dict(pods)
        self._members: list[Member] = []
        self._are_in, self._is_over = Event(), Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=lambda: asyncio.run(self._live()), daemon=True)

    @property
    def lost(self) -> int:
        return sum(len(member.lost) for member in self._members)

    def __enter__(self) -> Sessions:
        command("ip", "route", "add", "local", ADDRESSES, "dev", "lo")
        self._thread.start()
        try:
            wait_for("the sessions", self._are_in.is_set, 60.0 + len(self._pods) / 10)
            assert self._error is None, self._error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)
        try_to("ip", "route", "delete", "local", ADDRESSES, "dev", "lo")

    async def _live(self) -> None:
        try:
            await self._come()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._are_in.set()
        while not self._is_over.is_set():
            await asyncio.sleep(0.2)
        for member in self._members:
            await member.stop()

    async def _come(self) -> None:
        pods = list(self._pods.items())
        for first in range(0, len(pods), COMING_AT_ONCE):
            for name, address in pods[first : first + COMING_AT_ONCE]:
                member = Member(
                    self._coordinator, self._key, self._run, f"{name}.1/0", source=address
                )
                self._members.append(member.start())
            await until(lambda: all(one.is_welcome for one in self._members), 60, "a welcome")
        await until(lambda: are_one_group(self._members), 60, "a generation with all of them")
