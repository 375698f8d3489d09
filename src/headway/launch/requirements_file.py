"""`code.requirements`: which lines of it Headway takes. It names packages and versions, nothing
else: where packages come from is for whoever runs uv to say, for it decides what runs in pods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.errors import BadInput

OWN = {
    "torch": "workers have a torch of their own, which packages are resolved for",
    "headway": "workers have the Headway that starts them",
}
"""Packages that requirements must not replace, and why."""
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
LOCKED = re.compile(
    r"[A-Za-z0-9._-]+(\[[A-Za-z0-9._, -]*\])?==[A-Za-z0-9.!+_-]+(\s+--hash=sha256:[0-9a-f]+)+"
)
OPTION = re.compile(r"\s--[a-z]")
MOST_BYTES = 2**20


class RequirementsRefused(BadInput):
    """What a requirements file asks for is not possible. Has the line, if it is one."""

    def __init__(self, message: str, hint: str | None = None, line: int | None = None) -> None:
        super().__init__(message, hint)
        self.line = line


@dataclass(frozen=True)
class RequirementsFile:
    path: Path
    text: str

    @property
    def has_hashes(self) -> bool:
        """Whether it is a lock, to be taken as it is."""
        return any("--hash=" in line for _, line in _lines(self.text))


def read_requirements(path: Path) -> RequirementsFile:
    """Raises RequirementsRefused if it has lines that are not taken."""
    try:
        content = path.read_bytes()[: MOST_BYTES + 1]
        text = content.decode()
    except FileNotFoundError:
        raise RequirementsRefused(
            f"code.requirements: no file {path}", "paths start at the run file's folder"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequirementsRefused(f"code.requirements: {path} cannot be read: {error}") from None
    if len(content) > MOST_BYTES:
        raise RequirementsRefused(f"code.requirements: {path} has more than 1 MiB")
    file = RequirementsFile(path, text)
    for number, line in _lines(text):
        problem = _problem(line, file.has_hashes)
        if problem is not None:
            what, hint = problem
            raise RequirementsRefused(f"{path}:{number}: {what}", hint, number)
    return file


def package_name(line: str) -> str | None:
    """Normalised, as indexes have it."""
    found = NAME.match(line)
    return None if found is None else re.sub(r"[-_.]+", "-", found[0]).lower()


def locked_names(text: str) -> dict[str, int]:
    """Packages of a lock, and the lines that they are on."""
    return {name: number for number, line in _lines(text) if (name := package_name(line))}


def is_lock(text: str) -> bool:
    """Whether it names packages by version and hash, and says nothing else: one that others may
    have written."""
    return all(one == "\n" or " " <= one <= "~" for one in text) and all(
        LOCKED.fullmatch(line) and _problem(line, is_lock=True) is None for _, line in _lines(text)
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines without comments, each with the number of its first line."""
    begun, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip()
        start = start if begun else number
        if line.endswith("\\"):
            begun += f"{line[:-1]} "
            continue
        whole, begun = f"{begun}{line}".strip(), ""
        if whole:
            yield start, whole
    if begun.strip():
        yield start, begun.strip()


def _problem(line: str, is_lock: bool) -> tuple[str, str] | None:
    """What is wrong with it, and what to do."""
    if line.startswith(("-r", "--requirement", "-c", "--constraint")):
        return f"`{line}` names another file", "put all requirements into one file"
    if line.startswith(("-e", "--editable", ".", "/", "~")):
        return (
            f"`{line}` is a folder or file of this machine, which workers do not have",
            "put the package into code.path, or build a wheel that an index serves",
        )
    if line.startswith("-"):
        return (
            f"`{line.split()[0].split('=')[0]}` is not taken: where packages come from is not said "
            "in this file",
            "set it for uv where you run headway: UV_DEFAULT_INDEX, UV_INDEX, UV_FIND_LINKS, or "
            "uv.toml",
        )
    if "://" in line.split(" --hash=")[0].split(";")[0] or line.startswith("git+"):
        return (
            f"`{line.split()[0]}` is an address: only wheels of an index are installed",
            "name a version: NAME==VERSION",
        )
    name = package_name(line)
    if name is None or line.endswith((".whl", ".zip", ".tar.gz")):
        return f"`{line}` is not a requirement", "NAME, NAME==VERSION or NAME>=VERSION"
    if name in OWN:
        return f"`{line.split()[0]}` would replace {name}: {OWN[name]}", "remove the line"
    if OPTION.search(line.replace(" --hash=", " ")):
        return f"`{line}` has options", "NAME==VERSION, with --hash=sha256:... in a lock"
    if is_lock and "--hash=" not in line:
        return (
            f"`{line}` has no hash, and others have",
            "lock the file again, with uv pip compile --generate-hashes; or remove all hashes: "
            "Headway then locks it",
        )
    return None
