"""Archives: members are read one after the other, each by its own format; nothing is extracted.

After a damaged header, reading continues at the next intact one, recognised by its checksum.
Python's tarfile silently takes a damaged header for the end of the archive.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from headway.data.formats.chunks import DAMAGED, Chunk, OpenedSource, damage_chunk, problem_chunk

_ERRORS = (tarfile.TarError, *DAMAGED)
_tarfile: Any = tarfile
"""tarfile as Any: type checkers do not know the subclasses of HeaderError."""


def tar_chunks(
    opened: OpenedSource, read_member: Callable[[OpenedSource], Iterator[Chunk]]
) -> Iterator[Chunk]:
    """The chunks of all members. `read_member` reads a file by its suffix."""
    if opened.can_seek:
        opened.stream.seek(0)
    last = ""
    try:
        # Read as a stream: archives may exceed memory, and compressed ones cannot seek back.
        with _Archive.open(
            fileobj=opened.stream,
            mode="r|",
            ignore_zeros=True,  # archives may be concatenated
            encoding="utf-8",
            errors="backslashreplace",
        ) as archive:
            assert isinstance(archive, _Archive)
            is_done = False
            while not is_done:
                # Opening read the first member. If there was none, next() would seek back.
                member = archive.next() if last or archive.firstmember else None
                is_done = member is None
                if message := archive.problem(last, is_done):
                    yield damage_chunk("damaged archive", opened.file, None, message)
                if member is not None:
                    last = member.name
                    archive.members.clear()  # tarfile keeps every member otherwise
                    yield from _member_chunks(archive, member, opened, read_member)
    except _ERRORS as error:
        what = f"everything after {last} is lost" if last else "nothing can be read"
        yield damage_chunk("damaged archive", opened.file, None, f"{error}; {what}")


def _member_chunks(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    opened: OpenedSource,
    read_member: Callable[[OpenedSource], Iterator[Chunk]],
) -> Iterator[Chunk]:
    file = f"{opened.file}/{member.name}"
    if member.isdir():
        return
    stream = archive.extractfile(member) if member.isfile() else None
    if stream is None:
        yield problem_chunk("not a file", file, None, "a link or a device inside an archive")
    elif any(part.startswith(".") and part.strip(".") for part in member.name.split("/")):
        yield problem_chunk("hidden file", file, None, "its name begins with a dot: it is left out")
    elif member.size == 0:
        yield problem_chunk("empty file", file, None, "there is nothing in it")
    else:
        member_stream = cast(BinaryIO, _MemberStream(stream))
        yield from read_member(
            OpenedSource(file, member_stream, can_seek=False, columns=opened.columns)
        )


class _MemberStream(io.RawIOBase):
    """A member's bytes. Where the archive ends too early, raises an error that readers handle."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except tarfile.TarError as error:
            raise EOFError(f"the archive is damaged: {error}") from error

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Header(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Header:
        assert isinstance(archive, _Archive)
        try:
            header = super().fromtarfile(archive)
        except _tarfile.EOFHeaderError:
            archive.has_end = True
            raise
        except (_tarfile.InvalidHeaderError, _tarfile.TruncatedHeaderError):
            archive.num_passed += 1
            raise
        archive.has_end = False
        return header


class _Archive(tarfile.TarFile):
    """A tar archive that records what tarfile skips."""

    tarinfo = _Header
    members: list[tarfile.TarInfo]
    firstmember: tarfile.TarInfo | None
    has_end = False
    """Whether the last block read was an end-of-archive marker."""
    num_passed = 0
    """Blocks skipped since the last call of `problem`, where a header was expected."""

    def problem(self, last: str, is_done: bool) -> str:
        """What is wrong between the member `last` and the current position; empty if nothing is."""
        num_bytes, self.num_passed = self.num_passed * tarfile.BLOCKSIZE, 0
        after = f"after {last}" if last else "at its beginning"
        if num_bytes and is_done and not last:
            return "not a tar archive"
        if num_bytes:
            return f"no header {after}: {num_bytes} bytes are skipped"
        if is_done and not self.has_end:
            return f"no end-of-archive marker {after}: members may be missing"
        return ""
