"""Rows of stored tensors, read into memory: each byte once, several ranges at the same time, and
verified by the digests of its blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from math import prod

import torch

from headway.state.checkpoints import StoredTensor
from headway.state.store import Store
from headway.state.stored_file import StoredFile, VerifiedRead, read_verified, reads_of
from headway.train.collectives import WorkerGroup
from headway.train.device import is_accelerator
from headway.train.safetensors_file import TORCH_DTYPES
from headway.train.state_transfer import ByteSequence, broadcast_shares, share_out


@dataclass(frozen=True)
class WantedRows:
    """The rows from `start` on of a stored tensor, as many as `target` has."""

    target: torch.Tensor
    start: int
    stored: StoredTensor


def read_rows(
    wanted: Sequence[WantedRows],
    files: Mapping[str, StoredFile],
    store: Store,
    folder: str,
) -> None:
    """Fills all targets. Raises DamagedFile if a block that has some of their rows has not the
    digest that `files` has of it; targets may have wrong content then. A file that is not in
    `files` has no digests."""
    SharedRows(wanted, files, store, folder).read_share()


class SharedRows:
    """Rows that several workers want alike. Each reads a share of them from the store, and then
    they give them to each other, so that every byte is read once."""

    def __init__(
        self,
        wanted: Sequence[WantedRows],
        files: Mapping[str, StoredFile],
        store: Store,
        folder: str,
        rank: int = 0,
        num_readers: int = 1,
    ) -> None:
        self._files, self._store, self._folder, self._rank = files, store, folder, rank
        self._pieces: dict[str, list[_Piece]] = {}
        """By file, in the order of their bytes."""
        for rows in wanted:
            for file, piece in _pieces(rows, folder):
                self._pieces.setdefault(file, []).append(piece)
        self._reads: list[tuple[str, int, int]] = []
        """All of them: a file and bytes [start, end) of it."""
        num_wanted = [0]
        """Bytes of all pieces before each read, and at the end."""
        for file, pieces in self._pieces.items():
            pieces.sort(key=lambda piece: piece.start)
            spans = [*reads_of([(piece.start, piece.end) for piece in pieces], files.get(file))]
            self._reads += [(file, *span) for span in spans]
            num_wanted += _num_wanted(spans, pieces, before=num_wanted[-1])
        self._cuts = division([end - start for _, start, end in self._reads], num_readers)
        self._bounds = [num_wanted[cut] for cut in self._cuts]

    @torch.no_grad()
    def read_share(self) -> None:
        """Raises DamagedFile."""
        is_shared = len(self._cuts) > 2
        begin, end = self._cuts[self._rank : self._rank + 2]
        for file, some in groupby(self._reads[begin:end], key=lambda read: read[0]):
            reads = _Reads(self._pieces[file], is_shared)
            for _ in read_verified(
                self._store,
                f"{self._folder}/{file}",
                (reads.begin(start, end) for _, start, end in some),
                self._files.get(file),
            ):
                reads.end_oldest()
        if is_shared:
            num_bytes = sum(p.end - p.start for pieces in self._pieces.values() for p in pieces)
            assert self._bounds[-1] == num_bytes, f"a file of {self._folder} ends early"
        else:
            for file, pieces in self._pieces.items():
                assert all(p.is_filled for p in pieces), f"{self._folder}/{file} ends early"

    @torch.no_grad()
    def exchange(self, group: WorkerGroup, device: torch.device) -> None:
        """COLLECTIVE, once all have read their shares. Afterwards all targets are filled."""
        pieces = [piece for some in self._pieces.values() for piece in some]
        content = ByteSequence([piece.memory for piece in pieces])
        if is_accelerator(device):
            broadcast_shares(group, content, self._bounds, device)
        else:
            share_out(group, content, self._bounds)
        for piece in pieces:
            piece.finish()


def division(sizes: Sequence[int], num_shares: int) -> list[int]:
    """Where each share of consecutive items begins, and the end. No share has more than its part of
    the sum and one item."""
    middles = [end - size / 2 for end, size in zip(accumulate(sizes), sizes, strict=True)]
    cuts = [bisect_left(middles, sum(sizes) * share / num_shares) for share in range(num_shares)]
    return [*cuts, len(sizes)]


def _num_wanted(spans: list[tuple[int, int]], pieces: list[_Piece], before: int) -> list[int]:
    """Bytes of pieces up to the end of each span, and those `before`."""
    counts, following = [], deque(pieces)
    for _, end in spans:
        while following and following[0].end <= end:
            piece = following.popleft()
            before += piece.end - piece.start
        begun = end - following[0].start if following else 0
        counts.append(before + max(0, begun))
    return counts


class _Reads:
    """Divides what is read of a file among its pieces."""

    def __init__(self, pieces: list[_Piece], is_shared: bool) -> None:
        self._unfinished = deque(pieces)
        self._is_shared = is_shared
        self._begun: deque[list[_Part]] = deque()

    def begin(self, start: int, end: int) -> VerifiedRead:
        parts, places, at = [], [], start
        while self._unfinished and self._unfinished[0].end <= start:
            self._unfinished.popleft()  # of another worker's share
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
            if part.piece.is_filled and not self._is_shared:
                part.piece.finish()


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

    @property
    def memory(self) -> torch.Tensor:
        """Its bytes as they are stored: the target itself, or memory that is copied to it by
        `finish`."""
        if self._bytes is None:
            if self._is_direct:
                self._bytes = self._target.view(-1).view(torch.uint8)
            else:
                self._bytes = torch.empty(self.end - self.start, dtype=torch.uint8)
        return self._bytes

    def part(self, first: int, last: int) -> _Part:
        """Where to receive these bytes of the file: in the target itself if it is on the CPU."""
        place = self.memory[first - self.start : last - self.start]
        if place.device.type != "cpu":
            place = torch.empty(last - first, dtype=torch.uint8)
        return _Part(self, first, place.numpy().data)

    def put(self, part: _Part) -> None:
        """A part that was received."""
        if self.memory.device.type != "cpu":
            begin = part.first - self.start
            place = self.memory[begin : begin + len(part.place)]
            place.copy_(torch.frombuffer(part.place, dtype=torch.uint8))
        self._missing -= len(part.place)

    def finish(self) -> None:
        """All of it has been received."""
        if not self._is_direct:
            self._target.copy_(self.memory.view(self._dtype).view(self._target.shape))
        self._bytes = None

    @property
    def _is_direct(self) -> bool:
        return self._target.dtype == self._dtype and self._target.is_contiguous()


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
