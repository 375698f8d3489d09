"""What the bench asks of a system: it trains the same model on the machines of a scenario, and is
struck and watched from outside. And the notes of those that are not Headway."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bench.faults.order import samples_of_step
from bench.faults.scenarios import Scenario
from support.fault_judge import Trained


class System(Protocol):
    def __init__(self, folder: Path, scenario: Scenario, binaries: Path) -> None: ...

    def lines(self) -> list[Trained]:
        """Steps committed so far."""
        ...

    def num_samples(self) -> int:
        """Samples of an epoch."""
        ...

    def redone_steps(self) -> int:
        """Steps that were committed, and had to be committed again."""
        ...

    def is_whole(self) -> bool:
        """Whether all workers took part in the newest step."""
        ...

    def strike(self, machines: tuple[int, ...]) -> tuple[float, int]:
        """Kills all workers there: when, and how many."""
        ...

    def keep(self) -> None:
        """As whatever runs the machines does: starts again what has ended there."""
        ...

    def settings(self) -> dict[str, Any]:
        """What a reader needs to know of it."""
        ...

    def end(self) -> None: ...


class Note(NamedTuple):
    """A line that a worker wrote when it had committed a step."""

    time: float
    step: int
    generation: int | str
    part: int
    samples: tuple[tuple[int, int], ...]
    pid: int


def notes(folder: Path) -> list[Note]:
    found = []
    for path in folder.glob("part-*-*.jsonl"):
        pid = int(path.stem.rpartition("-")[2])
        for line in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):  # half of one, at a kill
                at, step, generation, part, samples = json.loads(line)
                samples = tuple(tuple(one) for one in samples)
                found.append(Note(at, step, generation, part, samples, pid))
    return found


def lines_of_parts(some: list[Note]) -> list[Trained]:
    """Return a line for each part, for systems whose parts of the samples never change."""
    numbers = _numbered(some)
    return [
        Trained(one.time, one.step, numbers[one.generation], one.part, one.samples) for one in some
    ]


def lines_of_steps(some: list[Note]) -> list[Trained]:
    """Return a line for each step, for systems that divide the batch anew. One worker that has
    committed it is enough: the sum that it had holds all parts."""
    numbers = _numbered(some)
    found: dict[tuple[int, int], Trained] = {}
    for one in sorted(some):
        epoch, samples = samples_of_step(one.step)
        key = (one.step, numbers[one.generation])
        whole = tuple((epoch, number) for number in samples)
        found.setdefault(key, Trained(one.time, *key, 0, whole))
    return list(found.values())


def _numbered(some: list[Note]) -> dict[int | str, int]:
    """Number the generations in the order of their first notes."""
    order = dict.fromkeys(one.generation for one in sorted(some, key=lambda one: one.time))
    return {generation: number for number, generation in enumerate(order)}


def all_take_part(some: list[Note], workers: int) -> bool:
    """Return whether all took part in the newest step but one, just now."""
    newest = max((one.step for one in some), default=0)
    parts = {one.part for one in some if one.step == newest - 1}
    return len(parts) == workers and any(time.time() - one.time < 10 for one in some)


def kill(pids: list[int]) -> tuple[float, int]:
    """When, and how many there were."""
    at, killed = time.time(), 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return at, killed


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
