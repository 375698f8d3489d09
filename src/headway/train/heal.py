"""The run's state for those who lack it: by broadcast in the new group, in chunks with checksums.

A state is named (step, generation that committed it). Of the states that domains hold, the one that
most of them hold is taken, and whoever has another one or none gets it: a step that one alone has
committed was not settled, and is taken again. What the state is made of goes first, as JSON; then
the bytes of all tensors, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import xxhash

from headway.errors import PeerLost
from headway.member.lineage import NO_STATE, Name, state_of_domain, state_of_most
from headway.train.mates import Mates
from headway.train.peers import Peers
from headway.train.pieces import Piece, piece_of, state_pieces, tied_names
from headway.train.step import Training
from headway.train.tensors_file import DTYPES, TORCH_DTYPES

CHUNK_BYTES = 2**25
CHECK_BYTES = 8


@dataclass(frozen=True)
class Choice:
    """What the members of a generation go on from."""

    step: int
    committed_in: int
    source: int
    """The first rank that has it."""
    needy: tuple[int, ...]
    """Ranks that have another state, older or newer, or none."""
    evaluated_step: int
    """As all know it who have the state."""


def held_state(training: Training, mates: Mates | None, holds: bool) -> Name:
    """COLLECTIVE in the domain. The name of the state it holds."""
    own = (training.step, training.committed_in) if holds else NO_STATE
    if mates is None:
        return own
    return state_of_domain([(step, within) for step, within in mates.gather(list(own))])


def choose(training: Training, peers: Peers, held: Name) -> Choice | None:
    """COLLECTIVE. Out of what each domain holds. None: nobody holds the run's state, it comes from
    a checkpoint."""
    own = torch.tensor([*held, training.evaluated_step], dtype=torch.int64)
    brought = [part.tolist() for part in peers.gather(own)]
    names = [(step, within) for step, within, _ in brought]
    best = state_of_most(names)
    if best == NO_STATE:
        return None
    return Choice(
        step=best[0],
        committed_in=best[1],
        source=names.index(best),
        needy=tuple(rank for rank, name in enumerate(names) if name != best),
        evaluated_step=min(one[2] for one in brought if tuple(one[:2]) == best),
    )


def hand_over(training: Training, peers: Peers, choice: Choice, notes: list[Any]) -> list[Any]:
    """COLLECTIVE. Afterwards the needy have the state of the source, bit by bit, and its `notes`,
    which are returned: of a long run they are many."""
    is_source, is_needy = peers.rank == choice.source, peers.rank in choice.needy
    header = _share(peers, choice.source, _header(training) if is_source else None)
    notes = _share(peers, choice.source, notes if is_source else None, is_read=is_needy)
    tensors = None
    if is_needy:
        # Until all of it is here it has none, should the source be lost in the middle.
        training.step, training.committed_in = NO_STATE
        tensors = _targets(training, header["tensors"])
    if is_source:
        pieces = state_pieces(training.model, training.optimizer)
        tensors = [piece.local for piece in pieces]
    sizes = [_num_bytes(*entry[1:]) for entry in header["tensors"]]
    flat = [_bytes_of(tensor) for tensor in tensors] if tensors is not None else None
    buffer = torch.empty(min(CHUNK_BYTES, sum(sizes)) + CHECK_BYTES, dtype=torch.uint8)
    for spans in _chunks(sizes):
        length = sum(end - begin for _, begin, end in spans)
        chunk = buffer[: length + CHECK_BYTES]
        if is_source:
            assert flat is not None
            at = 0
            for index, begin, end in spans:
                chunk[at : at + end - begin] = flat[index][begin:end]
                at += end - begin
            chunk[length:] = _check(chunk[:length])
        peers.broadcast(chunk, choice.source)
        if is_needy:
            assert flat is not None
            _require_sound(chunk)
            at = 0
            for index, begin, end in spans:
                flat[index][begin:end] = chunk[at : at + end - begin]
                at += end - begin
    if is_needy:
        assert tensors is not None
        assert flat is not None
        _put_back(tensors, flat)
        training.step, training.committed_in = choice.step, choice.committed_in
        training.scale.scale, training.scale.good_steps = header["loss_scale"]
        training.guard.restore(header["guard"])
    return notes


def _header(training: Training) -> dict[str, Any]:
    pieces = state_pieces(training.model, training.optimizer)
    return {
        "tensors": [[p.name, DTYPES[p.local.dtype], list(p.local.shape)] for p in pieces],
        "loss_scale": [training.scale.scale, training.scale.good_steps],
        "guard": training.guard.state(),
    }


def _share(peers: Peers, source: int, value: Any, is_read: bool = True) -> Any:
    """COLLECTIVE. The source's value, for those who read it."""
    content = torch.frombuffer(bytearray(msgspec.json.encode(value)), dtype=torch.uint8)
    length = torch.tensor([len(content)], dtype=torch.int64)
    peers.broadcast(length, source)
    if peers.rank == source:
        content = torch.cat([content, _check(content)])
    else:
        content = torch.empty(int(length.item()) + CHECK_BYTES, dtype=torch.uint8)
    peers.broadcast(content, source)
    if peers.rank == source or not is_read:
        return value
    _require_sound(content)
    return msgspec.json.decode(content[:-CHECK_BYTES].numpy().tobytes())


@torch.no_grad()
def _targets(training: Training, wanted: list[list[Any]]) -> list[torch.Tensor]:
    """Where to put what comes, in its order. The optimizer's state is made to be what is wanted."""
    tied = tied_names(training.model)
    pieces = {
        f"model/{name}": piece_of(f"model/{name}", tensor)
        for name, tensor in training.model.state_dict().items()
        if name not in tied
    }
    parameters = dict(training.model.named_parameters())
    training.optimizer.state.clear()
    for name, dtype, shape in wanted:
        if name.startswith("optimizer/"):
            of, _, key = name.removeprefix("optimizer/").rpartition("/")
            parameter: Any = parameters[of]
            like = list(piece_of(name, parameter).local.shape) == shape
            tensor: Any = (
                torch.zeros_like(parameter)
                if like and shape
                else torch.zeros(shape, dtype=TORCH_DTYPES[dtype])
            )
            training.optimizer.state[parameter][key] = tensor
            pieces[name] = piece_of(name, tensor)
    found = [pieces[name] for name, _, _ in wanted]
    for piece, (name, dtype, shape) in zip(found, wanted, strict=True):
        assert _fits(piece, dtype, shape), f"{name} is another tensor elsewhere"
    return [piece.local for piece in found]


def _fits(piece: Piece, dtype: str, shape: list[int]) -> bool:
    return piece.local.dtype == TORCH_DTYPES[dtype] and list(piece.local.shape) == shape


def _num_bytes(dtype: str, shape: list[int]) -> int:
    return torch.Size(shape).numel() * TORCH_DTYPES[dtype].itemsize


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's own memory where that is on the CPU and in order, else a copy of it."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


@torch.no_grad()
def _put_back(tensors: list[torch.Tensor], flat: list[torch.Tensor]) -> None:
    for tensor, content in zip(tensors, flat, strict=True):
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            tensor.copy_(content.view(tensor.dtype).view(tensor.shape))


def _chunks(sizes: list[int]) -> Iterator[list[tuple[int, int, int]]]:
    """(tensor, first byte, end) of each chunk, in order."""
    spans: list[tuple[int, int, int]] = []
    room = CHUNK_BYTES
    for index, size in enumerate(sizes):
        begin = 0
        while begin < size:
            end = min(size, begin + room)
            spans.append((index, begin, end))
            room -= end - begin
            begin = end
            if room == 0:
                yield spans
                spans, room = [], CHUNK_BYTES
    if spans:
        yield spans


def _require_sound(content: torch.Tensor) -> None:
    if not torch.equal(content[-CHECK_BYTES:], _check(content[:-CHECK_BYTES])):
        raise PeerLost("what came of the run's state is not what was sent")


def _check(content: torch.Tensor) -> torch.Tensor:
    digest = xxhash.xxh3_64_digest(memoryview(content.numpy().data))
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)
