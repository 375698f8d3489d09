"""The images that a released Headway names itself, in their layout: PyTorch's own, which has torch
and numpy and no Headway, and the core, which has Headway and its wheels and no torch.

Their packages are links into this machine's venv, which nodes lend to every container; Headway
itself is in the core, from the wheel that is released.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from zipfile import ZipFile

from cluster_tool.binaries import REPOSITORY
from cluster_tool.image_files import USER, Entry, Files, venv
from cluster_tool.images import Image, headway_image, kept_image
from cluster_tool.node import LENT
from headway.kube.wheels import shipped, wheels_folder
from support.torch_image import entries_of, fetch_wheels

PYTORCH, CORE = "localhost/pytorch:test", "localhost/headway-core:test"
PLACE = "/opt/image"
"""Folder of an image's own Python."""
SITE = f"{PLACE}/lib/python3.{sys.version_info.minor}/site-packages"
START = f"#!{PLACE}/bin/python3\nfrom headway.cli.main import main\nmain()\n"


def pytorch_image() -> Image:
    return _image(PYTORCH, _python(shipped()["image"]))


def core_image(wheel: Path) -> Image:
    fetch_wheels()
    pinned = (REPOSITORY / "requirements" / "core.txt").read_text()
    files = _python(re.findall(r"^([a-z0-9._-]+)==", pinned, re.MULTILINE))
    there = wheels_folder().relative_to(venv())
    files[f"{PLACE}/{there}"] = Entry(0o777, target=f"{LENT}/{there}")
    files[f"{PLACE}/bin/headway"] = Entry(0o755, START.encode())
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            files[f"{SITE}/{name}"] = Entry(0o644, archive.read(name))
    return _image(CORE, files)


def _python(packages: list[str] | dict[str, str]) -> Files:
    base: str = sys._base_executable  # type: ignore[attr-defined]
    links = {
        f"{SITE}/{entry.name}": Entry(0o777, target=f"{LENT}/{entry.relative_to(venv())}")
        for entry in entries_of(packages)
    }
    home = f"home = {Path(base).parent}\n"
    return {
        f"{PLACE}/bin/python3": Entry(0o777, target=base),
        f"{PLACE}/pyvenv.cfg": Entry(0o644, home.encode()),
        **links,
    }


def _image(name: str, files: Files) -> Image:
    settings = {
        "User": f"{USER}:{USER}",
        "Env": [f"PATH={PLACE}/bin:/bin:/usr/bin", "HOME=/tmp"],
    }
    base = headway_image()
    inputs = [base.digest, repr(settings), repr(sorted(files.items()))]
    facts = hashlib.sha256("\n".join(inputs).encode()).hexdigest()
    return kept_image(name, settings, facts, lambda scratch: files, base)
