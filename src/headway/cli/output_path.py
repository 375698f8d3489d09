"""Where a command writes: a path that cannot be written is refused before the work, in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from headway.errors import BadInput


@contextmanager
def writes_folder(path: str | Path, option: str) -> Iterator[None]:
    """Refuses a folder that cannot be written, now and while the block runs. `option`: the words
    before the path on the command line."""
    if "://" in str(path):
        with _refusing_address(str(path), option):
            yield
        return
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{option} {path}: this is a file, not a folder", "name a new folder")
    with _refusing(folder, option):
        yield


@contextmanager
def writes_file(path: Path, option: str) -> Iterator[None]:
    """Refuses a file that cannot be written, now and while the block runs. Its folder has to
    exist."""
    if path.is_dir():
        raise BadInput(
            f"{option} {path}: this is a folder, not a file",
            f"{option} {path / 'report.html'}",
        )
    if not path.parent.is_dir():
        raise BadInput(
            f"{option} {path}: there is no folder {path.parent}", f"mkdir -p {path.parent}"
        )
    with _refusing(path, option):
        yield


@contextmanager
def _refusing_address(address: str, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename:  # of this machine
            raise
        raise BadInput(
            f"{option} {address}: {error}", "check the address, your credentials and the endpoint"
        ) from None


@contextmanager
def _refusing(path: Path, option: str) -> Iterator[None]:
    above = next(one for one in (path, *path.absolute().parents) if one.exists())
    if path != above and not above.is_dir():
        raise BadInput(f"{option} {path}: {above} is a file, not a folder", "name another path")
    if not _is_writable(above):
        raise BadInput(
            f"{option} {path}: nothing can be written in {above}",
            "name a path in a folder that you may write",
        )
    try:
        yield
    except OSError as error:
        if not _is_about(error, path):
            raise
        raise BadInput(f"{option} {path}: {error.strerror}", "name another path") from None


def _is_writable(path: Path) -> bool:
    """Asked by writing: of a read-only mount, or as root, rights say little."""
    if path.is_file():
        return os.access(path, os.W_OK)
    try:
        with TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def _is_about(error: OSError, path: Path) -> bool:
    """Whether the error names the path, what is in it or above it, or the folder that is renamed
    to it once it is complete."""
    if not isinstance(error.filename, str | os.PathLike):
        return False
    named, path = Path(error.filename).absolute(), path.absolute()
    partial = path.with_name(f".{path.name}.partial")
    return path.is_relative_to(named) or any(map(named.is_relative_to, (path, partial)))
