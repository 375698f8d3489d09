"""Compiled code as one file that may lie where others can write: a MAC, then a tar of a compiler's
cache folder.

What is in it is code: pickles, Python files, shared libraries. It is the one exception to the rule
that no pickle is ever read, so nothing of the tar is looked at before the MAC fits. The MAC covers
the name under which the archive is kept, too: one that is moved to another name does not fit.
Pure: no store, no clock.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path

MOST_BYTES = 2**27
"""Of an archive: it is read into memory."""
MAC_BYTES = 32
PART = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
NAME = re.compile(rf"{PART}(/{PART})*")
"""Of a file: below the folder, and neither hidden nor temporary."""
LOCKS = "locks/"
"""Files by which compilers of one machine wait for each other."""


class BadArchive(Exception):
    """It is not what one of the run's nodes has written."""


def cached_files(folder: Path) -> dict[str, Path]:
    """What a compiler has written, by name: no links, locks, hidden or temporary files."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {
        name: path
        for name, path in found.items()
        if NAME.fullmatch(name)
        and not name.startswith(LOCKS)
        and not name.endswith((".lock", ".tmp"))
        and path.is_file()
        and not path.is_symlink()
    }


def pack(
    files: Iterable[tuple[str, Path]], key: bytes, kept_as: str, most_bytes: int = MOST_BYTES
) -> bytes | None:
    """The archive; None if it would be too large. A file that is gone meanwhile is left out."""
    packed = io.BytesIO()
    # Names of kernels are those of all that was fused: USTAR has room for 100 characters of them.
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in files:
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
            if packed.tell() > most_bytes:
                return None
    content = packed.getvalue()
    return _mac(content, key, kept_as) + content


def unpack(archive: bytes, key: bytes, kept_as: str, folder: Path) -> list[str]:
    """Writes its files below `folder`, and returns their names. Raises BadArchive before anything
    is written, if the MAC does not fit."""
    mac, content = archive[:MAC_BYTES], archive[MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(content, key, kept_as)):
        raise BadArchive("its MAC does not fit: it was changed, or written with another key")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        members = tar.getmembers()
        for member in members:
            if not member.isreg() or not NAME.fullmatch(member.name):
                raise BadArchive(f"it has {member.name!r}, which is no plain file below its folder")
        for member in members:
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            file = tar.extractfile(member)
            assert file is not None, "a plain file"
            path.write_bytes(file.read())
    return [member.name for member in members]


def _mac(content: bytes, key: bytes, kept_as: str) -> bytes:
    made = hmac.new(key, f"headway compiled 1\0{kept_as}\0".encode(), hashlib.sha256)
    made.update(content)
    return made.digest()
