"""Weights from files in the Hugging Face format: each rank reads its own rows of each tensor."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headway.state.checkpoints import StoredTensor, TensorChunk
from headway.state.store import Store
from headway.train.initial_weights import InitialWeights, NotByParts
from headway.train.read_rows import WantedRows, read_rows
from headway.train.safetensors_file import TORCH_DTYPES
from headway.train.state_tensors import state_tensor_of, tied_names
from headway.train.world import RankPlacement

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""As in the safetensors library."""


class FileChunk(TensorChunk):
    """A tensor in a file of any name."""

    file: str
    """File name, in the model's folder."""


@dataclass(frozen=True)
class FileWeights:
    """Fills a model whose tensors have memory but no values."""

    initial: InitialWeights
    """For the buffers that no file has."""
    folder: Path
    tensors: dict[str, StoredTensor]
    """By the model's names."""

    def fill_buffers(self, model: nn.Module) -> None:
        self.initial.fill_buffers(model)

    @torch.no_grad()
    def fill(self, model: nn.Module, placement: RankPlacement) -> None:
        """Each rank by itself."""
        tied, wanted = tied_names(model), []
        for name, tensor in model.state_dict().items():
            if name not in tied:
                held = state_tensor_of(name, tensor)
                wanted.append(WantedRows(held.local, held.start, self.tensors[name]))
        read_rows(wanted, {}, Store(self.folder.parent), self.folder.name)


def file_weights(model: Any, initial: InitialWeights, folder: Path) -> FileWeights:
    """For a model on the meta device. Raises NotByParts if the files need more than renaming."""
    if getattr(model.config, "quantization_config", None) is not None:
        raise NotByParts("its files are quantized")
    wanted = model.state_dict()
    tensors: dict[str, StoredTensor] = {}
    for stored_name, stored in _stored_tensors(folder).items():
        name = _name_in_model(stored_name, model, wanted)
        if name in tensors:
            raise NotByParts(f"two tensors of its files are {name}")
        tensors[name] = stored
    for name in tied_names(model):
        if name in tensors:
            raise NotByParts(f"its config ties {name}, and its files have it")
    for name in wanted.keys() - tied_names(model):
        if name not in tensors:
            raise NotByParts(f"its files lack {name}")
        if tensors[name].dtype not in TORCH_DTYPES:
            raise NotByParts(f"its files have {name} as {tensors[name].dtype}")
        if tensors[name].shape != tuple(wanted[name].shape):
            raise NotByParts(f"its files have another shape of {name}")
    return FileWeights(initial, folder, tensors)


def _name_in_model(stored_name: str, model: Any, wanted: dict[str, Any]) -> str:
    """As transformers renames it: the prefix of the base model, and names of older versions."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    prefix = model.base_model_prefix
    name, converter = rename_source_key(stored_name, renamings, converters, prefix, wanted)
    if name not in wanted and stored_name in wanted:
        name, converter = rename_source_key(stored_name, [], [], prefix, wanted)
    if converter is not None and name in wanted:
        raise NotByParts(f"transformers computes {name} from several tensors of its files")
    return str(name)


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's files, by its name there."""
    if (folder / ONE_FILE).is_file():
        return _header(folder, ONE_FILE)
    if not (folder / INDEX).is_file():
        raise NotByParts(f"{folder} has neither {ONE_FILE} nor {INDEX}")
    files = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(files):
        if Path(file).name != file or not (folder / file).is_file():
            raise NotByParts(f"{folder} has no file {file}")
        tensors |= _header(folder, file)
    return tensors


def _header(folder: Path, file: str) -> dict[str, StoredTensor]:
    """What is in a safetensors file: a length, and a JSON header of that length, come first."""
    with (folder / file).open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise NotByParts(f"{file} is not a safetensors file")
        header = json.loads(content.read(length))
    tensors = {}
    for name, facts in header.items():
        if name == "__metadata__":
            continue
        rows = facts["shape"][0] if facts["shape"] else 1
        offset = 8 + length + facts["data_offsets"][0]
        chunk = FileChunk(file=file, start=0, rows=rows, offset=offset)
        tensors[name] = StoredTensor(
            dtype=facts["dtype"], shape=tuple(facts["shape"]), chunks=(chunk,)
        )
    return tensors
