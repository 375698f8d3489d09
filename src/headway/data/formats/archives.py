"""Archives: each member is read as the file it is, one after the other; nothing is extracted.

Behind a damaged header reading goes on at the next one that is whole, which its checksum tells.
Python's tarfile takes a damaged header for the end of the archive, and says nothing.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from headway.data.formats.chunks import DAMAGED, Chunk, Opened, broken

_ERRORS = (tarfile.TarError, *DAMAGED)
_tarfile: Any = tarfile
"""With the kinds of HeaderError, of which type checkers do not know."""


def tar_chunks(opened: Opened, read_member: Callable[[Opened], Iterator[Chunk]]) -> Iterator[Chunk]:
    """`read_member` reads a file by its suffix."""
    if opened.can_seek:
        opened.stream.seek(0)
    last = ""
    try:
        # As a stream: archives may be larger than memory, and compressed ones cannot go back.
        with _Archive.open(
            fileobj=opened.stream,
            mode="r|",
            ignore_zeros=True,  # archives may be joined end to end
            encoding="utf-8",
            errors="backslashreplace",
        ) as archive:
            assert isinstance(archive, _Archive)
            is_done = False
            while not is_done:
                # The first was read on opening; asked again where there is none, tarfile goes back.
                member = archive.next() if last or archive.firstmember else None
                is_done = member is None
                if message := archive.problem(last, is_done):
                    yield broken("damaged archive", opened.file, None, message)
                if member is not None:
                    last = member.name
                    archive.members.clear()  # else it remembers them all
                    yield from _member_chunks(archive, member, opened, read_member)
    except _ERRORS as error:
        what = f"what comes behind {last} is lost" if last else "nothing can be read"
        yield broken("damaged archive", opened.file, None, f"{error}; {what}")


def _member_chunks(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    opened: Opened,
    read_member: Callable[[Opened], Iterator[Chunk]],
) -> Iterator[Chunk]:
    file = f"{opened.file}/{member.name}"
    if member.isdir():
        return
    stream = archive.extractfile(member) if member.isfile() else None
    if stream is None:
        yield broken("not a file", file, None, "a link or a device inside an archive")
    elif any(part.startswith(".") and part.strip(".") for part in member.name.split("/")):
        yield broken("hidden file", file, None, "its name begins with a dot: it is left out")
    elif member.size == 0:
        yield broken("empty file", file, None, "there is nothing in it")
    else:
        member_stream = cast(BinaryIO, _MemberStream(stream))
        yield from read_member(Opened(file, member_stream, can_seek=False, columns=opened.columns))


class _MemberStream(io.RawIOBase):
    """Raises what readers know, where the archive ends too early."""

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
    """Keeps account of what tarfile passes over."""

    tarinfo = _Header
    members: list[tarfile.TarInfo]
    firstmember: tarfile.TarInfo | None
    has_end = False
    """Whether the last thing that was read is an end mark."""
    num_passed = 0
    """Blocks without a header, where one should have been, since `problem` was asked for."""

    def problem(self, last: str, is_done: bool) -> str:
        """What is wrong between the member `last` and the place reached now."""
        num_bytes, self.num_passed = self.num_passed * tarfile.BLOCKSIZE, 0
        after = f"behind {last}" if last else "at its beginning"
        if num_bytes and is_done and not last:
            return "it is no tar archive"
        if num_bytes:
            return f"no header {after}: {num_bytes} bytes are passed over"
        if is_done and not self.has_end:
            return f"no end mark {after}: members may be missing"
        return ""
