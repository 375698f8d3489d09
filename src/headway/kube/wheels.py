"""What a worker's pod gets to bring Headway into an image that has none: the wheels that ship with
this version, Headway's own files as one more, the list of both, and the program that unpacks them.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import headway
from headway import __version__
from headway.kube.bootstrap import LIST

PROGRAM = "bootstrap.py"
IMAGES = "images.json"
OWN = "headway"
OLDEST = (1980, 1, 1, 0, 0, 0)
"""Time of all files in the archive: the earliest that the format knows."""


def wheels_folder() -> Path:
    """Where the image of the coordinator has them."""
    return Path(sys.prefix, "share", "headway", "wheels")


def shipped() -> dict[str, Any]:
    """What `make lock` wrote down: packages, their requirements, and wheels."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name(LIST).read_text())
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


def wheel_plan() -> dict[str, Any]:
    """What shipped, with this version and its own files as the first wheel."""
    plan, content = shipped(), own_files()
    own = {"name": OWN, "version": __version__, "tag": "py3-none-any", "size": len(content)}
    own["sha256"] = hashlib.sha256(content).hexdigest()
    return plan | {"version": __version__, "wheels": [own, *plan["wheels"]]}


def copy_wheels(there: Path, into: Path) -> int:
    """Write the program, its list, and the wheels that are `there`, each under its SHA-256. What
    is not listed, or not whole, is left out. Return the number of wheels."""
    plan = wheel_plan()
    own, *listed = plan["wheels"]
    files = {_digest(path): path for path in there.glob("*.whl")}
    plan["wheels"] = [own, *(wheel for wheel in listed if wheel["sha256"] in files)]
    for wheel in plan["wheels"][1:]:
        shutil.copyfile(files[wheel["sha256"]], into / wheel["sha256"])
    (into / own["sha256"]).write_bytes(own_files())
    (into / LIST).write_text(json.dumps(plan))
    shutil.copyfile(Path(__file__).with_name(PROGRAM), into / PROGRAM)
    return len(plan["wheels"])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
