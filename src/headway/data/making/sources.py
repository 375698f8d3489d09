"""Which files the sources of a set name, and what each of them is."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import xxhash
from pydantic import BaseModel, ConfigDict

from headway.data.formats.chunks import Problem
from headway.data.formats.opening import failure
from headway.data.formats.readers import SUPPORTED, is_readable
from headway.data.patience import is_final
from headway.errors import BadInput, HeadwayError, NotFound
from headway.state.store import Store

HUB = "hub:"
WHOLE_BYTES = 2**26
"""Files up to here are known by all of their content."""
SAMPLES = 16
SAMPLE_BYTES = 2**16
"""Larger ones by their size and samples spread over them: terabytes are not read twice."""


class SourceFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Relative to the folder of the run file where it is inside; a URL; or `hub:NAME`."""
    size: int
    """In bytes, as stored; 0 for datasets of the hub, which do not say."""
    fingerprint: str
    """Of the content, so that nobody goes on with files that have changed."""
    num_parts: int = 1
    """More than one for a dataset of the hub: it says how it can be divided."""


@dataclass(frozen=True)
class Found:
    files: list[SourceFile]
    problems: list[Problem]
    """Files that cannot be read, found where a folder or a glob was named."""


def find_sources(sources: Sequence[str], beside: Path, anonymous: bool = False) -> Found:
    """The files that `sources` (files, folders, globs, URLs, hub:NAME) name.

    Sources stay in the order given; what one glob or folder holds is sorted by name, so that the
    same files give the same set everywhere. Nothing is left out silently.
    """
    files: list[SourceFile] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for source in sources:
        for file in _files_of(source, beside, anonymous):
            if isinstance(file, Problem):
                problems.append(file)
                continue
            if file.name in seen:
                raise BadInput(
                    f"{file.name} is named by more than one source",
                    "its text would be in the set twice",
                )
            seen.add(file.name)
            if file.name.startswith(HUB) or is_readable(file.name):
                files.append(file)
            elif file.name == _name(source, beside):
                raise BadInput(
                    f"{file.name} has a suffix that cannot be read",
                    f"can be read: {SUPPORTED}",
                )
            else:
                problems.append(
                    Problem("unknown suffix", file.name, None, f"can be read: {SUPPORTED}")
                )
    if not files:
        raise BadInput(f"nothing in {', '.join(sources)} can be read", f"can be read: {SUPPORTED}")
    return Found(files, problems)


def _files_of(source: str, beside: Path, anonymous: bool) -> Iterator[SourceFile | Problem]:
    if source.startswith(HUB):
        from headway.data.formats.hub import num_parts

        yield SourceFile(name=source, size=0, fingerprint="", num_parts=num_parts(source))
    elif "://" in source:
        yield from _remote_files(source, anonymous)
    else:
        for path in _local_files(source, beside):
            yield _local_file(path, beside)


def _local_file(path: Path, beside: Path) -> SourceFile | Problem:
    name = _name(str(path), beside)
    spelled = os.fsencode(name).decode(errors="backslashreplace")
    if spelled != name:
        return Problem("name not UTF-8", spelled, None, "it is left out: rename it")
    if not path.is_file():
        link = "a link to a folder: name that folder as a source"
        what = link if path.is_dir() else "a link that leads nowhere, or a device"
        return Problem("not a file", name, None, what)
    try:
        return SourceFile(name=name, size=path.stat().st_size, fingerprint=fingerprint(path))
    except OSError as error:
        raise failure(name, error) from error


def _remote_files(source: str, anonymous: bool) -> Iterator[SourceFile]:
    fixed = source
    if glob.has_magic(source):
        # Listed from the folder in front of the first wildcard on.
        start = next(i for i, character in enumerate(source) if character in "*?[")
        fixed = source[: source.rindex("/", 0, start)]
    try:
        found = Store(fixed, anonymous=anonymous).facts()
    except OSError as error:
        kind = BadInput if is_final(error) else HeadwayError
        raise kind(
            f"{source} cannot be listed: {error}",
            "check the address and the credentials, and that the store answers; a public bucket is "
            "read with anonymous",
        ) from error
    names = {f"{fixed.rstrip('/')}/{name}".rstrip("/"): facts for name, facts in found.items()}
    wanted = {
        name: facts
        for name, facts in names.items()
        if fixed == source or _matches(name.split("/"), source.split("/"))
    }
    if not wanted:
        raise NotFound(f"there is nothing at {source}", "check the address")
    # By folders, as paths are sorted: the same files in a store and on a disk make the same set.
    for name, facts in sorted(wanted.items(), key=lambda item: item[0].split("/")):
        if not any(part.startswith(".") for part in name.removeprefix(fixed).split("/")):
            yield SourceFile(name=name, size=facts.size, fingerprint=facts.tag)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """As on a disk: * stays within a folder, and ** crosses folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        rest = pattern[1:] or ("*",)
        return any(_matches(parts[begin:], rest) for begin in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _local_files(source: str, beside: Path) -> list[Path]:
    path = beside / Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [
            file
            for file in path.rglob("*")
            if _is_no_folder(file)
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
        if not found:
            raise BadInput(f"{path} is an empty folder", f"can be read: {SUPPORTED}")
        return sorted(found)
    if glob.has_magic(source):
        # root_dir, so that brackets in the name of `beside` itself are not taken for a pattern.
        pattern = str(Path(source).expanduser())
        found = [beside / name for name in glob.glob(pattern, root_dir=beside, recursive=True)]
        found = [file for file in found if _is_no_folder(file)]
        if not found:
            raise NotFound(f"no file matches {path}", "check the pattern; ** crosses folders")
        return sorted(found)
    raise NotFound(f"{path} does not exist", "check the path; it is relative to the run file")


def _is_no_folder(path: Path) -> bool:
    """Links are looked at one by one: those to a folder may lead round in circles."""
    return path.is_symlink() or not path.is_dir()


def _name(source: str, beside: Path) -> str:
    """A local file's name, the same for the same file however it was written."""
    if "://" in source or source.startswith(HUB):
        return source
    path = beside / Path(source).expanduser()
    # Folders only: caches link names with a suffix to names without one.
    path, folder = path.parent.resolve() / path.name, beside.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def fingerprint(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        size = path.stat().st_size
        if size <= WHOLE_BYTES:
            while data := file.read(2**20):
                digest.update(data)
        else:
            for number in range(SAMPLES):
                file.seek((size - SAMPLE_BYTES) * number // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
