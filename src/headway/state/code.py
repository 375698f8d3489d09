"""Which version of the user's own code a run used."""

from __future__ import annotations

from pathlib import Path

import xxhash

CODE_SUFFIXES = (".py", ".yaml", ".json", ".toml", ".txt")


def code_digest(folder: Path) -> str:
    """Of every source file below `folder`, by name and content."""
    digest = xxhash.xxh3_128()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith((".", "__pycache__")) for part in parts)
        if path.is_file() and path.suffix in CODE_SUFFIXES and not hidden:
            digest.update(str(path.relative_to(folder)).encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()
