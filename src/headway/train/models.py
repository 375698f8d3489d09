"""The network: from scratch, from the hub or a folder, from another run, or the user's own."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from headway.data.hub_reachable import why_hub_is_away
from headway.data.reading.sample_set import SampleSet
from headway.errors import BadInput
from headway.plan.model_size import ModelSize, model_size, padded_vocabulary
from headway.spec.resolve import Resolved
from headway.spec.run_file import ModelConfig, ObjectiveConfig
from headway.state.own_function import own_builder
from headway.train.initial_weights import InitialWeights, NotByParts
from headway.train.packed_sequences import require_search
from headway.train.weight_files import INDEX, ONE_FILE, file_weights
from headway.train.world import RankPlacement

TYPES_HINT = (
    "a type of transformers, such as gpt2, llama or bert; or model.call, a function of yours"
)
MOST_CHARACTERS = 300
"""Length of a library's message in an error."""


class WeightSource(Protocol):
    """Fills a model that has memory but no values."""

    def fill_buffers(self, model: nn.Module) -> None:
        """Also those that no checkpoint has. Each rank by itself."""
        ...

    def fill(self, model: nn.Module, placement: RankPlacement) -> None:
        """Fills the parameters. COLLECTIVE in the domain when the model is sharded over it."""
        ...


@dataclass(frozen=True)
class Network:
    """A module, and where its weights come from."""

    module: Any
    weights: WeightSource | None
    """What fills the module, which is on the meta device. None: it has its weights."""
    whole_because: str | None = None
    """Why it was built whole."""


@dataclass(frozen=True)
class Ends:
    """The parts of a transformers model before and after its blocks, if they share no weights."""

    table: nn.Embedding
    """The token table."""
    head: list[nn.Module]
    """Final norm and output head."""


@dataclass(frozen=True)
class BuiltModel:
    module: nn.Module
    blocks: list[nn.Module] = field(repr=False)
    """The repeated layers: units of sharding, recomputation and compiling."""
    ends: Ends | None = field(default=None, repr=False, kw_only=True)
    """Units of sharding beside the blocks; None: the ends are part of the root."""
    size: ModelSize | None
    """None where the type is unknown to the plan; then there is no MFU."""
    is_transformers: bool
    weights: WeightSource | None = field(default=None, repr=False)
    """What fills the module, which is on the meta device. None: it has its weights."""
    whole_because: str | None = None
    """Why the module was built whole on every rank."""


def build_model(
    model: ModelConfig,
    objective: ObjectiveConfig,
    resolved: Resolved,
    samples: SampleSet,
    trained: Network | None = None,
) -> BuiltModel:
    """On the meta device where its weights can be filled in part by part; otherwise with the same
    weights on every worker.

    `trained` is the network of another run, where `model` names one.
    """
    torch.manual_seed(resolved.run.seed)
    if model.call is not None:
        return own_model(model)
    if trained is not None:
        network = trained
    elif model.from_ is not None:
        network = _from_weights(model, objective, resolved)
    else:
        network = _random(model, objective, samples, resolved.run.seed)
    module = network.module
    blocks, is_transformers, size = find_blocks(module), hasattr(module, "config"), None
    if is_transformers:
        require_search()
        module.config.use_cache = False  # a cache of keys and values is for generation
        _check_fits(module.config, resolved.run.data.sequence_length, samples)
        size = model_size(module.config.model_type, module.config.to_dict())
    return BuiltModel(
        module,
        blocks,
        size,
        is_transformers,
        network.weights,
        network.whole_because,
        ends=find_ends(module, blocks) if is_transformers else None,
    )


def _random(
    model: ModelConfig, objective: ObjectiveConfig, samples: SampleSet, seed: int
) -> Network:
    module = _from_scratch(model, objective, samples)
    try:
        return Network(module, InitialWeights(module, seed))
    except NotByParts as reason:
        whole = _from_scratch(model, objective, samples, device="cpu")
        return Network(whole, None, str(reason))


def find_blocks(module: nn.Module) -> list[nn.Module]:
    """The longest list of equal layers inside a network."""
    lists = [inner for inner in module.modules() if isinstance(inner, nn.ModuleList)]
    alike = [layers for layers in lists if len({type(layer) for layer in layers}) == 1]
    return list(max(alike, key=len, default=[]))


def find_ends(module: Any, blocks: list[nn.Module]) -> Ends | None:
    """The ends of a transformers model, where their weights are used nowhere else."""
    table, head = module.get_input_embeddings(), module.get_output_embeddings()
    if not (isinstance(table, nn.Embedding) and isinstance(head, nn.Linear)):
        return None
    unit = [*_norms_after(module, blocks), head]
    are_apart = _is_apart(module, [table]) and _is_apart(module, unit)
    return Ends(table, unit) if are_apart else None


def _norms_after(module: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Modules of vectors only, which follow the list of blocks."""
    for parent in module.modules():
        children = list(parent.children())
        for number, child in enumerate(children):
            if isinstance(child, nn.ModuleList) and list(child) == blocks:
                shapes = [
                    (one, [p.ndim for p in one.parameters()]) for one in children[number + 1 :]
                ]
                return [one for one, dimensions in shapes if set(dimensions) == {1}]
    return []


def _is_apart(module: nn.Module, unit: list[nn.Module]) -> bool:
    own = {p for part in unit for p in part.parameters()}
    inside = {inner for part in unit for inner in part.modules()}
    others = (one for one in module.modules() if one not in inside)
    return all(own.isdisjoint(one.parameters(recurse=False)) for one in others)


def own_model(model: ModelConfig) -> BuiltModel:
    assert model.call is not None
    made = own_builder(model.call, model.config)(**model.config)
    module, blocks = made if isinstance(made, tuple) else (made, None)
    if not isinstance(module, nn.Module):
        raise BadInput(
            f"{model.call} returned {type(module).__name__}",
            "return a torch.nn.Module, or (module, list of its blocks)",
        )
    for name, value in module.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise BadInput(
                f"{model.call}: {name} in the model's state_dict is {type(value).__name__}, and "
                "checkpoints keep tensors only",
                "leave get_extra_state out, or register a buffer",
            )
    _refuse_weights(module, model.call)
    blocks = find_blocks(module) if blocks is None else list(blocks)
    is_transformers = hasattr(module, "save_pretrained")
    if is_transformers:
        require_search()
    return BuiltModel(
        module, blocks, None, is_transformers, whole_because=f"{model.call} builds it"
    )


def _refuse_weights(module: nn.Module, call: str) -> None:
    """Those that a run cannot begin with, or would train badly."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise BadInput(
                f"{call}: {name} is on the meta device and has no values", "build it on the CPU"
            )
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise BadInput(
                f"{call}: {name} is {str(parameter.dtype).removeprefix('torch.')}; weights that "
                "are trained are kept in float32, whatever `precision` computes in",
                "return module.float(), or load it with dtype=torch.float32",
            )


def _auto_class(objective: ObjectiveConfig) -> Any:
    import transformers

    if objective.type == "masked":
        return transformers.AutoModelForMaskedLM
    return transformers.AutoModelForCausalLM


def _from_scratch(
    model: ModelConfig, objective: ObjectiveConfig, samples: SampleSet, device: str = "meta"
) -> Any:
    """On the meta device it has no weights, and takes no memory."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    assert model.type is not None
    _refuse_untrainable_type(model.type, objective)
    settings = {"vocab_size": padded_vocabulary(samples.vocab_size), **model.config}
    end = samples.special_ids.end_of_text
    if end is not None:
        settings = {"bos_token_id": end, "eos_token_id": end, **settings}
    try:
        _refuse_unknown_fields(model, AutoConfig.for_model(model.type))
        config = AutoConfig.for_model(model.type, **settings)
        with torch.device(device):
            return _auto_class(objective).from_config(
                config, attn_implementation="sdpa", dtype=torch.float32
            )
    except (ValueError, TypeError, ZeroDivisionError, StrictDataclassError) as error:
        raise BadInput(f"model.config: {model.type}: {_in_a_line(error)}") from None


def _refuse_untrainable_type(model_type: str, objective: ObjectiveConfig) -> None:
    """transformers' own message would list all of its types, in ten kilobytes."""
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, list(CONFIG_MAPPING), n=1)
        raise BadInput(
            f"model.type: transformers has no type {model_type!r}",
            f"did you mean {near[0]}?" if near else TYPES_HINT,
        )
    if CONFIG_MAPPING[model_type] not in _auto_class(objective)._model_mapping:
        kind = "masked" if objective.type == "masked" else "causal"
        raise BadInput(f"model.type: {model_type} has no {kind} language model", TYPES_HINT)


def _in_a_line(error: Exception) -> str:
    """The first line of the cause, without the message that transformers wraps it in."""
    cause = error.__cause__ or error
    return str(cause).split("\n", 1)[0][:MOST_CHARACTERS] or type(cause).__name__


def _refuse_unknown_fields(model: ModelConfig, defaults: Any) -> None:
    """transformers silently accepts a misspelt field, and builds the default shape."""
    known = {*defaults.to_dict(), *defaults.attribute_map}
    for key in model.config:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=1)
            raise BadInput(
                f"model.config: {model.type} has no field {key!r}",
                f"did you mean {near[0]}?" if near else "see transformers' config of that type",
            )


def _from_weights(model: ModelConfig, objective: ObjectiveConfig, resolved: Resolved) -> Network:
    """A hub name, or a folder in the HF format."""
    from huggingface_hub.errors import StrictDataclassError

    assert model.from_ is not None
    source = model.from_
    local = Path(resolved.folder) / Path(source).expanduser()
    if local.is_dir() and not (local / "config.json").is_file():
        raise BadInput(
            f"model.from: {local} has no config.json, so it is not a model in the HF format"
        )
    away = None if local.is_dir() else why_hub_is_away()
    place = str(local) if local.is_dir() else source
    revision = None if local.is_dir() else resolved.revision_of(model)
    kind = _auto_class(objective)
    try:
        try:
            return _by_ranges(kind, place, revision, model.config, resolved.run.seed)
        except NotByParts as reason:
            whole_because = str(reason)
        whole = kind.from_pretrained(
            place,
            revision=revision or "main",
            attn_implementation="sdpa",
            dtype=torch.float32,
            use_safetensors=True,  # a .bin file is a pickle: never read
            **model.config,
        )
        _note_untied(whole)
        return Network(whole, None, whole_because)
    except OSError as error:
        words = str(error).splitlines()[0]
        why = words if away is None else f"{words}; the hub cannot be reached ({away})"
        raise BadInput(
            f"model.from: cannot load {source!r}: {why}",
            f"{local} is not a folder; a hub name needs the network",
        ) from None
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise BadInput(
            f"model.from: {source} cannot be trained with these settings: {_in_a_line(error)}"
        ) from None


def _note_untied(module: Any) -> None:
    """transformers does not tie weights of which the files have both, whatever the config says. An
    export must not tie them either."""
    if not getattr(module.config, "tie_word_embeddings", False):
        return
    head = module.get_output_embeddings()
    if head is not None and head.weight is not module.get_input_embeddings().weight:
        module.config.tie_word_embeddings = False


def _by_ranges(
    kind: Any, place: str, revision: str | None, settings: dict[str, Any], seed: int
) -> Network:
    """On the meta device, with its files at hand. Raises NotByParts."""
    from transformers import AutoConfig

    config, unused = AutoConfig.from_pretrained(
        place, return_unused_kwargs=True, revision=revision, **settings
    )
    if unused or hasattr(config, "auto_map"):
        raise NotByParts("its settings are for code of its own")
    module = meta_model(kind, config)
    folder = _folder_of(place, revision)
    return Network(module, file_weights(module, InitialWeights(module, seed), folder))


def meta_model(kind: Any, config: Any) -> Any:
    with torch.device("meta"):
        return kind.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def _folder_of(place: str, revision: str | None) -> Path:
    """The folder of a model's files on this machine; those of the hub are downloaded to its
    cache."""
    from transformers.utils.hub import cached_file, get_checkpoint_shard_files

    if Path(place).is_dir():
        return Path(place)
    missing_is_none = {
        "revision": revision,
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    file = cached_file(place, ONE_FILE, **missing_is_none)
    if file is None:
        file = cached_file(place, INDEX, **missing_is_none)
        if file is None:
            raise NotByParts(f"{place} has neither {ONE_FILE} nor {INDEX}")
        get_checkpoint_shard_files(place, file, revision=revision)
    return Path(file).parent


def _check_fits(config: Any, sequence_length: int, samples: SampleSet) -> None:
    if config.vocab_size < samples.vocab_size:
        raise BadInput(
            f"the data's tokenizer has {samples.vocab_size} tokens, the model only "
            f"{config.vocab_size}",
            "use the model's own tokenizer, or leave model.config.vocab_size out",
        )
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and sequence_length > positions:
        raise BadInput(
            f"data.sequence_length {sequence_length} is more than the model's {positions} positions"
        )


def compile_blocks(built: BuiltModel) -> None:
    for block in built.blocks or [built.module]:
        block.compile()
