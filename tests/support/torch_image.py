"""What is in an image with torch and numpy, and no Headway: a Python whose packages are
theirs and what they require, as links to this one's; and the wheels of a release, for this machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from hashlib import sha256
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from headway.kube.wheels import shipped, wheels_folder


def link_python(folder: Path) -> None:
    """A venv at `folder`. Its links lead into this one, which pods see at the same path."""
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    base: str = sys._base_executable  # type: ignore[attr-defined]
    (folder / "bin" / "python3").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(base).parent}\n")
    for entry in entries_of(shipped()["image"]):
        (packages / entry.name).symlink_to(entry)


def entries_of(names: Iterable[str]) -> set[Path]:
    """Files and folders of site-packages that belong to these, and to what they require."""
    found, left, entries = set[str](), list(names), set[Path]()
    while left:
        name = left.pop()
        if name in found or (there := _installed(name)) is None:
            continue
        found.add(name)
        for line in there.requires or ():
            if "extra ==" not in line:
                left.append(re.split(r"[ \[<>=!~;(]", line, maxsplit=1)[0])
        root = Path(str(there.locate_file("")))
        files = {file.parts[0] for file in there.files or ()} - {"..", "__pycache__"}
        entries |= {root / file for file in files}
    return entries


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None  # for another machine


def fetch_wheels() -> None:
    """Those for this machine, to where its image would have them. Kept there. Only the wheels that
    are listed: an index may have others of the same version that pip would rather take."""
    folder = wheels_folder()
    folder.mkdir(parents=True, exist_ok=True)
    found = {sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.whl")}
    listed: dict[str, list[str]] = {}
    for wheel in shipped()["wheels"]:
        listed.setdefault(f"{wheel['name']}=={wheel['version']}", []).append(wheel["sha256"])
    lacking = [
        " ".join([pinned, *(f"--hash=sha256:{one}" for one in allowed)])
        for pinned, allowed in listed.items()
        if not found.intersection(allowed)
    ]
    if not lacking:
        return
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lines:
        lines.write("\n".join(lacking))
        lines.flush()
        exactly = ["--only-binary", ":all:", "-r", lines.name, "-d", str(folder)]
        subprocess.run([*pip, *exactly], check=True, timeout=600)
