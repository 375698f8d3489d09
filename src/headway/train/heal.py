"""Healing: workers without the run's state receive it by broadcast in the new group, in chunks with
checksums.

A state is named (step, generation that committed it). The state that most domains hold is chosen,
and domains with another state or none receive it: a step that only one domain has committed is not
settled, and is computed again. The header goes first, as JSON; then the bytes of all tensors, one
after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import xxhash

from headway.errors import PeerLost
from headway.member.worker.state_choice import NO_STATE, Name, state_of_domain, state_of_most
from headway.train.collectives import WorkerGroup
from headway.train.device import is_accelerator
from headway.train.domain_group import DomainGroup
from headway.train.optim import counter_device
from headway.train.safetensors_file import DTYPES, TORCH_DTYPES
from headway.train.state_tensors import StateTensor, state_tensor_of, state_tensors, tied_names
from headway.train.step import Training

CHUNK_BYTES = 2**25
CHECKSUM_BYTES = 8


@dataclass(frozen=True)
class ChosenState:
    """The state from which the members of a generation continue."""

    step: int
    committed_in: int
    source: int
    """The lowest rank that has it."""
    receivers: tuple[int, ...]
    """Ranks that have another state, older or newer, or none: they receive this one."""
    evaluated_step: int
    """The lowest among the ranks that have the state."""


def held_state(training: Training, domain: DomainGroup | None, holds: bool) -> Name:
    """COLLECTIVE in the domain. The name of the state that the domain holds."""
    own = (training.step, training.committed_in) if holds else NO_STATE
    if domain is None:
        return own
    return state_of_domain([(step, within) for step, within in domain.all_gather(list(own))])


def choose_state(training: Training, replicas: WorkerGroup, held: Name) -> ChosenState | None:
    """COLLECTIVE. The state that most domains hold. None: no domain holds the run's state, which is
    restored from a checkpoint instead."""
    own = torch.tensor([*held, training.evaluated_step], dtype=torch.int64)
    brought = [part.tolist() for part in replicas.all_gather(own)]
    names = [(step, within) for step, within, _ in brought]
    best = state_of_most(names)
    if best == NO_STATE:
        return None
    return ChosenState(
        step=best[0],
        committed_in=best[1],
        source=names.index(best),
        receivers=tuple(rank for rank, name in enumerate(names) if name != best),
        evaluated_step=min(one[2] for one in brought if tuple(one[:2]) == best),
    )


def broadcast_state(
    training: Training, replicas: WorkerGroup, choice: ChosenState, records: list[Any]
) -> list[Any]:
    """COLLECTIVE. Afterwards the receivers have the state of the source, bit by bit. Returns the
    source's `records`, on the receivers: in a long run there are many."""
    is_source, is_receiver = replicas.rank == choice.source, replicas.rank in choice.receivers
    header = _broadcast_json(replicas, choice.source, _header(training) if is_source else None)
    records = _broadcast_json(
        replicas, choice.source, records if is_source else None, is_read=is_receiver
    )
    tensors = None
    if is_receiver:
        # It has no state until all of it has arrived: the source may be lost in between.
        training.step, training.committed_in = NO_STATE
        tensors = _tensors_to_fill(training, header["tensors"])
    if is_source:
        held_tensors = state_tensors(training.model, training.optimizer)
        tensors = [held.local for held in held_tensors]
    sizes = [_num_bytes(*entry[1:]) for entry in header["tensors"]]
    flat = [_bytes_of(tensor) for tensor in tensors] if tensors is not None else None
    buffer = torch.empty(min(CHUNK_BYTES, sum(sizes)) + CHECKSUM_BYTES, dtype=torch.uint8)
    for spans in _chunks(sizes):
        length = sum(end - begin for _, begin, end in spans)
        chunk = buffer[: length + CHECKSUM_BYTES]
        if is_source:
            assert flat is not None
            at = 0
            for index, begin, end in spans:
                chunk[at : at + end - begin] = flat[index][begin:end]
                at += end - begin
            chunk[length:] = _checksum(chunk[:length])
        replicas.broadcast(chunk, choice.source)
        if is_receiver:
            assert flat is not None
            _require_checksum(chunk)
            at = 0
            for index, begin, end in spans:
                flat[index][begin:end] = chunk[at : at + end - begin]
                at += end - begin
    if is_receiver:
        assert tensors is not None
        assert flat is not None
        _copy_to(tensors, flat)
        training.step, training.committed_in = choice.step, choice.committed_in
        training.scale.scale, training.scale.good_steps = header["loss_scale"]
        training.guard.restore(header["guard"])
    return records


def _header(training: Training) -> dict[str, Any]:
    held_tensors = state_tensors(training.model, training.optimizer)
    return {
        "tensors": [[p.name, DTYPES[p.local.dtype], list(p.local.shape)] for p in held_tensors],
        "loss_scale": [training.scale.scale, training.scale.good_steps],
        "guard": training.guard.state(),
    }


def _broadcast_json(replicas: WorkerGroup, source: int, value: Any, is_read: bool = True) -> Any:
    """COLLECTIVE. The source's value, on ranks with `is_read`."""
    content = torch.frombuffer(bytearray(msgspec.json.encode(value)), dtype=torch.uint8)
    length = torch.tensor([len(content)], dtype=torch.int64)
    replicas.broadcast(length, source)
    if replicas.rank == source:
        content = torch.cat([content, _checksum(content)])
    else:
        content = torch.empty(int(length.item()) + CHECKSUM_BYTES, dtype=torch.uint8)
    replicas.broadcast(content, source)
    if replicas.rank == source or not is_read:
        return value
    _require_checksum(content)
    return msgspec.json.decode(content[:-CHECKSUM_BYTES].numpy().tobytes())


@torch.no_grad()
def _tensors_to_fill(training: Training, wanted: list[list[Any]]) -> list[torch.Tensor]:
    """The tensors to receive into, in the order of `wanted`. The optimizer's state is created."""
    tied = tied_names(training.model)
    held_tensors = {
        f"model/{name}": state_tensor_of(f"model/{name}", tensor)
        for name, tensor in training.model.state_dict().items()
        if name not in tied
    }
    parameters = dict(training.model.named_parameters())
    training.optimizer.state.clear()
    for name, dtype, shape in wanted:
        if name.startswith("optimizer/"):
            of, _, key = name.removeprefix("optimizer/").rpartition("/")
            parameter: Any = parameters[of]
            like = list(state_tensor_of(name, parameter).local.shape) == shape
            tensor: Any = (
                torch.zeros_like(parameter)
                if like and shape
                else torch.zeros(
                    shape,
                    dtype=TORCH_DTYPES[dtype],
                    device=counter_device(training.optimizer, parameter),
                )
            )
            training.optimizer.state[parameter][key] = tensor
            held_tensors[name] = state_tensor_of(name, tensor)
    found = [held_tensors[name] for name, _, _ in wanted]
    for held, (name, dtype, shape) in zip(found, wanted, strict=True):
        assert _fits(held, dtype, shape), f"{name} differs between workers"
    return [held.local for held in found]


def _fits(held: StateTensor, dtype: str, shape: list[int]) -> bool:
    return held.local.dtype == TORCH_DTYPES[dtype] and list(held.local.shape) == shape


def _num_bytes(dtype: str, shape: list[int]) -> int:
    return torch.Size(shape).numel() * TORCH_DTYPES[dtype].itemsize


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's own memory if it is on the CPU and contiguous, else a copy."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


@torch.no_grad()
def _copy_to(tensors: list[torch.Tensor], flat: list[torch.Tensor]) -> None:
    for tensor, content in zip(tensors, flat, strict=True):
        if is_accelerator(tensor.device) or not tensor.is_contiguous():
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


def _require_checksum(content: torch.Tensor) -> None:
    if not torch.equal(content[-CHECKSUM_BYTES:], _checksum(content[:-CHECKSUM_BYTES])):
        raise PeerLost("the run's state arrived damaged: its checksum does not match")


def _checksum(content: torch.Tensor) -> torch.Tensor:
    digest = xxhash.xxh3_64_digest(memoryview(content.numpy().data))
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)
