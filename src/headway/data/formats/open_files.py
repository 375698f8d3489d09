"""Opens sources: on this machine, in an object store or on a web server, plain or compressed.

A failing disk or store is not bad input: its errors become a HeadwayError here, which ends the
preparation; the next attempt resumes it. Errors in the content itself stay as the decompressors
raise them, and are counted and skipped.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from headway.data.formats.web_files import WebFile, is_web, web_path
from headway.errors import HeadwayError
from headway.state.store import BUFFER_BYTES, Store

COMPRESSIONS = (".gz", ".zst", ".xz")
_ZSTANDARD_MAGIC = b"\x28\xb5\x2f\xfd"
_FRAME_HEADER_BYTES = 18
"""The most that a frame's header takes."""


def split_suffix(name: str) -> tuple[str, str]:
    """`a.jsonl.gz` is (".jsonl", ".gz"), `a.txt` is (".txt", ""); in lower case."""
    path = Path((web_path(name) if is_web(name) else name).lower())
    if path.suffix in COMPRESSIONS:
        return Path(path.stem).suffix, path.suffix
    return path.suffix, ""


def open_raw(name: str, beside: Path, anonymous: bool) -> BinaryIO:
    """A seekable stream of the bytes as stored."""
    location = name if "://" in name else beside / name
    try:
        if is_web(name):
            stream = cast(BinaryIO, io.BufferedReader(WebFile(name), BUFFER_BYTES))
        else:
            stream = Store(location, anonymous=anonymous).reading()
    except OSError as error:
        raise failure(name, error) from error
    return cast(BinaryIO, io.BufferedReader(_Guarded(stream, name), io.DEFAULT_BUFFER_SIZE))


def decompressed(stream: BinaryIO, compression: str) -> BinaryIO:
    """A stream that only reads forward. If the content is damaged, raises an error of
    chunks.DAMAGED after returning everything that could be read."""
    if compression == ".gz":
        return cast(BinaryIO, _OnePiece(gzip.GzipFile(fileobj=stream)))
    if compression == ".xz":
        return cast(BinaryIO, _OnePiece(lzma.LZMAFile(stream)))
    assert compression == ".zst"
    return cast(BinaryIO, _Zstandard(stream))


def seekable_copy(stream: BinaryIO) -> BinaryIO:
    """A temporary copy on disk, for formats that are read from the end; deleted when closed."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    while data := stream.read(2**20):
        try:
            copy.write(data)
        except OSError as error:
            copy.close()
            raise HeadwayError(
                f"no space for a decompressed copy in {tempfile.gettempdir()}: {error}",
                "decompress the file, or set TMPDIR to a folder with more space",
            ) from error
    copy.seek(0)
    return cast(BinaryIO, copy)


class Decompressed(io.RawIOBase):
    """A stream of decompressed bytes that only reads forward."""

    position = 0
    """Number of bytes read."""
    promised: int | None = None
    """Length of the whole stream, if the file says it at its beginning."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        assert data is not None
        buffer[: len(data)] = data
        return len(data)


class _OnePiece(Decompressed):
    """Returns the output of a single decompression step per read: if several were combined, a
    failure of the last would lose them all."""

    def __init__(self, stream: gzip.GzipFile | lzma.LZMAFile) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read1(size)
        self.position += len(data)
        return data


class _Zstandard(Decompressed):
    """Decompresses with Arrow, which loses what a failed read had already decompressed. That part
    is decompressed once more, from the beginning of the file."""

    def __init__(self, compressed: BinaryIO) -> None:
        self._compressed = compressed
        self.promised = _frame_bytes(compressed.read(_FRAME_HEADER_BYTES))
        compressed.seek(0)
        self._stream = self._again = _arrow_stream(compressed)
        self._failure: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        if self._failure is not None:
            raise self._failure
        try:
            data = bytes(self._stream.read(size if size >= 0 else io.DEFAULT_BUFFER_SIZE))
        except OSError as error:
            self._failure = error
            data = self._before_failure()
            if not data:
                raise
        self.position += len(data)
        return data

    def _before_failure(self) -> bytes:
        self._compressed.seek(0)
        # Keep a reference: an Arrow stream closes its source when it is garbage-collected.
        stream = self._again = _arrow_stream(self._compressed)
        passed = 0
        while passed < self.position:
            passed += len(stream.read(min(2**20, self.position - passed)))
        data = b""
        with suppress(OSError):
            while byte := stream.read(1):
                data += byte
        return data


def _frame_bytes(header: bytes) -> int | None:
    """Length of the content of a Zstandard frame, if its header says it (RFC 8878, 3.1.1.1)."""
    if len(header) < _FRAME_HEADER_BYTES or header[:4] != _ZSTANDARD_MAGIC:
        return None
    is_single_segment = bool(header[4] & 0x20)
    size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[header[4] >> 6]
    if not size_bytes:
        return None
    begin = 5 + (not is_single_segment) + (0, 1, 2, 4)[header[4] & 3]
    size = int.from_bytes(header[begin : begin + size_bytes], "little")
    return size + 256 if size_bytes == 2 else size


def _arrow_stream(compressed: BinaryIO) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(compressed, mode="r"), "zstd")


class _Guarded(io.RawIOBase):
    """A stream whose I/O errors are reported as ours instead of being taken for damaged content."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(cast(Any, self._stream).readinto(buffer))
        except OSError as error:
            raise failure(self._name, error) from error

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        # Not guarded: seeking touches neither disk nor store, and fails only when damaged content
        # names an impossible offset.
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def failure(name: str, error: OSError) -> HeadwayError:
    return HeadwayError(
        f"{name} cannot be read: {error}",
        "run the same command to resume",
    )
