"""Healing: workers without the run's state receive it from those that have it, in the new group.

A state is named (step, generation that committed it). The state that most domains hold is chosen,
and domains with another state or none receive it: a step that only one domain has committed is not
settled, and is computed again. The header goes first, as JSON, from one holder; then the bytes of
all tensors, a part from each holder of the receiver's own kind: processors of another model may
have other last bits of the same state, and a mixture would be nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import xxhash

from headway.member.worker.state_choice import NO_STATE, Name, state_of_domain, state_of_most
from headway.train.collectives import WorkerGroup
from headway.train.domain_group import DomainGroup
from headway.train.optim import counter_device
from headway.train.safetensors_file import DTYPES, TORCH_DTYPES
from headway.train.state_tensors import StateTensor, state_tensor_of, state_tensors, tied_names
from headway.train.state_transfer import ByteSequence, hand_over
from headway.train.step import Training


@dataclass(frozen=True)
class ChosenState:
    """The state from which the members of a generation continue."""

    step: int
    committed_in: int
    holders: tuple[int, ...]
    """Ranks that have it."""
    receivers: tuple[int, ...]
    """Ranks that have another state, older or newer, or none: they receive this one."""
    evaluated_step: int
    """The lowest among the ranks that have the state."""
    kinds: tuple[int, ...]
    """Of each rank: the hardware and software whose arithmetic gives the same bits."""

    def routes(self) -> list[tuple[list[int], list[int]]]:
        """Holders that have the same bits, and who receives from them: ranks of their kind, and,
        from the first, those of a kind that no holder has."""
        among_holders = list(dict.fromkeys(self.kinds[rank] for rank in self.holders))
        routes = []
        for kind in among_holders:
            receivers = [
                rank
                for rank in self.receivers
                if self.kinds[rank] == kind
                or (kind == among_holders[0] and self.kinds[rank] not in among_holders)
            ]
            if receivers:
                routes.append(([one for one in self.holders if self.kinds[one] == kind], receivers))
        return routes


def held_state(training: Training, domain: DomainGroup | None, holds: bool) -> Name:
    """COLLECTIVE in the domain. The name of the state that the domain holds."""
    own = (training.step, training.committed_in) if holds else NO_STATE
    if domain is None:
        return own
    return state_of_domain([(step, within) for step, within in domain.all_gather(list(own))])


def choose_state(
    training: Training, replicas: WorkerGroup, held: Name, kind: int
) -> ChosenState | None:
    """COLLECTIVE. The state that most domains hold. None: no domain holds the run's state, which is
    restored from a checkpoint instead. `kind`: of this worker."""
    own = torch.tensor([*held, training.evaluated_step, kind], dtype=torch.int64)
    brought = [part.tolist() for part in replicas.all_gather(own)]
    names = [(step, within) for step, within, _, _ in brought]
    best = state_of_most(names)
    if best == NO_STATE:
        return None
    return ChosenState(
        step=best[0],
        committed_in=best[1],
        holders=tuple(rank for rank, name in enumerate(names) if name == best),
        receivers=tuple(rank for rank, name in enumerate(names) if name != best),
        evaluated_step=min(one[2] for one in brought if tuple(one[:2]) == best),
        kinds=tuple(one[3] for one in brought),
    )


def hand_over_state(
    training: Training, replicas: WorkerGroup, choice: ChosenState, records: list[Any]
) -> list[Any] | None:
    """COLLECTIVE. Afterwards the receivers have the state of the holders, bit by bit. Returns on
    the receivers the `records` of one holder: in a long run there are many."""
    is_receiver = replicas.rank in choice.receivers
    held_tensors = [] if is_receiver else _by_name(training)
    header = _header_for_receivers(training, held_tensors, replicas, choice, records)
    if is_receiver:
        # It has no state until all of it has arrived: holders may be lost in between.
        training.step, training.committed_in = NO_STATE
        held_tensors = _tensors_to_fill(training, header["tensors"])
    tensors = [held.local for held in held_tensors]
    flat = [_bytes_of(tensor) for tensor in tensors]
    for holders, receivers in choice.routes():
        hand_over(replicas, ByteSequence(flat), holders, receivers)
    if not is_receiver:
        return None
    _copy_to(tensors, flat)
    training.step, training.committed_in = choice.step, choice.committed_in
    training.scale.scale, training.scale.good_steps = header["loss_scale"]
    training.guard.restore(header["guard"])
    return header["records"]


def _by_name(training: Training) -> list[StateTensor]:
    """Holders send parts of one sequence, so it has the same order on all: not that in which the
    optimizer has made its state, which may have come from a checkpoint."""
    return sorted(state_tensors(training.model, training.optimizer), key=lambda held: held.name)


def _header_for_receivers(
    training: Training,
    held_tensors: list[StateTensor],
    replicas: WorkerGroup,
    choice: ChosenState,
    records: list[Any],
) -> dict[str, Any]:
    """COLLECTIVE. For receivers: all of the first holder that is not in tensors, and which tensors
    it has. Empty for other holders, which compare their tensors with it."""
    source = choice.holders[0]
    tensors = [[p.name, DTYPES[p.local.dtype], list(p.local.shape)] for p in held_tensors]
    digest = xxhash.xxh3_64_intdigest(msgspec.json.encode(tensors)) >> 1
    content = torch.empty(0, dtype=torch.uint8)
    if replicas.rank == source:
        header = {
            "tensors": tensors,
            "loss_scale": [training.scale.scale, training.scale.good_steps],
            "guard": training.guard.state(),
            "records": records,
        }
        content = torch.frombuffer(bytearray(msgspec.json.encode(header)), dtype=torch.uint8)
    summary = torch.tensor([len(content), digest], dtype=torch.int64)
    replicas.broadcast(summary, source)
    length, digest_of_source = summary.tolist()
    if replicas.rank != source:
        content = torch.empty(length, dtype=torch.uint8)
    hand_over(replicas, ByteSequence([content]), [source], choice.receivers)
    if replicas.rank in choice.receivers:
        return msgspec.json.decode(content.numpy().tobytes())
    assert digest == digest_of_source, "holders of the same state have different tensors"
    return {}


@torch.no_grad()
def _tensors_to_fill(training: Training, wanted: list[list[Any]]) -> list[StateTensor]:
    """The tensors to receive into, in the order of `wanted`. Of the optimizer's state those that
    are there are used, others are created, and what is not wanted is dropped."""
    tied = tied_names(training.model)
    held_tensors = {
        f"model/{name}": state_tensor_of(f"model/{name}", tensor)
        for name, tensor in training.model.state_dict().items()
        if name not in tied
    }
    parameters = dict(training.model.named_parameters())
    optimizer = training.optimizer
    had = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    optimizer.state.clear()
    for name, dtype, shape in wanted:
        if name.startswith("optimizer/"):
            of, _, key = name.removeprefix("optimizer/").rpartition("/")
            parameter: Any = parameters[of]
            tensor = had.get(parameter, {}).get(key)
            if tensor is None or not _fits(state_tensor_of(name, tensor), dtype, shape):
                tensor = _optimizer_tensor(optimizer, parameter, dtype, shape)
            optimizer.state[parameter][key] = tensor
            held_tensors[name] = state_tensor_of(name, tensor)
    found = [held_tensors[name] for name, _, _ in wanted]
    for held, (name, dtype, shape) in zip(found, wanted, strict=True):
        assert _fits(held, dtype, shape), f"{name} differs between workers"
    return found


def _optimizer_tensor(
    optimizer: torch.optim.Optimizer, parameter: Any, dtype: str, shape: list[int]
) -> Any:
    if shape and list(state_tensor_of("", parameter).local.shape) == shape:
        return torch.zeros_like(parameter)
    device = counter_device(optimizer, parameter)
    return torch.zeros(shape, dtype=TORCH_DTYPES[dtype], device=device)


def _fits(held: StateTensor, dtype: str, shape: list[int]) -> bool:
    return held.local.dtype == TORCH_DTYPES[dtype] and list(held.local.shape) == shape


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's own memory, on its device, if it is contiguous, else a copy."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


@torch.no_grad()
def _copy_to(tensors: list[torch.Tensor], flat: list[torch.Tensor]) -> None:
    for tensor, content in zip(tensors, flat, strict=True):
        if not tensor.is_contiguous():
            tensor.copy_(content.view(tensor.dtype).view(tensor.shape))
