"""A coordinator that is killed again and again while members come and go, and what must hold."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import Generation
from support.coordinator_process import CoordinatorProcess
from support.member_client import Member
from support.waiting import until

STAYERS = 5
FIND_SECONDS = 2.0


@dataclass
class Killed:
    kills: int = 0
    generations: int = 0
    start_seconds: list[float] = field(default_factory=list)
    find_seconds: list[float] = field(default_factory=list)
    """From the moment the coordinator serves again to the last member's welcome."""
    away_seconds: list[float] = field(default_factory=list)
    """The same from the kill."""


class _Churn:
    """Members that come and go; those that stay must never be out."""

    def __init__(self, coordinator: CoordinatorProcess, chance: random.Random) -> None:
        self.coordinator, self.chance = coordinator, chance
        self.heard: dict[int, Generation] = {}
        self.all: list[Member] = []
        self.stayers = [self.come(f"stays-{index}") for index in range(STAYERS)]
        self.others: list[Member] = []

    def come(self, name: str) -> Member:
        coordinator = self.coordinator
        member = Member(
            coordinator.address, coordinator.key, coordinator.run, name, on_heard=self._on_heard
        ).start()
        self.all.append(member)
        return member

    def _on_heard(self, member: Member, number: int) -> None:
        generation = member.follower.newest
        known = self.heard.setdefault(number, generation)
        assert known == generation, f"generation {number} is not the same for all"

    async def change(self) -> None:
        """Somebody comes, goes, says goodbye, or is cut off and connects again."""
        what = self.chance.randrange(5)
        if what == 0 or not self.others:
            self.others.append(self.come(f"comes-{len(self.all)}"))
        elif what == 1:
            await self.others.pop(self.chance.randrange(len(self.others))).stop()
        elif what == 2 and self.others[0].is_welcome:
            await self.others.pop(0).leave()
        elif what == 3 and self.others[0].is_welcome:
            self.others[0].follower.leave()
            self.others[0].heartbeat()
        else:
            self.chance.choice(self.stayers).cut()


def _have_connected(members: list[Member], since: float) -> bool:
    return all(member.connects and member.connects[-1] > since for member in members)


async def kill_again_and_again(folder: Path, kills: int, seed: int) -> Killed:
    chance = random.Random(seed)
    told = Killed()
    with CoordinatorProcess(folder, Rules(max_domains=64)) as coordinator:
        churn = _Churn(coordinator, chance)
        await until(lambda: all(m.follower.status.healed for m in churn.stayers), 20, "a start")
        for _ in range(kills):
            end = time.monotonic() + chance.choice([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
            while time.monotonic() < end:
                await churn.change()
                await asyncio.sleep(chance.uniform(0.02, 0.5))
            # Into a decision, its record or its announcement, as often as not.
            await churn.change()
            await asyncio.sleep(chance.uniform(0.0, 0.4))
            coordinator.kill()
            killed = time.monotonic()
            told.kills += 1
            await coordinator.start_aside()
            serving = time.monotonic()
            told.start_seconds.append(coordinator.start_seconds)
            waiting = [*churn.stayers, *churn.others]
            await until(
                partial(_have_connected, waiting, killed),
                20,
                "members to find it again",
            )
            last = max(member.connects[-1] for member in waiting)
            told.find_seconds.append(last - serving)
            told.away_seconds.append(last - killed)
        for member in churn.others:
            await member.stop()
        stays = {member.name for member in churn.stayers}
        await until(
            lambda: all(
                set(member.follower.newest.workers()) == stays
                and member.follower.status.healed == member.follower.newest.number
                for member in churn.stayers
            ),
            30,
            "those who stayed to be alone",
        )
        assert (await coordinator.state())["incarnation"] == kills + 1
        for member in churn.stayers:
            assert member.evicted == [], f"{member.name} was out, and had answered"
        for member in churn.all:
            numbers = list(member.heard)
            assert numbers == sorted(numbers)
            assert not member.errors, member.errors
        told.generations = max(churn.heard)
        for member in churn.all:
            await member.stop()
    return told
