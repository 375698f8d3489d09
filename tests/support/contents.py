"""Content of files, good and bad, for tests of what reads them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PLANTED = "planted"
"""The file that a pickle in the corpus would make."""


def json_lines(*lines: Any) -> bytes:
    """Objects become JSON; bytes stay as they are."""
    return b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )


def parquet(columns: Mapping[str, Any], rows_in_group: int = 1000) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        pa.table(dict(columns)),
        sink,
        row_group_size=rows_in_group,
        use_dictionary=False,
        compression="none",
        write_page_checksum=True,
        write_statistics=False,
    )
    return sink.getvalue()


def arrow(*batches: list[str]) -> bytes:
    sink = io.BytesIO()
    schema = pa.schema([("text", pa.string())])
    with pa.ipc.new_file(sink, schema) as file:
        for batch in batches:
            file.write_batch(pa.record_batch([batch], schema=schema))
    return sink.getvalue()


def npy(array: np.ndarray) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def h5(**datasets: np.ndarray) -> bytes:
    sink = io.BytesIO()
    with h5py.File(sink, "w") as file:
        for name, array in datasets.items():
            file[name] = array
    return sink.getvalue()


def zst(content: bytes) -> bytes:
    return bytes(pa.compress(content, "zstd", asbytes=True))


def words(number: int) -> str:
    """A document that no other equals."""
    return f"This is document number {number}, and it is good."


def texts(*numbers: int) -> tuple[str, ...]:
    return tuple(words(number) for number in numbers)


def lines_of(*numbers: int) -> bytes:
    return json_lines(*({"text": words(number)} for number in numbers))


def around(line: Any) -> bytes:
    """A line of JSON, the second of three."""
    return lines_of(1) + json_lines(line) + lines_of(3)


def chat(answer: str, question: str = "Well?") -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def spoken(answer: str) -> str:
    """What the chat template makes of it."""
    return f"user: Well?\nassistant: {answer}<|turn|>"


class Planted:
    """Unpickled, it makes a file in the current folder."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open, (PLANTED, "w")
