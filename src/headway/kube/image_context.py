"""What an image for workers is built from: a Dockerfile, Headway as a wheel, and its packages by
version and hash."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from headway import __version__
from headway.kube.wheels import OLDEST, own_files

INFO = f"headway-{__version__}.dist-info"
WHEEL = "Wheel-Version: 1.0\nGenerator: headway\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_context(base: str, efa: str | None) -> dict[str, bytes]:
    """Files by name. `efa`: image that AWS' plugin for NCCL is copied from."""
    parts = [f"FROM {base}", _beside("worker.Dockerfile")]
    if efa is not None:
        parts = [f"FROM {efa} AS efa", parts[0], _beside("efa.Dockerfile"), parts[1]]
    return {
        "Dockerfile": "\n".join(parts).encode(),
        "requirements.txt": _beside("image_requirements.txt").encode(),
        "finish.py": _beside("image_finish.py").encode(),
        f"headway-{__version__}-py3-none-any.whl": headway_wheel(),
    }


def headway_wheel() -> bytes:
    """This Headway, also where it is installed from a clone."""
    installed = distribution("headway")
    made = io.BytesIO(own_files())
    with ZipFile(made, "a") as archive:
        for name in ("METADATA", "entry_points.txt"):
            archive.writestr(_entry(name), installed.read_text(name) or "")
        archive.writestr(_entry("WHEEL"), WHEEL)
        record = "".join(_record(archive))
        archive.writestr(_entry("RECORD"), f"{record}{INFO}/RECORD,,\n")
    return made.getvalue()


def _entry(name: str) -> ZipInfo:
    return ZipInfo(f"{INFO}/{name}", OLDEST)


def _record(archive: ZipFile) -> Iterator[str]:
    for name in archive.namelist():
        content = archive.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        yield f"{name},sha256={digest},{len(content)}\n"


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
