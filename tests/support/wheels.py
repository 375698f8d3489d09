"""Wheels of a few lines, as an index would have them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile, ZipInfo

import pytest


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    requires: Sequence[str] = (),
    tag: str = "py3-none-any",
    commands: Mapping[str, str] | None = None,
) -> Path:
    """`commands`: names of console scripts, and the functions they call."""
    info = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {one}\n" for one in requires)
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if commands:
        lines = "".join(f"{command} = {call}\n" for command, call in commands.items())
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
    record = "".join(f"{each},{_digest(text)},{len(text)}\n" for each, text in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with ZipFile(wheel, "w") as archive:
        for each, text in content.items():
            archive.writestr(ZipInfo(each, (2026, 1, 1, 0, 0, 0)), text)
    return wheel


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def resolve_offline(monkeypatch: pytest.MonkeyPatch, wheels: Path, caches: Path) -> None:
    """From now on uv finds these wheels alone, and has caches of its own."""
    for name, value in {
        "UV_FIND_LINKS": str(wheels),
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(caches / "uv-cache"),
        "XDG_CACHE_HOME": str(caches / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
