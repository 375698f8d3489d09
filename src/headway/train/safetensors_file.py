"""A file of tensors in the safetensors format, written in parts and hashed on the way.

The library's own writer needs every tensor as a copy in memory, and a second read for the digest; a
save of gigabytes has no room for either. The format is a length, a JSON header and the bytes; tests
read it back with the library.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xxhash

from headway.state.checkpoints import (
    READ_BYTES,
    RankManifest,
    StoredFile,
    StoredTensor,
    TensorChunk,
)
from headway.state.store import Store

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
    """Writes `folder/file`. Returns its content and digest, for the manifest."""
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
    digest = xxhash.xxh3_128(beginning)
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
                digest.update(part)
                output.write(part)
            at += len(content)
    return RankManifest(
        file=file, stored=StoredFile(size=at, xxh3=digest.hexdigest()), tensors=tensors
    )


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory, not a copy."""
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def fill_rows(
    target: torch.Tensor, start: int, stored: StoredTensor, store: Store, folder: str
) -> None:
    """Fills `target` with the rows from `start` on of the stored tensor, from the chunks that hold
    them."""
    count = target.shape[0] if target.ndim else 1
    if target.numel() == 0:
        return
    dtype = TORCH_DTYPES[stored.dtype]
    whole_rows = stored.shape[0] if stored.shape else 1
    row_numbers = int(np.prod(stored.shape[1:], dtype=np.int64)) if stored.shape else 1
    row_bytes = row_numbers * dtype.itemsize
    assert start + count <= whole_rows
    filled = 0
    for chunk in stored.chunks:
        first, last = max(start, chunk.start), min(start + count, chunk.start + chunk.rows)
        if first >= last:
            continue
        offset = chunk.offset + (first - chunk.start) * row_bytes
        size = (last - first) * row_bytes
        content = bytearray()
        for part in store.read_ranges(f"{folder}/{chunk.file}", offset, size, READ_BYTES):
            content += part
        rows = torch.frombuffer(content, dtype=dtype)
        if target.ndim == 0:
            target.copy_(rows[0])
        else:
            target[first - start : last - start].copy_(rows.view(last - first, *stored.shape[1:]))
        filled += last - first
    assert filled == count, f"{folder}: {filled} of {count} rows are stored"


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
