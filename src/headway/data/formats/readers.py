"""Maps file suffixes to readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from tokenize import TokenError

from headway.data.formats.archives import tar_chunks
from headway.data.formats.chunks import DAMAGED, Chunk, OpenedSource, problem_chunk
from headway.data.formats.csv_files import csv_chunks, tsv_chunks
from headway.data.formats.json_files import json_chunks
from headway.data.formats.open_files import decompressed, open_raw, seekable_copy, split_suffix
from headway.data.formats.text_and_jsonl import json_line_chunks, text_chunks

Reader = Callable[[OpenedSource], Iterator[Chunk]]


def _with_extra(module: str, function: str) -> Reader:
    """A reader that needs NumPy or Arrow: `headway check` reads the other formats without them."""

    def read(opened: OpenedSource) -> Iterator[Chunk]:
        reader: Reader = getattr(import_module(f"headway.data.formats.{module}"), function)
        return reader(opened)

    return read


READERS: dict[str, Reader] = {
    ".txt": text_chunks,
    ".jsonl": json_line_chunks,
    ".ndjson": json_line_chunks,
    ".json": json_chunks,
    ".csv": csv_chunks,
    ".tsv": tsv_chunks,
    ".parquet": _with_extra("parquet", "parquet_chunks"),
    ".arrow": _with_extra("parquet", "arrow_chunks"),
    ".npy": _with_extra("arrays", "npy_chunks"),
    ".h5": _with_extra("arrays", "h5_chunks"),
    ".hdf5": _with_extra("arrays", "h5_chunks"),
}
ARCHIVES = {".tar": "", ".tgz": ".gz", ".txz": ".xz", ".tzst": ".zst"}
"""Suffixes of archives, and the compression that each implies."""
NEED_SEEK = (".parquet", ".arrow", ".h5", ".hdf5")
SPLITTABLE = (".txt", ".jsonl", ".ndjson")
"""Suffixes of formats whose uncompressed files can be read in parts, in parallel."""
_DAMAGED = (*DAMAGED, TokenError)
"""NumPy parses array headers with Python's tokenizer, which raises its own errors."""

SUPPORTED = ", ".join([*READERS, ".tar"]) + ", each also as .gz, .zst or .xz"


def is_readable(name: str) -> bool:
    suffix, _ = split_suffix(name)
    return suffix in READERS or suffix in ARCHIVES


def is_splittable(name: str) -> bool:
    suffix, compression = split_suffix(name)
    return suffix in SPLITTABLE and not compression


def file_chunks(
    name: str,
    beside: Path,
    begin: int = 0,
    end: int | None = None,
    *,
    columns: tuple[str, ...] | None = None,
    anonymous: bool = False,
    position: Callable[[int], None] = lambda _: None,
) -> Iterator[Chunk]:
    """The chunks of a file or of a byte range of it; reports the offset reached to `position`."""
    with open_raw(name, beside, anonymous) as raw:
        suffix, compression = split_suffix(name)
        packed = compression or ARCHIVES.get(suffix, "")
        is_empty = True
        try:
            stream = decompressed(raw, packed) if packed else raw
            opened = OpenedSource(name, stream, not packed, begin, end, columns)
            for chunk in _chunks(opened, suffix):
                is_empty = False
                position(raw.tell())
                yield chunk
        except _DAMAGED as error:
            is_empty = False
            yield problem_chunk(
                "damaged file", name, None, f"{error}; the rest of the file is lost"
            )
        if is_empty and begin == 0:
            yield problem_chunk("empty file", name, None, "there is nothing in it")


def _chunks(opened: OpenedSource, suffix: str) -> Iterator[Chunk]:
    if suffix in ARCHIVES:
        yield from tar_chunks(opened, _member_chunks)
    elif suffix in NEED_SEEK and not opened.can_seek:
        with seekable_copy(opened.stream) as copy:
            yield from READERS[suffix](
                OpenedSource(opened.file, copy, can_seek=True, columns=opened.columns)
            )
    else:
        yield from READERS[suffix](opened)


def _member_chunks(opened: OpenedSource) -> Iterator[Chunk]:
    """The chunks of a file inside an archive."""
    suffix, compression = split_suffix(opened.file)
    if suffix not in READERS:
        yield problem_chunk("unknown suffix", opened.file, None, f"supported: {SUPPORTED}")
        return
    stream = decompressed(opened.stream, compression) if compression else opened.stream
    try:
        yield from _chunks(
            OpenedSource(opened.file, stream, can_seek=False, columns=opened.columns), suffix
        )
    except _DAMAGED as error:
        yield problem_chunk("damaged file", opened.file, None, f"{error}; the rest of it is lost")
