"""Each start of a run: its generation number and its first step.

The number is a fence: a worker of an older generation that is still alive can keep writing, but
readers ignore what it wrote beyond the first step of the next generation.

    generations/0123/012345.json    one start: these are the record, and stay
    generations/0123/fences.json    first steps of this hundred, once two later hundreds have begun
    generations/fences.json         the lowest of each such hundred, and all first steps since

The last two are made of the first, so that a long run's need not be read one by one. Without them
all are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import ValidationError

from headway.clock import stamp
from headway.errors import BadInput, StillRunning
from headway.spec.section import Section
from headway.state.numbered_files import FOLDER_FILES, NumberedFiles
from headway.state.run_directory import RunDirectory
from headway.state.store import NUM_REQUESTS, in_parallel

FOLDER = "generations"
FENCES = "fences.json"
FENCES_VERSION = 1


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


class Begun(Protocol):
    """What fencing needs of a start."""

    @property
    def generation(self) -> int: ...

    @property
    def first_step(self) -> int: ...


class Fence(NamedTuple):
    generation: int
    first_step: int


def generations(directory: RunDirectory) -> list[GenerationStart]:
    """All starts, oldest first: one request for each."""
    return _read_all(directory, _files(directory).all().values())


def generation_numbers(directory: RunDirectory) -> list[int]:
    return list(_files(directory).all())


def next_generation(directory: RunDirectory) -> int:
    return _files(directory).newest() + 1


def begin_generation(
    directory: RunDirectory, number: int, first_step: int, workers: int, began: float
) -> None:
    """Records the start, before its first step. Two starts cannot have the same number."""
    record = GenerationStart(
        generation=number, first_step=first_step, workers=workers, began=stamp(began)
    )
    name = _files(directory).name(number)
    content = record.model_dump_json(indent=2).encode() + b"\n"
    if not directory.store.create(name, content) and directory.store.read(name) != content:
        raise StillRunning(
            f"run {directory.name}: generation {number} was started elsewhere at the same time",
            f"to stop the other one: headway stop {directory.as_typed}",
        )


def taken_over_by(known: Sequence[Begun], number: int) -> Begun | None:
    """The later generation with the earliest first step: steps of `number` beyond it were repeated.
    Usually the next generation; a later one, if it found damaged checkpoints."""
    later = [one for one in known if one.generation > number]
    return min(later, key=lambda one: (one.first_step, one.generation), default=None)


class Fences:
    """First steps of a run's generations. One that is kept reads each of them once."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._files = _files(directory)
        self._through: int | None = None
        """The newest generation that is known; None: nothing was read yet."""
        self._written = 0
        """As above, in the store's own summary."""
        self._lowest: dict[int, Fence] = {}
        """Of each hundred that is not in `_recent`."""
        self._recent: list[Fence] = []
        self._hundreds: dict[int, list[Fence]] = {}
        """First steps of hundreds that were asked for. They do not change any more."""

    def of(self, numbers: Iterable[int]) -> list[Fence]:
        """Those that `taken_over_by` needs for what generations with these numbers wrote. Reads
        what has begun since the last call."""
        self._look()
        asked = {number // FOLDER_FILES for number in numbers} & set(self._lowest)
        found: list[Fence] = []
        for hundred, lowest in sorted(self._lowest.items()):
            found += self._hundred(hundred) if hundred in asked else [lowest]
        return found + self._recent

    def summarize(self) -> None:
        """Writes what later readers then need not read one by one. May be interrupted anywhere:
        the starts themselves stay, and a summary that is older is only more to read."""
        self._look()
        assert self._through is not None
        if self._written >= self._through:
            return
        store, current = self._directory.store, self._through // FOLDER_FILES
        for hundred in sorted({one.generation // FOLDER_FILES for one in self._recent}):
            if hundred + 1 < current:
                mine = [one for one in self._recent if one.generation // FOLDER_FILES == hundred]
                if not store.create(self._hundred_name(hundred), _encoded({"begun": mine})):
                    mine = self._hundred(hundred)  # whoever was first, decides
                self._lowest[hundred] = min(mine, key=lambda one: (one.first_step, one.generation))
                self._recent = [
                    one for one in self._recent if one.generation // FOLDER_FILES != hundred
                ]
        summary = {
            "through": self._through,
            "lowest": list(self._lowest.values()),
            "recent": self._recent,
        }
        store.write(f"{FOLDER}/{FENCES}", _encoded(summary))
        self._written = self._through

    def _look(self) -> None:
        if self._through is None:
            self._read_summary()
        assert self._through is not None
        new = self._files.after(self._through)
        starts = _read_all(self._directory, new.values())
        self._recent += [Fence(start.generation, start.first_step) for start in starts]
        self._through = max([self._through, *new])

    def _read_summary(self) -> None:
        self._through = 0
        try:
            found = _decoded(self._directory.store.read(f"{FOLDER}/{FENCES}"))
            through = int(found["through"])
            lowest, recent = _fences(found["lowest"]), _fences(found["recent"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return  # it is made of what can be read one by one
        self._through = self._written = through
        self._lowest = {one.generation // FOLDER_FILES: one for one in lowest}
        self._recent = recent

    def _hundred(self, hundred: int) -> list[Fence]:
        if hundred not in self._hundreds:
            name = self._hundred_name(hundred)
            try:
                found = _fences(_decoded(self._directory.store.read(name))["begun"])
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                first = hundred * FOLDER_FILES
                names = _files(self._directory).after(max(0, first - 1))
                mine = [name for number, name in names.items() if number < first + FOLDER_FILES]
                found = [
                    Fence(one.generation, one.first_step)
                    for one in _read_all(self._directory, mine)
                ]
            self._hundreds[hundred] = found
        return self._hundreds[hundred]

    def _hundred_name(self, hundred: int) -> str:
        return f"{self._files.name(hundred * FOLDER_FILES).rsplit('/', 1)[0]}/{FENCES}"


def _encoded(content: dict[str, Any]) -> bytes:
    return json.dumps({"version": FENCES_VERSION, **content}).encode() + b"\n"


def _decoded(content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(content)
    if found["version"] != FENCES_VERSION:
        raise ValueError(found["version"])
    return found


def _fences(pairs: list[tuple[int, int]]) -> list[Fence]:
    return [Fence(int(generation), int(first_step)) for generation, first_step in pairs]


def _files(directory: RunDirectory) -> NumberedFiles:
    return NumberedFiles(directory.store, FOLDER, 6, ".json", is_gapless=False)


def _read_all(directory: RunDirectory, names: Iterable[str]) -> list[GenerationStart]:
    return list(in_parallel(lambda name: _read(directory, name), names, NUM_REQUESTS))


def _read(directory: RunDirectory, name: str) -> GenerationStart:
    try:
        return GenerationStart.model_validate_json(directory.store.read(name))
    except ValidationError as error:
        where, what = directory.store.location(name), error.errors()[0]["msg"]
        raise BadInput(f"{where} is damaged: {what}") from None
