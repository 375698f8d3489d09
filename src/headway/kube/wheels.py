"""What the pods of a run need to bring Headway into an image that has none: the list of wheels that
ship with this version, Headway's own files as one more, and the program that fetches them.

The client makes the list, which says by SHA-256 what workers run; the coordinator's pod serves the
files. So both must have the same files of Headway.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import headway
from headway import __version__

PROGRAM = "bootstrap.py"
LIST = "wheels.json"
IMAGES = "images.json"
OWN = "headway"
OLDEST = (1980, 1, 1, 0, 0, 0)
"""Time of all files in the archive: the earliest that the format knows."""


def wheels_folder() -> Path:
    """Where the image of the coordinator has them."""
    return Path(sys.prefix, "share", "headway", "wheels")


def shipped() -> dict[str, Any]:
    """What `make lock` wrote down: packages, their requirements, and wheels."""
    found: dict[str, Any] = json.loads(_beside(LIST))
    return found


@cache
def own_files() -> bytes:
    """Headway itself, as an archive: the same bytes for the same files. Not compressed, since that
    depends on the library that does it."""
    root = Path(headway.__file__).parent
    made = io.BytesIO()
    with ZipFile(made, "w", ZIP_STORED) as archive:
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).parts):
            if path.is_file() and path.suffix != ".pyc" and not path.name.startswith("."):
                entry = ZipInfo(f"{OWN}/{path.relative_to(root).as_posix()}", OLDEST)
                entry.create_system = 3  # the one with modes, wherever it is made
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, _content(path))
    return made.getvalue()


def _content(path: Path) -> bytes:
    """Without the core's digest: a release writes it after it has built the core from these files,
    and both have to be the same Headway."""
    if path.name != IMAGES:
        return path.read_bytes()
    images = json.loads(path.read_text())
    images["core"]["image"] = ""
    return f"{json.dumps(images, indent=1)}\n".encode()


def own_digest() -> str:
    """Of these files: tells clones apart that call themselves by the same version."""
    return hashlib.sha256(own_files()).hexdigest()[:12]


def bootstrap_files(spec: str) -> dict[str, str]:
    """By name; `spec` is the text of the resolved run: which stores it uses decides what is needed
    to reach them."""
    plan = shipped()
    extras = {name: plan.pop(name) for name in ("s3", "gcs")}
    if "s3://" in spec:
        plan["requires"] |= extras["s3"]
    if "gs://" in spec:
        plan["image"] |= extras["gcs"]
    content = own_files()
    own = {"name": OWN, "version": __version__, "tag": "py3-none-any", "size": len(content)}
    own["sha256"] = hashlib.sha256(content).hexdigest()
    plan |= {"version": __version__, "wheels": [own, *plan["wheels"]]}
    return {PROGRAM: _beside(PROGRAM), LIST: json.dumps(plan, indent=1) + "\n"}


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text()
