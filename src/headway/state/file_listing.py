"""The files of a folder by name, each with its size and SHA-256; and the digest of that list, which
is the folder's. What has this digest is exactly these files, so they may come from where others can
write: the list is checked before any of them is read, and each file before anything of it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

VERSION_2 = "2-"
"""What digests of this kind begin with."""


@dataclass(frozen=True)
class Listed:
    name: str
    """Below the folder, with `/`."""
    size: int
    sha256: str
    executable: bool = False
    """Only of code; named in the list only where it is so."""


@dataclass(frozen=True)
class Listing:
    files: tuple[Listed, ...]
    """By name."""

    @property
    def content(self) -> bytes:
        """As it is kept beside the folder."""
        return json.dumps([_facts(one) for one in self.files], indent=1).encode() + b"\n"

    @property
    def digest(self) -> str:
        return VERSION_2 + hashlib.sha256(self.content).hexdigest()


def listing_of(files: Mapping[str, Path], executable: Collection[str] = ()) -> Listing:
    """`files` by their names in the folder."""
    return Listing(
        tuple(_listed(name, path, name in executable) for name, path in sorted(files.items()))
    )


def read_listing(content: bytes, digest: str) -> Listing | None:
    """None: it is not the one that has this digest."""
    if VERSION_2 + hashlib.sha256(content).hexdigest() != digest:
        return None
    return Listing(tuple(Listed(**one) for one in json.loads(content)))


def _facts(one: Listed) -> dict[str, object]:
    facts = asdict(one)
    if not one.executable:
        del facts["executable"]
    return facts


def _listed(name: str, path: Path, executable: bool) -> Listed:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Listed(name, file.tell(), digest, executable)
