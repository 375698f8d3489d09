"""Rows of stored tensors, read into memory: each byte once, several ranges at the same time, and
verified by the digests of its blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from headway.state.checkpoints import StoredTensor
from headway.state.store import Store
from headway.state.stored_file import (
    StoredFile,
    VerifiedRead,
    WholeFile,
    read_verified,
    reads_of,
)
from headway.train.safetensors_file import TORCH_DTYPES


@dataclass(frozen=True)
class WantedRows:
    """The rows from `start` on of a stored tensor, as many as `target` has."""

    target: torch.Tensor
    start: int
    stored: StoredTensor


@torch.no_grad()
def read_rows(
    wanted: Sequence[WantedRows],
    files: Mapping[str, StoredFile | WholeFile],
    store: Store,
    folder: str,
) -> None:
    """Fills all targets. Raises DamagedFile if a block that has some of their rows has not the
    digest that `files` has of it; targets may have wrong content then. A file that is not in
    `files` has no digests."""
    by_file: dict[str, list[_Piece]] = {}
    for rows in wanted:
        for file, piece in _pieces(rows, folder):
            by_file.setdefault(file, []).append(piece)
    for file, pieces in by_file.items():
        pieces.sort(key=lambda piece: piece.start)
        stored = files.get(file)
        wanted_bytes = [(piece.start, piece.end) for piece in pieces]
        reads = _Reads(pieces)
        for _ in read_verified(
            store, f"{folder}/{file}", map(reads.begin, reads_of(wanted_bytes, stored)), stored
        ):
            reads.end_oldest()
        assert all(piece.is_filled for piece in pieces), f"{folder}/{file} ends early"


class _Reads:
    """Divides what is read of a file among its pieces."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self._unfinished = deque(pieces)
        self._begun: deque[list[_Part]] = deque()

    def begin(self, span: tuple[int, int]) -> VerifiedRead:
        start, end = span
        parts, places, at = [], [], start
        while self._unfinished and self._unfinished[0].start < end:
            piece = self._unfinished[0]
            first, last = max(piece.start, start), min(piece.end, end)
            assert first >= at, "two targets want the same bytes"
            if first > at:
                places.append(memoryview(bytearray(first - at)))  # of the block, wanted by nobody
            part = piece.part(first, last)
            parts.append(part)
            places.append(part.place)
            at = last
            if piece.end > end:
                break
            self._unfinished.popleft()
        if end > at:
            places.append(memoryview(bytearray(end - at)))
        self._begun.append(parts)
        return VerifiedRead(start, places)

    def end_oldest(self) -> None:
        for part in self._begun.popleft():
            part.piece.put(part)


@dataclass(frozen=True)
class _Part:
    """Bytes from `first` on of a piece, received in `place`."""

    piece: _Piece
    first: int
    place: memoryview


class _Piece:
    """Bytes [start, end) of a file, which are rows of one target."""

    def __init__(self, start: int, target: torch.Tensor, dtype: torch.dtype) -> None:
        self.start = start
        self.end = start + target.numel() * dtype.itemsize
        self._target = target
        self._dtype = dtype
        self._missing = self.end - start
        self._bytes: torch.Tensor | None = None

    @property
    def is_filled(self) -> bool:
        return self._missing == 0

    def part(self, first: int, last: int) -> _Part:
        """Where to receive these bytes of the file: in the target itself if it is on the CPU."""
        if self._bytes is None:
            self._bytes = self._memory()
        place = self._bytes[first - self.start : last - self.start]
        if place.device.type != "cpu":
            place = torch.empty(last - first, dtype=torch.uint8)
        return _Part(self, first, place.numpy().data)

    def put(self, part: _Part) -> None:
        """A part that was received."""
        assert self._bytes is not None
        if self._bytes.device.type != "cpu":
            begin = part.first - self.start
            place = self._bytes[begin : begin + len(part.place)]
            place.copy_(torch.frombuffer(part.place, dtype=torch.uint8))
        self._missing -= len(part.place)
        if self.is_filled:
            if not self._is_direct:
                rows = self._bytes.view(self._dtype).view(self._target.shape)
                self._target.copy_(rows)
            self._bytes = None

    @property
    def _is_direct(self) -> bool:
        return self._target.dtype == self._dtype and self._target.is_contiguous()

    def _memory(self) -> torch.Tensor:
        if self._is_direct:
            return self._target.view(-1).view(torch.uint8)
        return torch.empty(self.end - self.start, dtype=torch.uint8)


def _pieces(rows: WantedRows, folder: str) -> list[tuple[str, _Piece]]:
    """A piece for each chunk that has some of the rows, with its file."""
    target, stored = rows.target, rows.stored
    if target.numel() == 0:
        return []
    dtype = TORCH_DTYPES[stored.dtype]
    row_bytes = prod(stored.shape[1:]) * dtype.itemsize
    begin, end = rows.start, rows.start + (target.shape[0] if target.ndim else 1)
    assert end <= (stored.shape[0] if stored.shape else 1)
    found, pieces = 0, []
    for chunk in stored.chunks:
        first, last = max(begin, chunk.start), min(end, chunk.start + chunk.rows)
        if first < last:
            part = target[first - begin : last - begin] if target.ndim else target
            offset = chunk.offset + (first - chunk.start) * row_bytes
            pieces.append((chunk.file, _Piece(offset, part, dtype)))
            found += last - first
    assert found == end - begin, f"{folder}: {found} of {end - begin} rows are stored"
    return pieces
