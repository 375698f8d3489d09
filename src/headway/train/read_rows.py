"""Rows of stored tensors, read into memory: each byte once, several ranges at the same time, and
verified by the digests of its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from headway.state.checkpoints import StoredTensor
from headway.state.store import Store
from headway.state.stored_file import StoredFile, WholeFile, verified_reads
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
        ranges = [(piece.start, piece.end) for piece in pieces]
        unfinished = 0
        for at, content in verified_reads(store, f"{folder}/{file}", ranges, files.get(file)):
            while pieces[unfinished].end <= at:
                unfinished += 1
            for piece in pieces[unfinished:]:
                if piece.start >= at + len(content):
                    break
                piece.put(at, content)
        assert all(piece.is_filled for piece in pieces), f"{folder}/{file} ends early"


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

    def put(self, at: int, content: bytes) -> None:
        """The part of it that is in `content`, which is from `at` on in the file."""
        first, last = max(self.start, at), min(self.end, at + len(content))
        if first >= last:
            return
        if self._bytes is None:
            self._bytes = self._memory()
        part = memoryview(content)[first - at : last - at]
        place = self._bytes[first - self.start : last - self.start]
        if place.device.type == "cpu":
            place.numpy()[:] = np.frombuffer(part, dtype=np.uint8)
        else:
            place.copy_(torch.frombuffer(bytearray(part), dtype=torch.uint8))
        self._missing -= last - first
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
