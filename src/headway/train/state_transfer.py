"""Bytes handed from the workers that hold them to those that lack them, in rounds of bounded size.
Nobody receives what it holds.

To those who lack everything (`hand_over`) no holder sends a byte twice. Each block is cut into
cells. A holder sends a cell to one receiver, holders taking turns, and that receiver sends it to
the other receivers two rounds later. So of h holders each sends 1/h of the bytes, however many lack
them, and all links are used at the same time. Where each has a part (`share_out`), each sends its
own to all others. A round of these is one all-to-all over the host's memory.

Accelerators have no group for the host, and NCCL would connect every two of them for an all-to-all.
There each part is broadcast from memory to memory of the devices (`broadcast_shares`).

Whatever ends a collective ends a transfer: a lost member, or a newer generation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
import xxhash

from headway.errors import PeerLost
from headway.train.collectives import PendingCollective, WorkerGroup

BLOCK_BYTES = 2**25
"""Bytes that a round moves to each receiver, and what a buffer for them takes."""
BROADCAST_BYTES = 2**28
"""Bytes of one broadcast between devices: long against the way through a ring of hundreds."""
IN_FLIGHT = 2
"""Rounds at the same time: one is sent while another is copied and verified."""
CHECKSUM_BYTES = 8
PIECE_BYTES = 2**18
"""What is copied and then added to the checksum while it is in the processor's cache."""


class Message(NamedTuple):
    """Bytes [begin, end), from one rank to another."""

    source: int
    target: int
    begin: int
    end: int


class ByteSequence:
    """The memory of tensors as one sequence of bytes."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Each flat, of bytes, and on any device."""
        self._memory = [one.numpy() if one.device.type == "cpu" else one for one in tensors]
        self._ends = list(accumulate(len(one) for one in tensors))

    @property
    def num_bytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, begin: int, place: np.ndarray) -> None:
        at = 0
        for part in self._parts(begin, begin + len(place)):
            into = place[at : at + len(part)]
            if isinstance(part, torch.Tensor):
                torch.from_numpy(into).copy_(part)
            else:
                into[:] = part
            at += len(part)

    def write(self, begin: int, content: np.ndarray) -> None:
        at = 0
        for part in self._parts(begin, begin + len(content)):
            source = content[at : at + len(part)]
            if isinstance(part, torch.Tensor):
                part.copy_(torch.from_numpy(source))
            else:
                part[:] = source
            at += len(part)

    def tensors(self, begin: int, end: int) -> Iterator[torch.Tensor]:
        """The memory of these bytes, not a copy."""
        for part in self._parts(begin, end):
            yield part if isinstance(part, torch.Tensor) else torch.from_numpy(part)

    def _parts(self, begin: int, end: int) -> Iterator[np.ndarray | torch.Tensor]:
        index = bisect_right(self._ends, begin)
        while begin < end:
            memory, memory_end = self._memory[index], self._ends[index]
            memory_begin = memory_end - len(memory)
            last = min(end, memory_end)
            if last > begin:
                yield memory[begin - memory_begin : last - memory_begin]
            begin, index = last, index + 1


def hand_over(
    group: WorkerGroup, content: ByteSequence, holders: Sequence[int], receivers: Sequence[int]
) -> None:
    """COLLECTIVE. Afterwards the receivers have the content of the holders, which is the same on
    all of them. Others take part, and neither send nor receive; their content has the same length.
    Raises PeerLost if a member is lost or bytes arrive damaged: a receiver may have some of them
    then."""
    _exchange(group, content, handover(group.rank, content.num_bytes, holders, receivers))


def handover(
    rank: int, num_bytes: int, holders: Sequence[int], receivers: Sequence[int]
) -> Iterator[list[Message]]:
    """What a rank sends and receives in each round, so that the receivers get all bytes."""
    num_blocks = -(-num_bytes // BLOCK_BYTES)
    delay = IN_FLIGHT if len(receivers) > 1 else 0
    num_cells = max(len(holders), len(receivers))

    def cells(block: int) -> Iterator[tuple[int, int, int, int]]:
        begin = block * BLOCK_BYTES
        size = min(BLOCK_BYTES, num_bytes - begin)
        cuts = [begin + size * cell // num_cells for cell in range(num_cells + 1)]
        for cell, (first, last) in enumerate(pairwise(cuts)):
            turn = cell + block
            if first < last:
                yield holders[turn % len(holders)], receivers[turn % len(receivers)], first, last

    for number in range(num_blocks + delay):
        messages = []
        if number < num_blocks:
            for holder, receiver, begin, end in cells(number):
                if rank in (holder, receiver):
                    messages.append(Message(holder, receiver, begin, end))
        if delay and number >= delay and rank in receivers:
            for _, receiver, begin, end in cells(number - delay):
                targets = receivers if rank == receiver else (rank,)
                messages += [Message(receiver, to, begin, end) for to in targets if to != receiver]
        yield messages


def share_out(group: WorkerGroup, content: ByteSequence, bounds: Sequence[int]) -> None:
    """COLLECTIVE. Of the content, rank i has bytes [bounds[i], bounds[i + 1]); afterwards all have
    all of it. Raises PeerLost if a member is lost or bytes arrive damaged."""
    _exchange(group, content, sharing(group.rank, bounds))


def broadcast_shares(
    group: WorkerGroup, content: ByteSequence, bounds: Sequence[int], device: torch.device
) -> None:
    """COLLECTIVE. As `share_out`, over the group of the device. Its transport has checksums of its
    own, where it is made for that."""
    longest = max(end - begin for begin, end in pairwise(bounds))
    block = torch.empty(min(BROADCAST_BYTES, longest), dtype=torch.uint8, device=device)
    for source, (begin, end) in enumerate(pairwise(bounds)):
        for first in range(begin, end, BROADCAST_BYTES):
            last = min(first + BROADCAST_BYTES, end)
            parts = [*content.tensors(first, last)]
            places = block[: last - first].split([len(part) for part in parts])
            if source == group.rank:
                for place, part in zip(places, parts, strict=True):
                    place.copy_(part)
            group.broadcast(block[: last - first], source)
            if source != group.rank:
                for place, part in zip(places, parts, strict=True):
                    part.copy_(place)


def sharing(rank: int, bounds: Sequence[int]) -> Iterator[list[Message]]:
    """What a rank sends and receives in each round: of each share the same number of bytes, so that
    all send at the same time."""
    shares = [*pairwise(bounds)]
    each = max(1, BLOCK_BYTES // len(shares))
    for at in range(0, max(end - begin for begin, end in shares), each):
        messages = []
        for source, (begin, end) in enumerate(shares):
            first, last = begin + at, min(begin + at + each, end)
            targets = range(len(shares)) if source == rank else (rank,)
            if first < last:
                messages += [Message(source, to, first, last) for to in targets if to != source]
        yield messages


def _exchange(group: WorkerGroup, content: ByteSequence, rounds: Iterable[list[Message]]) -> None:
    """COLLECTIVE. What a round brings may be sent on `IN_FLIGHT` rounds later."""
    flight: deque[_Round] = deque()
    unused = [_Round(group, content) for _ in range(IN_FLIGHT)]
    try:
        for messages in rounds:
            if not unused:
                flight[0].finish()
                unused.append(flight.popleft())
            flight.append(unused.pop())
            flight[-1].start(messages)
        while flight:
            flight[0].finish()
            flight.popleft()
    finally:
        for unfinished in flight:
            unfinished.abandon()


class _Round:
    """One round, and memory that the next ones use again: what is fresh costs more to touch than to
    copy into. A round that was abandoned keeps its memory."""

    def __init__(self, group: WorkerGroup, content: ByteSequence) -> None:
        self._group, self._content = group, content
        self._sent = self._received = torch.empty(0, dtype=torch.uint8)
        self._awaited: list[Message] = []
        self._pending: PendingCollective | None = None

    def start(self, messages: list[Message]) -> None:
        rank, size = self._group.rank, self._group.size
        outgoing = sorted((m for m in messages if m.source == rank), key=lambda m: m[1:])
        self._awaited = sorted(m for m in messages if m.target == rank)
        sent_sizes, received_sizes = [0] * size, [0] * size
        for message in outgoing:
            sent_sizes[message.target] += _length(message)
        for message in self._awaited:
            received_sizes[message.source] += _length(message)
        self._sent = _grown(self._sent, sum(sent_sizes))
        self._received = _grown(self._received, sum(received_sizes))
        at = 0
        for message in outgoing:
            place = self._sent[at : at + _length(message)].numpy()
            place[-CHECKSUM_BYTES:] = self._copied(message, place, self._content.read)
            at += len(place)
        self._pending = self._group.start_all_to_all(
            self._received[: sum(received_sizes)], self._sent[:at], received_sizes, sent_sizes
        )

    def finish(self) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        pending.wait()
        at = 0
        for message in self._awaited:
            place = self._received[at : at + _length(message)].numpy()
            checksum = self._copied(message, place, self._content.write)
            if not np.array_equal(place[-CHECKSUM_BYTES:], checksum):
                raise PeerLost(
                    "the run's state arrived damaged: its checksum does not match "
                    f"(bytes {message.begin} to {message.end}, from rank {message.source})"
                )
            at += len(place)

    def _copied(
        self, message: Message, place: np.ndarray, copy: Callable[[int, np.ndarray], None]
    ) -> np.ndarray:
        """Copies what a message has. Returns the checksum of that, and of where it belongs."""
        digest = xxhash.xxh3_64(seed=message.begin)
        for begin in range(message.begin, message.end, PIECE_BYTES):
            at = begin - message.begin
            piece = place[at : min(at + PIECE_BYTES, message.end - message.begin)]
            copy(begin, piece)
            digest.update(piece.data)
        return np.frombuffer(digest.digest(), dtype=np.uint8)

    def abandon(self) -> None:
        if self._pending is not None:
            self._pending.abandon()


def _length(message: Message) -> int:
    return message.end - message.begin + CHECKSUM_BYTES


def _grown(buffer: torch.Tensor, size: int) -> torch.Tensor:
    return buffer if buffer.numel() >= size else torch.empty(size, dtype=torch.uint8)
