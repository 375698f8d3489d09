"""A file of tensors in the safetensors format, written in parts and hashed on the way.

The library's own writer needs every tensor as a copy in memory, and a second read for the digest; a
save of gigabytes has no room for either. The format is a length, a JSON header and the bytes; tests
read it back with the library.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headway.state.checkpoints import RankManifest, StoredTensor, TensorChunk
from headway.state.store import Store
from headway.state.stored_file import BLOCK_BYTES, BlockDigests

DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
WRITE_BYTES = 2**24
"""Bytes written at a time: the training thread runs in between."""


@dataclass(frozen=True)
class TensorRows:
    """Rows of one tensor, on the CPU and contiguous."""

    name: str
    shape: tuple[int, ...]
    start: int
    tensor: torch.Tensor


def write_tensors(store: Store, folder: str, file: str, rows: Sequence[TensorRows]) -> RankManifest:
    """Writes `folder/file`. Returns its content and digests, for the manifest."""
    header: dict[str, object] = {}
    at = 0
    for item in rows:
        end = at + item.tensor.nbytes
        header[item.name] = {
            "dtype": DTYPES[item.tensor.dtype],
            "shape": list(item.tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    beginning = len(text).to_bytes(8, "little") + text
    digests = BlockDigests(BLOCK_BYTES)
    digests.update(beginning)
    tensors: dict[str, StoredTensor] = {}
    at = len(beginning)
    with store.writing(f"{folder}/{file}") as output:
        output.write(beginning)
        for item in rows:
            count = item.tensor.shape[0] if item.tensor.ndim else 1
            chunk = TensorChunk(file=file, start=item.start, rows=count, offset=at)
            tensors[item.name] = StoredTensor(
                dtype=DTYPES[item.tensor.dtype], shape=item.shape, chunks=(chunk,)
            )
            content = as_bytes(item.tensor)
            for start in range(0, len(content), WRITE_BYTES):
                part = content[start : start + WRITE_BYTES]
                digests.update(part)
                output.write(part)
            at += len(content)
    return RankManifest(file=file, stored=digests.stored(), tensors=tensors)


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory, not a copy."""
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def merged_tensors(parts: Sequence[RankManifest]) -> dict[str, StoredTensor]:
    """Every tensor with its chunks from all files, in the order of their rows, without gaps."""
    merged: dict[str, StoredTensor] = {}
    for part in parts:
        for name, stored in part.tensors.items():
            before = merged[name].chunks if name in merged else ()
            chunks = tuple(sorted((*before, *stored.chunks), key=lambda chunk: chunk.start))
            merged[name] = stored.model_copy(update={"chunks": chunks})
    for name, stored in merged.items():
        at = 0
        for chunk in stored.chunks:
            assert chunk.start == at, f"{name}: rows {at} to {chunk.start} were not written"
            at += chunk.rows
        assert at == (stored.shape[0] if stored.shape else 1), f"{name}: rows from {at} are missing"
    return merged
