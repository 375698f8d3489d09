"""The files that the sources of a set name, with size and fingerprint."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

import xxhash
from pydantic import BaseModel, ConfigDict

from headway.data.formats.chunks import Problem
from headway.data.formats.open_files import failure, open_raw
from headway.data.formats.readers import SUPPORTED, is_archive, is_readable
from headway.data.formats.web_files import is_web, require_plain, web_facts
from headway.data.retry import is_final
from headway.errors import BadInput, HeadwayError, NotFound
from headway.state.store import NUM_REQUESTS, Store, in_parallel

HUB = "hub:"
WHOLE_BYTES = 2**26
"""Files up to this size are fingerprinted by their whole content."""
SAMPLES = 16
SAMPLE_BYTES = 2**16
"""Larger files are fingerprinted by their size and samples: terabytes are not read twice."""


class SourcesRefused(BadInput):
    """They cannot be listed, and trying again is of no use."""


class SourcesAway(HeadwayError):
    """They cannot be listed now."""


class SourceFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Path relative to the run file's folder, if it is inside; a URL; or `hub:NAME`."""
    size: int
    """Size in bytes, as stored; 0 for datasets on the hub, whose size is unknown."""
    fingerprint: str
    """Digest of the content: a preparation is not resumed with changed files."""
    num_parts: int = 1
    """Number of parts it can be divided into; more than one only for a dataset on the hub."""


@dataclass(frozen=True)
class FoundSources:
    files: list[SourceFile]
    problems: list[Problem]
    """Files in folders and globs that cannot be read."""


def find_sources(sources: Sequence[str], beside: Path, anonymous: bool = False) -> FoundSources:
    """The files that `sources` (files, folders, globs, URLs, hub:NAME) name.

    Sources stay in the order given; the files of one glob or folder are sorted by name, so that the
    same files make the same set everywhere. No file is left out silently.
    """
    files: list[SourceFile] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    sources = list(dict.fromkeys(each for source in sources for each in _both_files(source)))
    on_web = [source for source in sources if is_web(source)]
    web = dict(zip(on_web, in_parallel(_web_file, on_web, NUM_REQUESTS), strict=True))
    for source in sources:
        files_of = [web[source]] if source in web else _files_of(source, beside, anonymous)
        for file in files_of:
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
                raise _unsupported(file.name)
            else:
                problems.append(Problem("unknown suffix", file.name, None, _hint_about(file.name)))
    for file in [file for file in files if not seen.issuperset(_both_files(file.name))]:
        files.remove(file)
        problems.append(Problem("no partner", file.name, None, ".bin and .idx belong together"))
    if not files:
        raise BadInput(f"no supported file in {', '.join(sources)}", f"supported: {SUPPORTED}")
    return FoundSources(files, problems)


def _both_files(source: str) -> list[str]:
    """The two files of a set of Megatron, of which one is named; otherwise the source itself."""
    is_one = source.endswith((".bin", ".idx")) and not source.startswith(HUB)
    return [f"{source[:-4]}.bin", f"{source[:-4]}.idx"] if is_one else [source]


def _files_of(source: str, beside: Path, anonymous: bool) -> Iterator[SourceFile | Problem]:
    if source.startswith(HUB):
        from headway.data.formats.hub import num_parts

        yield SourceFile(name=source, size=0, fingerprint="", num_parts=num_parts(source))
    elif "://" in source:
        yield from _remote_files(source, anonymous)
    else:
        for path in local_files(source, beside):
            yield _local_file(path, beside)


def _local_file(path: Path, beside: Path) -> SourceFile | Problem:
    name = _name(str(path), beside)
    spelled = os.fsencode(name).decode(errors="backslashreplace")
    if spelled != name:
        return Problem("name not UTF-8", spelled, None, "rename the file; it is left out")
    if not path.is_file():
        link = "a link to a folder: add that folder as a source"
        what = link if path.is_dir() else "a broken link, or a device"
        return Problem("not a file", name, None, what)
    try:
        return SourceFile(name=name, size=path.stat().st_size, fingerprint=fingerprint(path))
    except OSError as error:
        raise failure(name, error) from error


def require_web_source(source: str) -> None:
    """Raises BadInput for an address that cannot be read, whatever its server says."""
    require_plain(source)
    if not is_readable(source):
        raise _unsupported(source)


def _web_file(source: str) -> SourceFile:
    require_web_source(source)
    try:
        facts = web_facts(source)
        if not facts.tag:
            with open_raw(source, Path(), anonymous=True) as file:
                tag = _digest(file, facts.size)
                return SourceFile(name=source, size=facts.size, fingerprint=tag)
    except FileNotFoundError as error:
        raise NotFound(f"nothing found at {source}: {error}", "check the address") from error
    except OSError as error:
        kind = SourcesRefused if is_final(error) else SourcesAway
        raise kind(
            f"{source} cannot be read: {error}",
            "check the address; what needs a login: download it, or use s3://, gs:// or hub:",
        ) from error
    return SourceFile(name=source, size=facts.size, fingerprint=facts.tag)


def _remote_files(source: str, anonymous: bool) -> Iterator[SourceFile]:
    fixed = source
    if glob.has_magic(source):
        # List from the folder before the first wildcard.
        start = next(i for i, character in enumerate(source) if character in "*?[")
        fixed = source[: source.rindex("/", 0, start)]
    try:
        found = Store(fixed, anonymous=anonymous).facts()
    except OSError as error:
        kind = SourcesRefused if is_final(error) else SourcesAway
        raise kind(
            f"{source} cannot be listed: {error}",
            "check the address, the credentials and the endpoint; a public bucket needs anonymous",
        ) from error
    names = {f"{fixed.rstrip('/')}/{name}".rstrip("/"): facts for name, facts in found.items()}
    wanted = {
        name: facts
        for name, facts in names.items()
        if fixed == source or _matches(name.split("/"), source.split("/"))
    }
    if not wanted and fixed == source:  # perhaps the prefix of a set of Megatron
        for name in _both_files(f"{source}.bin"):
            alone = Store(name, anonymous=anonymous).facts()
            wanted |= dict(zip([name], alone.values(), strict=False))
        fixed = source.rpartition("/")[0]
    if not wanted:
        raise NotFound(f"nothing found at {source}", "check the address")
    # By folder, as paths are sorted: the same files in a store and on a disk make the same set.
    for name, facts in sorted(wanted.items(), key=lambda item: item[0].split("/")):
        if not any(part.startswith(".") for part in name.removeprefix(fixed).split("/")):
            yield SourceFile(name=name, size=facts.size, fingerprint=facts.tag)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """As on a disk: * stays within a folder, ** crosses folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        rest = pattern[1:] or ("*",)
        return any(_matches(parts[begin:], rest) for begin in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def readable_files(source: str, beside: Path) -> list[str]:
    """The files in a supported format that a source on this machine names. Raises if there is none,
    as `find_sources` would."""
    files = [path for path in local_files(source, beside) if path.is_file()]
    names = [_name(str(path), beside) for path in files]
    readable = [name for name in names if is_readable(name)]
    if not readable and names == [_name(source, beside)]:
        raise _unsupported(names[0])
    return readable


def _unsupported(name: str) -> BadInput:
    what = "is an archive" if is_archive(name) else "has an unsupported suffix"
    return BadInput(f"{name} {what}", _hint_about(name))


def _hint_about(name: str) -> str:
    """What to do about a file that cannot be read."""
    if not is_archive(name):
        return f"supported: {SUPPORTED}"
    here = name.rpartition("/")[2] if "://" in name else name
    return f"unpack it, and name that folder: mkdir text && tar -xf {shlex.quote(here)} -C text"


def local_files(source: str, beside: Path) -> list[Path]:
    """What a path, folder or pattern on this machine names, sorted; links may be broken."""
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
            raise BadInput(f"the folder {path} is empty", f"supported: {SUPPORTED}")
        return sorted(found)
    if glob.has_magic(source):
        # root_dir, so that brackets in the name of `beside` itself are not taken for a pattern.
        pattern = str(Path(source).expanduser())
        found = [beside / name for name in glob.glob(pattern, root_dir=beside, recursive=True)]
        found = [file for file in found if _is_no_folder(file)]
        if not found:
            raise NotFound(f"no file matches {path}", "check the pattern; ** crosses folders")
        return sorted(found)
    of_prefix = [path.with_name(f"{path.name}{suffix}") for suffix in (".bin", ".idx")]
    if any(file.is_file() for file in of_prefix):  # of a set of Megatron
        return of_prefix
    raise NotFound(f"{path} does not exist", "check the path; it is relative to the run file")


def _is_no_folder(path: Path) -> bool:
    """Whether it is not a folder. Symlinks count as files: those to a folder may form a cycle."""
    return path.is_symlink() or not path.is_dir()


def _name(source: str, beside: Path) -> str:
    """A local file's name, the same for every spelling of its path."""
    if "://" in source or source.startswith(HUB):
        return source
    path = beside / Path(source).expanduser()
    # Resolve the folder only: caches link names with a suffix to names without one.
    path, folder = path.parent.resolve() / path.name, beside.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def fingerprint(path: Path) -> str:
    with path.open("rb") as file:
        return _digest(file, path.stat().st_size)


def _digest(file: BinaryIO, size: int) -> str:
    digest = xxhash.xxh3_64()
    if size <= WHOLE_BYTES:
        while data := file.read(2**20):
            digest.update(data)
    else:
        for number in range(SAMPLES):
            file.seek((size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
