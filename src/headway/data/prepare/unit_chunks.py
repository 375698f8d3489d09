"""The chunks of a unit, from all its pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from headway.data.formats.chunks import Chunk
from headway.data.formats.readers import file_chunks
from headway.data.prepare.recipe import Recipe, SourceRange, SourceUnit
from headway.data.prepare.sources import HUB


class SourcePosition:
    """How far reading has come, in bytes of source."""

    def __init__(self) -> None:
        self.before = 0
        """Bytes of the finished pieces."""
        self.inside = 0
        """Bytes read of the current piece."""

    @property
    def bytes(self) -> int:
        return self.before + self.inside


def unit_chunks(unit: SourceUnit, recipe: Recipe, position: SourcePosition) -> Iterator[Chunk]:
    for source in unit.ranges:
        position.inside = 0
        yield from _range_chunks(source, recipe, _mover(position, source))
        position.before += position.inside
        position.inside = 0


def _mover(position: SourcePosition, source: SourceRange) -> Callable[[int], None]:
    def move(at: int) -> None:
        position.inside = max(0, at - source.begin)

    return move


def _range_chunks(
    source: SourceRange, recipe: Recipe, move: Callable[[int], None]
) -> Iterator[Chunk]:
    columns = recipe.settings.columns
    if source.file.startswith(HUB):
        from headway.data.formats.hub import hub_chunks

        yield from hub_chunks(source.file, source.part or 0, columns)
        return
    yield from file_chunks(
        source.file,
        Path(recipe.beside),
        source.begin,
        source.end,
        columns=columns,
        anonymous=recipe.anonymous,
        position=move,
    )
