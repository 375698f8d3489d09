"""The files of a code folder: all that a run's workers may need from it.

Left out are names that begin with a dot, `__pycache__`, virtual environments, the run's own storage
and data, what `.headwayignore` matches, and links to any of these. The rest is small, or it is
refused: it travels at every edit.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from headway.errors import BadInput
from headway.memory_limits import byte_size
from headway.spec.resolve import Resolved, name_or_empty
from headway.spec.run_file import RunFile
from headway.state.file_listing import Listing, listing_of
from headway.state.set_files import PREPARED

IGNORE_FILE = ".headwayignore"
NOTES = "runs"
"""Folder beside the run file that has at least notes on which targets runs were started."""
MOST_BYTES = 100 * 2**20
MOST_FILES = 10_000
MOST_SEEN = 20 * MOST_FILES
"""Files that are looked at before counting ends: it has to be quick on a data set of millions."""
NUM_NAMED = 5
"""Largest entries that a refusal names."""
MOST_OF_IT = 0.9
"""Share of a folder above which the one entry that has it is named in its place."""


class CodeFolderRefused(BadInput):
    """It cannot travel as it is."""


@dataclass(frozen=True)
class CodeFolder:
    path: Path
    files: dict[str, Path]
    """By their names in the folder, with `/`."""
    executable: frozenset[str] = frozenset()
    """Names of those that can be run as commands."""

    @cached_property
    def listing(self) -> Listing:
        try:
            return listing_of(self.files, self.executable)
        except OSError as error:
            raise CodeFolderRefused(
                f"code.path: {error.filename} cannot be read: {error.strerror}",
                f"name it in {self.path / IGNORE_FILE} if workers do not need it",
            ) from None


def code_folder(run: RunFile, beside: Path) -> CodeFolder | None:
    """Of a run file in the folder `beside`; None if it names none. Raises CodeFolderRefused if it
    is too large, or if a link leaves it. Reads no file of it but `.headwayignore`."""
    if run.code is None:
        return None
    folder = beside / run.code.path
    walk = _Walk(folder, _left_out(run, beside, folder))
    for name, path, status in walk.files(""):
        walk.note(name, path, status)
    walk.require_small()
    return CodeFolder(folder, walk.found, frozenset(walk.executable))


def resolved_code(resolved: Resolved) -> CodeFolder | None:
    """As workers have it: in a pod, all that was uploaded."""
    return code_folder(resolved.run, Path(resolved.folder))


@dataclass
class _Walk:
    folder: Path
    is_left_out: Callable[[str], bool]
    """Of a name below the folder, one of a folder ends with `/`."""
    found: dict[str, Path] = field(default_factory=dict)
    executable: set[str] = field(default_factory=set)
    sizes: Counter[str] = field(default_factory=Counter)
    """Bytes of each file and folder, by name; of the folder itself as the empty one."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of files, in the same way."""

    def note(self, name: str, path: Path, status: os.stat_result) -> None:
        self.found[name] = path
        if status.st_mode & stat.S_IXUSR:
            self.executable.add(name)
        above: str | None = name
        while above is not None:
            self.sizes[above] += status.st_size
            self.counts[above] += 1
            above = above.rpartition("/")[0] if above else None

    def files(
        self, below: str, real_above: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, Path, os.stat_result]]:
        """Those below a folder, and of what links to a folder in the same code folder."""
        here = self.folder / below
        real = os.path.realpath(here)
        if real in real_above:
            raise CodeFolderRefused(
                f"code.path: {here} is a link to a folder that it is in", self._ignore(below)
            )
        by_link = Path(real) != self.folder.resolve() / below
        for entry in sorted(_entries(here), key=lambda entry: entry.name):
            if len(self.found) > MOST_SEEN:
                return
            name = f"{below}/{entry.name}" if below else entry.name
            if self.is_left_out(name):
                continue
            path = Path(entry.path)
            try:
                is_folder = entry.is_dir()
                if is_folder and (self.is_left_out(f"{name}/") or _is_environment(path)):
                    continue
                if entry.is_symlink():
                    self._require_inside(name, path)
                if (by_link or entry.is_symlink()) and self._leads_to_left_out(path):
                    continue
                status = entry.stat()
            except OSError as error:
                raise CodeFolderRefused(
                    f"code.path: {path}: {error.strerror}", self._ignore(name)
                ) from None
            if is_folder:
                yield from self.files(name, (*real_above, real))
            elif stat.S_ISREG(status.st_mode):
                self._require_text(name, path)
                yield name, path, status

    def _require_inside(self, name: str, path: Path) -> None:
        target = path.resolve()
        if not target.is_relative_to(self.folder.resolve()):
            raise CodeFolderRefused(
                f"code.path: {path} is a link to {target}, outside of the folder",
                f"copy what workers need of it into the folder, or {self._ignore(name)}",
            )

    def _leads_to_left_out(self, path: Path) -> bool:
        """By a link, here or above: what stays under its own name stays under any."""
        target = path.resolve().relative_to(self.folder.resolve()).as_posix()
        while target and target != ".":
            real = self.folder / target
            if self.is_left_out(target) or (
                real.is_dir() and (self.is_left_out(f"{target}/") or _is_environment(real))
            ):
                return True
            target = target.rpartition("/")[0]
        return False

    def _require_text(self, name: str, path: Path) -> None:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise CodeFolderRefused(
                f"code.path: the name of {os.fsencode(path)!r} is not valid UTF-8", "rename it"
            ) from None

    def require_small(self) -> None:
        total, num_files = self.sizes[""], len(self.found)
        if total <= MOST_BYTES and num_files <= MOST_FILES:
            return
        more = "more than " if num_files > MOST_SEEN else ""
        if total > MOST_BYTES:
            largest = _largest(self.sizes)
            named = ", ".join(f"{name} ({byte_size(self.sizes[name])})" for name in largest)
        else:
            largest = _largest(self.counts)
            named = ", ".join(f"{name} ({self.counts[name]:,} files)" for name in largest)
        raise CodeFolderRefused(
            f"code.path: {self.folder} has {more}{byte_size(total)} in {num_files:,} files, "
            f"and {byte_size(MOST_BYTES)} in {MOST_FILES:,} files is the most that Headway copies "
            f"to workers; largest: {named}",
            f"what they do not need: {self._ignore(largest[0])} (rules as in .gitignore)",
        )

    def _ignore(self, name: str) -> str:
        return f"echo '/{name}' >> {self.folder / IGNORE_FILE}"


def _largest(weights: Mapping[str, int]) -> list[str]:
    """The largest entries of the folder; of one that is nearly all of it, what that is."""
    children: dict[str, list[str]] = {}
    for name in filter(None, weights):
        children.setdefault(name.rpartition("/")[0], []).append(name)
    named = []
    for name in sorted(children[""], key=lambda name: -weights[name])[:NUM_NAMED]:
        while name in children:
            largest = max(children[name], key=lambda name: weights[name])
            if largest not in children or weights[largest] < MOST_OF_IT * weights[name]:
                break
            name = largest
        named.append(name)
    return named


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise CodeFolderRefused(f"code.path: {folder}: {error.strerror}") from None


def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file()


def _left_out(run: RunFile, beside: Path, folder: Path) -> Callable[[str], bool]:
    from pathspec import GitIgnoreSpec

    # Python files stay, even if they are training data.
    data = GitIgnoreSpec.from_lines([*_data_patterns(run, beside, folder), "!*.py"])
    top, folders = os.path.abspath(folder), _folders_of_the_run(run, beside)
    ignored = GitIgnoreSpec.from_lines(_ignore_lines(folder / IGNORE_FILE))

    def is_left_out(name: str) -> bool:
        last = name.rstrip("/").rpartition("/")[2]
        return (
            last.startswith(".")
            or last == "__pycache__"
            or os.path.join(top, name.rstrip("/")) in folders
            or data.match_file(name)
            or ignored.match_file(name)
        )

    return is_left_out


def _ignore_lines(file: Path) -> list[str]:
    from pathspec import GitIgnoreSpec

    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise CodeFolderRefused(f"{file} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError as error:
            raise CodeFolderRefused(
                f"{file}:{number}: {error}", "its rules are those of .gitignore"
            ) from None
    return lines


def _folders_of_the_run(run: RunFile, beside: Path) -> set[str]:
    """The run directory, by itself too: its storage may be the code folder."""
    named = [NOTES, PREPARED]
    if not _is_elsewhere(run.storage):
        named += [run.storage, os.path.join(run.storage, name_or_empty(run, beside))]
    return {os.path.abspath(beside / one) for one in named}


def _data_patterns(run: RunFile, beside: Path, folder: Path) -> Iterator[str]:
    """Of what lies in the code folder and reaches workers in another way, or not at all: sources,
    prepared sets, models and tokenizers."""
    top = os.path.abspath(folder)
    for named in _data(run):
        path = os.path.abspath(beside / named)
        if not _is_elsewhere(named) and path.startswith(f"{top}/"):
            yield path.removeprefix(top)


def _is_elsewhere(named: str) -> bool:
    return "://" in named or named.startswith(("hub:", "~"))


def _data(run: RunFile) -> Iterator[str]:
    sets = [run.data.train] if run.data.train is not None else []
    for one in [*sets, *run.data.validation.values()]:
        for source in (one, *(one.mixture or {}).values()):
            yield from source.sources or ()
            yield from [source.path] if source.path is not None else []
            tokenizer = source.tokenizer.from_ if source.tokenizer is not None else None
            yield from [tokenizer] if tokenizer is not None else []
    for model in (run.model, run.objective.teacher):
        if model is not None and model.from_ is not None:
            yield model.from_
