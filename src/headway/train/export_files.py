"""A checkpoint's weights as safetensors files in the HF format, copied in small pieces: no process
holds the model, nor one of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.state.checkpoints import (
    CheckpointManifest,
    FoundCheckpoint,
    StoredTensor,
    TensorChunk,
)
from headway.state.store import Store
from headway.state.stored_file import READ_BYTES
from headway.train.safetensors_file import TORCH_DTYPES
from headway.train.state_tensors import tied_names
from headway.train.weight_files import INDEX, ONE_FILE

MAX_FILE_BYTES = 5 * 10**9
"""Size of a file of tensors. Loaders read whole files, and the hub takes at most 50 GB."""


def differs_when_saved(model: Any) -> bool:
    """Whether transformers saves other tensors than the model has, for a model on the meta device:
    for some types the files keep a format that is older than their code."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    ignored = getattr(model, "_keys_to_ignore_on_save", None)
    return bool(ignored or get_model_conversion_mapping(model, add_legacy=False))


def write_weights(
    model: Any,
    store: Store,
    found: FoundCheckpoint,
    manifest: CheckpointManifest,
    into: Path,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """For a model on the meta device: what its `save_pretrained` would write, with weights."""
    tensors = {name: manifest.tensors[f"model/{of}"] for name, of in _saved_names(model).items()}
    files = _files(tensors, max_file_bytes)
    total = sum(_num_bytes(tensor) for tensor in tensors.values())
    weight_map: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file = ONE_FILE
        if len(files) > 1:
            file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        _write_file(into / file, {name: tensors[name] for name in names}, store, found.folder)
        weight_map |= dict.fromkeys(names, file)
    if len(files) > 1:
        facts = {"total_parameters": model.num_parameters(), "total_size": total}
        index = {"metadata": facts, "weight_map": dict(sorted(weight_map.items()))}
        (into / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _saved_names(model: Any) -> dict[str, str]:
    """Names in the files, each with the checkpoint's name of the same tensor. A tied tensor is
    saved under the name that others are tied to, and a checkpoint has its first."""
    stored_names = {id(tensor): name for name, tensor in model.named_parameters()}
    tied = tied_names(model)
    others = set(getattr(model, "all_tied_weights_keys", {}))
    names = {name: name for name in model.state_dict() if name not in tied}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        of = stored_names[id(tensor)]
        if name in tied and name not in others and of in others:
            names.pop(of, None)
            names[name] = of
    return names


def _files(tensors: dict[str, StoredTensor], max_file_bytes: int) -> list[list[str]]:
    """Names of the tensors of each file, in the model's order."""
    files: list[list[str]] = [[]]
    room = max_file_bytes
    for name, tensor in tensors.items():
        size = _num_bytes(tensor)
        if size > room and files[-1]:
            files.append([])
            room = max_file_bytes
        files[-1].append(name)
        room -= size
    return files


def _write_file(path: Path, tensors: dict[str, StoredTensor], store: Store, folder: str) -> None:
    # In the order of the safetensors library: larger types first, then by name.
    ordered = sorted(tensors, key=lambda n: (-TORCH_DTYPES[tensors[n].dtype].itemsize, n))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in ordered:
        end = at + _num_bytes(tensors[name])
        shape = list(tensors[name].shape)
        header[name] = {"dtype": tensors[name].dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as output:
        output.write(len(text).to_bytes(8, "little") + text)
        for name in ordered:
            for chunk in tensors[name].chunks:
                _copy(output, tensors[name], chunk, store, folder)


def _copy(output: Any, tensor: StoredTensor, chunk: TensorChunk, store: Store, folder: str) -> None:
    rows = tensor.shape[0] if tensor.shape else 1
    size = _num_bytes(tensor) // rows * chunk.rows if rows else 0
    copied = 0
    for content in store.read_ranges(f"{folder}/{chunk.file}", chunk.offset, size, READ_BYTES):
        copied += output.write(content)
    assert copied == size, f"{chunk.file} ends early"


def _num_bytes(tensor: StoredTensor) -> int:
    size = TORCH_DTYPES[tensor.dtype].itemsize
    for extent in tensor.shape:
        size *= extent
    return size
