"""Random weights of a transformers model that is on the meta device, made part by part.

A part is the smallest set of modules that transformers initializes independently of all others:
usually one layer. Its values follow from the run's seed and its name, so they are the same at any
number of ranks, sharded or not. One rank computes a part as whole tensors on the CPU and sends each
other rank its rows: nobody ever holds more than a share of the model and one part.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headway.train.collectives import WorkerGroup
from headway.train.state_tensors import state_tensor_of
from headway.train.world import RankPlacement

WEIGHTS_RULE = 2
"""Version of the rule that makes random weights, recorded when a run starts. 1: one generator,
seeded with the run's seed, for the whole model."""
FILLING = {"normal_", "uniform_", "fill_", "zero_", "copy_", "bernoulli_", "exponential_"}
"""Operators that set a tensor whatever it was before."""
NAN = float("nan")


class NotByParts(Exception):
    """Why a model cannot be initialized part by part."""


@dataclass(frozen=True)
class Part:
    """Modules that are initialized together, in this order."""

    name: str
    modules: list[nn.Module]
    parameters: dict[str, nn.Parameter]
    """Parameters set here, by their names in the model."""
    buffers: dict[str, torch.Tensor]


class InitialWeights:
    """Fills a model whose tensors have memory but no values."""

    def __init__(self, model: Any, seed: int) -> None:
        """`model` is on the meta device. Raises NotByParts."""
        _require_no_other_tensors(model)
        self._model = copy.deepcopy(model)
        self._seed = seed
        self._places = _places(self._model)
        self._initializers = dict(_initializers(self._model, self._model))
        self._parts = self._divide()

    @torch.no_grad()
    def fill(self, model: nn.Module, placement: RankPlacement) -> None:
        """COLLECTIVE in the domain when the model is sharded over it."""
        parameters = dict(model.named_parameters(remove_duplicate=False))
        group = None
        if placement.shard_mesh is not None:
            group = WorkerGroup(placement.shard_mesh.get_group())
        parts = [part for part in self._parts if part.parameters]
        size, rank = (1, 0) if group is None else (group.size, group.rank)
        for first in range(0, len(parts), size):
            # Each rank computes one part, all at the same time; then they send them to each other.
            mine: dict[str, torch.Tensor] = {}
            if first + rank < len(parts):
                mine = self._computed(parts[first + rank], parts[first + rank].parameters)
            for source, part in enumerate(parts[first : first + size]):
                for name in part.parameters:
                    whole = mine.pop(name) if source == rank else None
                    _distribute(name, parameters[name], whole, group, source)

    @torch.no_grad()
    def fill_buffers(self, model: nn.Module) -> None:
        """Each rank by itself."""
        buffers = dict(model.named_buffers(remove_duplicate=False))
        for part in self._parts:
            for name, value in self._computed(part, part.buffers, "buffers").items():
                buffers[name].copy_(value)

    def _divide(self) -> list[Part]:
        """Modules whose initialization touches a tensor of another module are in one part."""
        touched, filled = self._touched()
        unset = sorted(name for name in self._places if name not in filled)
        if unset:
            raise NotByParts(f"transformers does not initialize {unset[0]} of this type by itself")
        part_of = {module: module for module in self._initializers}
        for module, names in touched.items():
            for name in names:
                _merge(part_of, module, self._places[name][0])
        modules: dict[nn.Module, list[nn.Module]] = {}
        for module in self._initializers:
            modules.setdefault(_root(part_of, module), []).append(module)
        module_names = {module: name for name, module in self._model.named_modules()}
        parts = []
        for root, together in modules.items():
            owned = {n: t for n, (m, _, t) in self._places.items() if _root(part_of, m) is root}
            ordered = sorted(
                (module_names[module] for module in together), key=lambda n: (len(n), n)
            )
            parameters = {n: t for n, t in owned.items() if isinstance(t, nn.Parameter)}
            buffers = {n: t for n, t in owned.items() if n not in parameters}
            if owned:
                parts.append(Part(ordered[0], together, parameters, buffers))
        return parts

    @torch.no_grad()
    def _touched(self) -> tuple[dict[nn.Module, set[str]], set[str]]:
        """Names of the tensors that each module's initialization touches, and of those that are set
        by any: found by a trial on the meta device, which computes nothing."""
        names = {_storage(t): n for n, (_, _, t) in self._places.items()}
        touched: dict[nn.Module, set[str]] = {}
        filled: set[str] = set()
        with torch.random.fork_rng(devices=[]):
            for module, initialize in self._initializers.items():
                watch = _Watch(names, {n: t.numel() for n, (_, _, t) in self._places.items()})
                try:
                    with watch:
                        initialize(module)
                except (RuntimeError, NotImplementedError) as error:
                    words = str(error).split("\n", 1)[0]
                    raise NotByParts(
                        f"{type(module).__name__} cannot be initialized on the meta device: {words}"
                    ) from None
                touched[module] = watch.touched
                filled |= watch.filled
        for name, (module, key, tensor) in self._places.items():
            if _tensor_at(module, key) is not tensor:
                raise NotByParts(f"the initialization of {name} replaces the tensor")
        self._ignore_ties(touched)
        return touched, filled

    def _ignore_ties(self, touched: dict[nn.Module, set[str]]) -> None:
        """A tied tensor is set by its owner alone: elsewhere it stays on the meta device."""
        tensors = {id(tensor): name for name, (_, _, tensor) in self._places.items()}
        for module in touched:
            for tensor in _own_tensors(module).values():
                name = tensors[id(tensor)]
                if self._places[name][0] is not module:
                    touched[module].discard(name)

    def _computed(
        self, part: Part, wanted: dict[str, Any], what: str = ""
    ) -> dict[str, torch.Tensor]:
        """Values of the part's parameters, or of its buffers, on the CPU."""
        if not wanted:
            return {}
        made = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_key(self._seed, part.name, what))
            try:
                for name, tensor in wanted.items():
                    fill = NAN if tensor.is_floating_point() else 0
                    made[name] = torch.full_like(tensor, fill, device="cpu")
                    self._place(name, made[name])
                for module in part.modules:
                    self._initializers[module](module)
            finally:
                for name in wanted:
                    self._place(name, None)
        for name, value in made.items():
            assert not value.is_floating_point() or not value.sum().isnan(), f"{name} was not set"
        return made

    def _place(self, name: str, value: torch.Tensor | None) -> None:
        """Puts `value`, or the tensor on the meta device, at the owner's place."""
        module, key, tensor = self._places[name]
        if isinstance(tensor, nn.Parameter):
            taken = tensor if value is None else nn.Parameter(value, requires_grad=False)
            module._parameters[key] = taken
        else:
            module._buffers[key] = tensor if value is None else value


class _Watch(TorchDispatchMode):
    """Notes which of the named tensors operators touch, and which they fill."""

    def __init__(self, names: dict[int, str], sizes: dict[str, int]) -> None:
        super().__init__()
        self._names, self._sizes = names, sizes
        self.touched: set[str] = set()
        self.filled: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs or {})):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                self.touched |= {n for n in [self._names.get(_storage(tensor))] if n is not None}
        if func.overloadpacket.__name__ in FILLING and args[0].is_meta:
            name = self._names.get(_storage(args[0]))
            if name is not None and args[0].numel() == self._sizes[name]:
                self.filled.add(name)
        return func(*args, **(kwargs or {}))


def materialize(model: nn.Module, device: torch.device) -> None:
    """Gives a model on the meta device memory on `device`, without values. Tied parameters stay
    tied, which `to_empty` alone would undo."""
    ties: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in _own_tensors(module).items():
            ties.setdefault(id(parameter), []).append((module, name))
    model.to_empty(device=device)
    for (first, first_name), *others in ties.values():
        for module, name in others:
            setattr(module, name, _tensor_at(first, first_name))


def _distribute(
    name: str,
    parameter: Any,
    whole: torch.Tensor | None,
    group: WorkerGroup | None,
    source: int,
) -> None:
    """COLLECTIVE. Each rank gets its rows of the tensor that rank `source` has."""
    held = state_tensor_of(name, parameter)
    if group is None:
        assert whole is not None
        held.local.copy_(whole)
        return
    if whole is None:
        if held.local.numel():
            received = torch.empty_like(held.local, memory_format=torch.contiguous_format)
            group.receive(received, source)
            held.local.copy_(received)
        return
    # FSDP2 divides rows as torch.chunk does; the last ranks may have none.
    for rank, rows in enumerate(whole.chunk(group.size) if whole.shape[0] else ()):
        if rank == source:
            held.local.copy_(rows)
        else:
            group.send(rows.to(held.local.device), rank)


def _places(model: Any) -> dict[str, tuple[nn.Module, str, torch.Tensor]]:
    """Each tensor of the model once: under the name, and at the module, that give it its value."""
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    every: dict[int, list[tuple[str, nn.Module, str, torch.Tensor]]] = {}
    for prefix, module in model.named_modules():
        for key, tensor in _own_tensors(module).items():
            name = f"{prefix}.{key}" if prefix else key
            every.setdefault(id(tensor), []).append((name, module, key, tensor))
    places = {}
    for uses in every.values():
        name, module, key, tensor = next((use for use in uses if use[0] not in tied), uses[0])
        places[name] = (module, key, tensor)
    return places


def _initializers(module: nn.Module, owner: Any) -> Iterator[tuple[nn.Module, Any]]:
    """Every module with the function that initializes it, children first. As in transformers: a
    model inside a model initializes its own."""
    for child in module.children():
        yield from _initializers(child, child if hasattr(child, "_init_weights") else owner)
    yield module, owner._init_weights


def _require_no_other_tensors(model: nn.Module) -> None:
    """Tensors that are neither parameters nor buffers would stay on the meta device."""
    for prefix, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise NotByParts(f"{prefix}.{key} is neither a parameter nor a buffer")


def _own_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    both = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in both.items() if tensor is not None}


def _tensor_at(module: nn.Module, key: str) -> torch.Tensor | None:
    return _own_tensors(module).get(key)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _key(seed: int, name: str, what: str) -> int:
    digest = hashlib.sha256(f"{WEIGHTS_RULE}/{seed}/{name}/{what}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _root(part_of: dict[nn.Module, nn.Module], module: nn.Module) -> nn.Module:
    while part_of[module] is not module:
        module = part_of[module]
    return module


def _merge(part_of: dict[nn.Module, nn.Module], one: nn.Module, other: nn.Module) -> None:
    part_of[_root(part_of, one)] = _root(part_of, other)
