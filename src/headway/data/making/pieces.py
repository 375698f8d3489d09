"""The chunks of a unit, out of all its pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from headway.data.formats.chunks import Chunk
from headway.data.formats.readers import file_chunks
from headway.data.making.recipe import Piece, Recipe, Unit
from headway.data.making.sources import HUB


class Position:
    """How far reading has come, in bytes of source."""

    def __init__(self) -> None:
        self.before = 0
        """Of the pieces that are done."""
        self.inside = 0
        """Of the piece that is being read."""

    @property
    def bytes(self) -> int:
        return self.before + self.inside


def unit_chunks(unit: Unit, recipe: Recipe, position: Position) -> Iterator[Chunk]:
    for piece in unit.pieces:
        position.inside = 0
        yield from _piece_chunks(piece, recipe, _mover(position, piece))
        position.before += position.inside
        position.inside = 0


def _mover(position: Position, piece: Piece) -> Callable[[int], None]:
    def move(at: int) -> None:
        position.inside = max(0, at - piece.begin)

    return move


def _piece_chunks(piece: Piece, recipe: Recipe, move: Callable[[int], None]) -> Iterator[Chunk]:
    columns = recipe.settings.columns
    if piece.file.startswith(HUB):
        from headway.data.formats.hub import hub_chunks

        yield from hub_chunks(piece.file, piece.part or 0, columns)
        return
    yield from file_chunks(
        piece.file,
        Path(recipe.beside),
        piece.begin,
        piece.end,
        columns=columns,
        anonymous=recipe.anonymous,
        position=move,
    )
