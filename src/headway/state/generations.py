"""Each start of a run: its generation number and its first step.

The number is a fence: a worker of an older generation that is still alive can keep writing, but
readers ignore what it wrote beyond the first step of the next generation.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Literal

from pydantic import ValidationError

from headway.clock import stamp
from headway.errors import BadInput, StillRunning
from headway.spec.section import Section
from headway.state.run_directory import RunDirectory

FOLDER = "generations"
RECORD = re.compile(r"/[0-9]{6,}\.json$")


class GenerationStart(Section):
    version: Literal[1] = 1
    """Version of this record."""
    generation: int
    """Generation number, from 1."""
    first_step: int
    """Steps committed before it began."""
    workers: int
    """Number of workers."""
    began: str
    """Time of the start."""


def generations(directory: RunDirectory) -> list[GenerationStart]:
    """All starts, oldest first."""
    return [_read(directory, name) for name in _names(directory)]


def next_generation(directory: RunDirectory) -> int:
    return max((int(PurePath(name).stem) for name in _names(directory)), default=0) + 1


def begin_generation(
    directory: RunDirectory, number: int, first_step: int, workers: int, began: float
) -> None:
    """Records the start, before its first step. Two starts cannot have the same number."""
    record = GenerationStart(
        generation=number, first_step=first_step, workers=workers, began=stamp(began)
    )
    name = f"{FOLDER}/{number:06d}.json"
    content = record.model_dump_json(indent=2).encode() + b"\n"
    if not directory.store.create(name, content) and directory.store.read(name) != content:
        raise StillRunning(
            f"run {directory.name}: generation {number} was started elsewhere at the same time",
            f"to stop the other one: headway stop {directory.as_typed}",
        )


def taken_over_by(known: list[GenerationStart], number: int) -> GenerationStart | None:
    """The later generation with the earliest first step: steps of `number` beyond it were repeated.
    Usually the next generation; a later one, if it found damaged checkpoints."""
    later = [one for one in known if one.generation > number]
    return min(later, key=lambda one: (one.first_step, one.generation), default=None)


def _names(directory: RunDirectory) -> list[str]:
    return [name for name in directory.store.names(FOLDER) if RECORD.search(name)]


def _read(directory: RunDirectory, name: str) -> GenerationStart:
    try:
        return GenerationStart.model_validate_json(directory.store.read(name))
    except ValidationError as error:
        where, what = directory.store.location(name), error.errors()[0]["msg"]
        raise BadInput(f"{where} is damaged: {what}") from None
