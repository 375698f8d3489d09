"""Each start of a run: its number, and the step it began at.

The number fences: whoever of an older generation is still alive somewhere may go on writing, and
readers know that what it wrote beyond the next generation's first step does not count.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Literal

from pydantic import ValidationError

from headway.clock import stamp
from headway.errors import BadInput, StillRunning
from headway.spec.run import Section
from headway.state.rundir import RunDirectory

FOLDER = "generations"
RECORD = re.compile(r"/[0-9]{6,}\.json$")


class Generation(Section):
    version: Literal[1] = 1
    """Version of this record."""
    generation: int
    """Number, from 1."""
    first_step: int
    """Steps committed when it began."""
    workers: int
    """How many took part."""
    began: str
    """When."""


def generations(directory: RunDirectory) -> list[Generation]:
    """All that began, oldest first."""
    return [_read(directory, name) for name in _names(directory)]


def next_generation(directory: RunDirectory) -> int:
    return max((int(PurePath(name).stem) for name in _names(directory)), default=0) + 1


def begin_generation(
    directory: RunDirectory, number: int, first_step: int, workers: int, began: float
) -> None:
    """Written before its first step. Two starts cannot have the same number."""
    record = Generation(
        generation=number, first_step=first_step, workers=workers, began=stamp(began)
    )
    name = f"{FOLDER}/{number:06d}.json"
    content = record.model_dump_json(indent=2).encode() + b"\n"
    if not directory.store.create(name, content) and directory.store.read(name) != content:
        raise StillRunning(
            f"run {directory.name}: generation {number} began elsewhere at the same time",
            "stop the other one first",
        )


def taken_over_by(known: list[Generation], number: int) -> Generation | None:
    """The later generation that began at the earliest step: what `number` wrote beyond that step
    was done again. Mostly the next one; a later one, if it found checkpoints damaged."""
    later = [one for one in known if one.generation > number]
    return min(later, key=lambda one: (one.first_step, one.generation), default=None)


def _names(directory: RunDirectory) -> list[str]:
    return [name for name in directory.store.names(FOLDER) if RECORD.search(name)]


def _read(directory: RunDirectory, name: str) -> Generation:
    try:
        return Generation.model_validate_json(directory.store.read(name))
    except ValidationError as error:
        where, what = directory.store.location(name), error.errors()[0]["msg"]
        raise BadInput(f"{where} is damaged: {what}") from None
