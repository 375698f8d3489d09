"""The working folder of a script on one node: a writable copy of its code, made when the launcher
starts, and kept when processes start again. Files that the script writes there stay until the pod
is gone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.errors import RunFailed
from headway.spec.resolve import Resolved
from headway.state.code_folder import resolved_code

LARGE_BYTES = 2**20
"""From which on a file that the script wrote is worth a warning."""
MOST_SEEN = 20_000
"""Files that are looked at: a script may unpack a data set there."""


@dataclass(frozen=True)
class Copied:
    """What was copied, so that it is known from what the script writes under the same name."""

    size: int
    sha256: str


@dataclass
class WorkFolder:
    path: Path
    code: Mapping[str, tuple[int, int]]
    """Files that were copied: size, and time in ns."""
    left: list[str]
    """Files of the code that the script has changed: they were not touched."""
    _named: set[str] = field(default_factory=set)

    def new_large_files(self) -> list[str]:
        """Names of large files that the script wrote, each once, and their sizes."""
        found = []
        for name, facts in _files(self.path):
            if facts[0] < LARGE_BYTES or facts == self.code.get(name) or name in self._named:
                continue
            self._named.add(name)
            found.append(f"{name} ({facts[0] / 2**20:.0f} MB)")
        return found


def copied_code(folder: Path, resolved: Resolved) -> Mapping[str, Path]:
    """The files of the code, in this folder: nodes that are started later have the code of now.
    Raises if it is not the one that was recorded for the run."""
    code = resolved_code(resolved)
    if code is None:
        return {}
    made = make_work_folder(folder, code.files)
    copies = replace(code, files={name: folder / name for name in made.code})
    if resolved.code_digest not in (None, copies.listing.digest):
        raise RunFailed(
            f"code.path: {code.path} changed while the run was starting",
            "run the same command again",
        )
    return copies.files


def make_work_folder(path: Path, files: Mapping[str, Path]) -> WorkFolder:
    """Copies `files`, by their names in the folder. Of one that is there already, files of the code
    of an earlier start are replaced or removed, unless the script has changed them: its checkpoint
    may have the name of one that came with the code."""
    listing = path.with_name(f"{path.name}.json")
    path.mkdir(parents=True, exist_ok=True)
    before = _read_listing(listing)
    now = {name: _copy_of(source) for name, source in files.items()}
    # Whoever is interrupted half-way has copied some of them.
    known = {
        name: {*before.get(name, ()), *([now[name]] if name in now else [])}
        for name in {*before, *now}
    }
    _write_listing(listing, known)
    for name in before.keys() - files.keys():
        if (path / name).is_file() and _is_ours(path / name, before[name]):
            (path / name).unlink()
    code, left = {}, []
    for name, source in sorted(files.items()):
        target = path / name
        if not _is_ours(target, known[name]):
            is_other = now[name] not in before.get(name, ())
            left.append(f"{name} (the code has another one now)" if is_other else name)
            known[name] = set(before.get(name, ()))
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{target.name}.headway-new")
        shutil.copy(source, new)
        new.chmod(new.stat().st_mode | stat.S_IWUSR)  # the code may be read-only, its copy not
        known[name] = {_copy_of(new)}
        code[name] = _facts(new)
        new.replace(target)
    _write_listing(listing, {name: known[name] for name in files})
    return WorkFolder(path, code, left)


def files_to_copy(resolved: Resolved) -> Mapping[str, Path]:
    """By their names in the code folder."""
    code = resolved_code(resolved)
    return {} if code is None else code.files


def _is_ours(path: Path, ours: Collection[Copied]) -> bool:
    """Whether it is as it was copied, or not there."""
    if path.is_symlink():
        return False
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return True
    # A checkpoint of many GB is not read for it.
    return any(one.size == size for one in ours) and _copy_of(path) in ours


def _copy_of(path: Path) -> Copied:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Copied(file.tell(), digest)


def _read_listing(file: Path) -> dict[str, set[Copied]]:
    """Empty if it cannot be read: nothing is known of the files that are there."""
    try:
        names = json.loads(file.read_text())
        return {
            str(name): {Copied(int(size), str(sha256)) for size, sha256 in copies}
            for name, copies in names.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_listing(file: Path, names: Mapping[str, Collection[Copied]]) -> None:
    listed = {
        name: sorted([one.size, one.sha256] for one in copies)
        for name, copies in sorted(names.items())
    }
    new = file.with_name(f".{file.name}.headway-new")
    new.write_text(json.dumps(listed, indent=1) + "\n")
    new.replace(file)


def _facts(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    num_seen = 0
    for above, _, names in os.walk(folder):
        for name in names:
            num_seen += 1
            if num_seen > MOST_SEEN:
                return
            path = Path(above, name)
            with suppress(OSError):
                yield path.relative_to(folder).as_posix(), _facts(path)
