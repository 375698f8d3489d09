"""The schedules of faults: the same ones, at the same times, for every system."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    name: str
    words: str
    machines: int
    workers_each: int
    """Workers of one machine, which are lost with it."""
    period_seconds: float
    """Time between two faults."""
    victims: int
    """Machines that lose their workers at once."""
    loses_machines: bool = False
    """Whether whatever starts workers there is lost, too. Another machine is there at once."""

    @property
    def workers(self) -> int:
        return self.machines * self.workers_each


@dataclass(frozen=True)
class PlannedFault:
    at: float
    """Seconds from the end of the calm time."""
    machines: tuple[int, ...]


SCENARIOS = {
    one.name: one
    for one in (
        Scenario("minute", "one worker every minute", 4, 1, 60.0, 1),
        Scenario("15s", "one worker every 15 s", 4, 1, 15.0, 1),
        Scenario("half", "half of the workers every minute", 8, 1, 60.0, 4),
        Scenario("machine", "a machine with two workers every minute", 2, 2, 60.0, 1, True),
    )
}


def schedule(scenario: Scenario, seconds: float, seed: int) -> list[PlannedFault]:
    """In the middle of each period, so that the last one has time to cost what it costs."""
    chance = random.Random(f"{seed}/{scenario.name}")
    faults = []
    for number in range(int(seconds / scenario.period_seconds)):
        chosen = chance.sample(range(scenario.machines), scenario.victims)
        at = (number + 0.5) * scenario.period_seconds
        faults.append(PlannedFault(at, tuple(sorted(chosen))))
    return faults
