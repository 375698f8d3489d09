"""Sets as Megatron writes them: a .bin of tokens, and an .idx."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

CODES = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}


def write_pair(
    prefix: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: str = "<u2"
) -> Path:
    """Each document is a list of sequences; returns the .bin."""
    sequences = [np.array(sequence, dtype) for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    ends = np.cumsum(lengths, dtype="<i8") * np.dtype(dtype).itemsize
    bounds = np.cumsum([0, *map(len, documents)], dtype="<i8")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, CODES[dtype], len(lengths), len(bounds))
    offsets = np.append(0, ends)[:-1].astype("<i8")
    index = header + lengths.tobytes() + offsets.tobytes() + bounds.tobytes()
    prefix.with_name(f"{prefix.name}.idx").write_bytes(index)
    data = prefix.with_name(f"{prefix.name}.bin")
    data.write_bytes(b"".join(sequence.tobytes() for sequence in sequences))
    return data
