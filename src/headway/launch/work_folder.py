"""The working folder of a script on one node: a writable copy of its code, made when the launcher
starts, and kept when processes start again. Files that the script writes there stay until the pod
is gone."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headway.errors import RunFailed
from headway.spec.resolve import Resolved
from headway.state.code_folder import resolved_code

LARGE_BYTES = 2**20
"""From which on a file that the script wrote is worth a warning."""
MOST_SEEN = 20_000
"""Files that are looked at: a script may unpack a data set there."""


@dataclass
class WorkFolder:
    path: Path
    code: frozenset[str]
    """Names of the files that were copied."""
    _named: set[str] = field(default_factory=set)

    def new_large_files(self) -> list[str]:
        """Names of large files that are not of the code, each once, and their sizes."""
        found = []
        for name, size in _files(self.path):
            if size >= LARGE_BYTES and name not in self.code and name not in self._named:
                self._named.add(name)
                found.append(f"{name} ({size / 2**20:.0f} MB)")
        return found


def copied(folder: Path, files: Mapping[str, Path]) -> Mapping[str, Path]:
    """The same files, in this folder: nodes that are started later have the code of now."""
    return {name: folder / name for name in make_work_folder(folder, files).code}


def make_work_folder(path: Path, files: Mapping[str, Path]) -> WorkFolder:
    """Copies `files`, by their names in the folder. Of one that is there already, files of the code
    of an earlier start are replaced or removed; what the script wrote stays."""
    listing = path.with_name(f"{path.name}.json")
    try:
        path.mkdir(parents=True, exist_ok=True)
        before = set(json.loads(listing.read_text())) if listing.exists() else set()
        for name in before - set(files):
            (path / name).unlink(missing_ok=True)
        for name, source in files.items():
            target = path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            new = target.with_name(f".{target.name}.headway-new")
            shutil.copy(source, new)
            new.chmod(new.stat().st_mode | stat.S_IWUSR)  # the code may be read-only, its copy not
            new.replace(target)
        listing.write_text(json.dumps(sorted(files)))
    except (OSError, ValueError) as error:
        raise RunFailed(
            f"the code could not be copied into the working folder {path}: {error}",
            f"make room for it, or delete {path} if a file is in the way",
        ) from None
    return WorkFolder(path, frozenset(files))


def files_to_copy(resolved: Resolved) -> Mapping[str, Path]:
    """By their names in the code folder."""
    code = resolved_code(resolved)
    return {} if code is None else code.files


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    num_seen = 0
    for above, _, names in os.walk(folder):
        for name in names:
            num_seen += 1
            if num_seen > MOST_SEEN:
                return
            path = Path(above, name)
            with suppress(OSError):
                yield path.relative_to(folder).as_posix(), path.stat().st_size
