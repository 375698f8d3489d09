"""An image whose programs are for another processor, as of one that was built on another machine.
Nothing but its programs says so."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

from cluster_tool.image_files import USER, Entry, Files, venv
from cluster_tool.images import Image, write_archive

NAME = "localhost/foreign:test"
MACHINE = slice(18, 20)
"""Of an ELF file: for which processor it is."""
X86_64, AARCH64 = 62, 183


def foreign_image(folder: Path) -> Image:
    """The archive is made in `folder`."""
    settings = {"User": f"{USER}:{USER}", "Env": ["PATH=/bin:/usr/bin", "HOME=/"]}
    archive = folder / "foreign.tar"
    digest = write_archive(archive, NAME, settings, _python(), folder / "layer.tar")
    return Image(NAME, digest, archive)


def _python() -> Files:
    """What `python` of the venv, which pods see by a claim, leads to."""
    program = (venv() / "bin" / "python").resolve()
    files: Files = {str(program): Entry(0o755, _for_another_processor(program.read_bytes()))}
    link = venv() / "bin" / "python"
    while link.is_symlink():
        target = link.parent / link.readlink()
        if target.is_symlink() and not target.is_relative_to(venv()):
            files[str(target)] = Entry(0o777, target=str(target.readlink()))
        link = target
    return files


def _for_another_processor(program: bytes) -> bytes:
    assert program[:4] == b"\x7fELF"
    other = AARCH64 if platform.machine() == "x86_64" else X86_64
    changed = bytearray(program)
    changed[MACHINE] = struct.pack("<H", other)
    return bytes(changed)
