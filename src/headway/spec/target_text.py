"""A target as text for targets.yaml: a comment on each line, added below what is there; and a new
image in a target that is there.

Other lines are left as they are, with the comments of others; and if the file does not read back as
it was but for the change, nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import yaml

from headway.errors import BadInput, SpecError
from headway.spec.load import validated
from headway.spec.located_yaml import read_yaml
from headway.spec.target_file import TargetFile

COLUMN = 40
"""Of comments, where the line is not longer; on a line of their own above it otherwise."""
WIDEST = 80


@dataclass(frozen=True)
class TargetLine:
    """A key of a target, its value, and where that is from."""

    path: tuple[str, ...]
    """`("pod", "resources", "cpu")`."""
    value: Any
    comment: str
    is_set: bool = True
    """False: the line is commented out, for the user to fill in."""


def target_block(name: str, lines: Iterable[TargetLine], heading: str) -> str:
    """The whole entry, to be appended."""
    tree: dict[str, Any] = {}
    for line in lines:
        section = tree
        for part in line.path[:-1]:
            below = section.setdefault(part, {})
            if isinstance(below, TargetLine):
                # What is set below a key that has a value joins it.
                below = section[part] = {
                    key: TargetLine((*below.path, key), value, below.comment)
                    for key, value in _sections(below.value).items()
                    if below.is_set
                }
            section = below
        section[line.path[-1]] = line
    return "\n".join([f"# {heading}", f"{name}:", *_rendered(tree, 1)]) + "\n"


def _sections(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_set(below: Any) -> bool:
    """Return whether a key, or anything below it, is not commented out."""
    if isinstance(below, TargetLine):
        return below.is_set
    return any(map(_is_set, below.values()))


def _rendered(tree: dict[str, Any], depth: int) -> Iterator[str]:
    for key, below in tree.items():
        indent = "  " * depth + ("" if _is_set(below) else "# ")
        if not isinstance(below, TargetLine):
            yield f"{indent}{_flow(key)}:"
            yield from _rendered(below, depth + 1)
            continue
        text = f"{indent}{_flow(key)}: {_flow(below.value)}"
        if not below.comment:
            yield text
        elif len(text) + 2 <= COLUMN and COLUMN + 2 + len(below.comment) <= WIDEST:
            yield f"{text:<{COLUMN}}# {below.comment}"
        elif len(text) + 4 + len(below.comment) <= WIDEST:
            yield f"{text}  # {below.comment}"
        else:
            yield f"{'  ' * depth}# {below.comment}"
            yield text


def _flow(value: Any) -> str:
    """On one line."""
    dumped = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=100_000, allow_unicode=True
    )
    return str(dumped).removesuffix("...\n").strip()


def read_targets(text: str, file: str) -> TargetFile:
    located = read_yaml(text, file) if text.strip() else None
    if located is None or located.value is None:
        return TargetFile({})
    return validated(TargetFile, located)


def with_target(text: str, name: str, block: str, file: Path) -> str:
    """The file's text with the block below it. Raises if the file is wrong as it is, has a target
    of that name, or would not read back."""
    read_targets(block, f"new target {name}")
    before = read_targets(text, str(file)).root
    if name in before:
        raise BadInput(
            f"{file} has a target {name} already",
            "take another name, or remove that target from the file first",
        )
    joined = text if not text or text.endswith("\n") else f"{text}\n"
    joined += ("\n" if text.strip() else "") + block
    try:
        after = dict(read_targets(joined, str(file)).root)
        added = after.pop(name, None)
    except SpecError as error:
        raise BadInput(
            f"{file} cannot be added to: with the new target below it, it reads otherwise "
            f"({error.problem})",
            "write its targets as a mapping of names at the first column",
        ) from None
    if added is None or after != before:
        raise BadInput(
            f"{file} cannot be added to: with the new target below it, it reads otherwise",
            "write its targets as a mapping of names at the first column",
        )
    return joined


def with_image(text: str, name: str, image: str, file: Path) -> str:
    """Return the file's text with this `image` in target `name`, and everything else as it was.
    Raise if it is not written as a block of lines."""
    located = read_yaml(text, str(file))
    before = validated(TargetFile, located).root
    lines, key = text.splitlines(keepends=True), located.mark((name, "image"))
    line = f"image: {image}  # headway image build\n"
    if (name, "image") in located.keys:
        lines[key.line - 1] = f"{lines[key.line - 1][: key.column - 1]}{line}"
    else:
        marks = [mark for path, mark in located.keys.items() if path[:-1] == (name,)]
        first = min(marks, key=lambda mark: mark.line, default=key)
        lines.insert(first.line - 1, f"{lines[first.line - 1][: first.column - 1]}{line}")
    changed = "".join(lines)
    try:
        after = dict(read_targets(changed, str(file)).root)
    except SpecError:
        after = {}
    if after != {**before, name: before[name].model_copy(update={"image": image})}:
        raise SpecError(
            f"{name} is not written as a block of lines, and is left as it is",
            str(key),
            "write in its place: image: ADDRESS@sha256:DIGEST",
        )
    return changed


def require_writable(file: Path, name: str) -> None:
    """Raise what `write_image` would."""
    with_image(file.read_text("utf-8"), name, "image@sha256:" + "0" * 64, file)


def write_image(file: Path, name: str, image: str) -> None:
    _change(file, lambda text: with_image(text, name, image, file))


def append_target(file: Path, name: str, block: str) -> None:
    _change(file, lambda text: with_target(text, name, block, file))


def _change(file: Path, changed: Callable[[str], str]) -> None:
    """Whole, or not at all; of two at the same time one after the other."""
    place = file.resolve()  # of a link, what it points to
    place.parent.mkdir(parents=True, exist_ok=True)
    with _alone(place.parent):
        text = changed(file.read_text("utf-8") if file.is_file() else "")
        with NamedTemporaryFile("w", dir=place.parent, encoding="utf-8", delete=False) as beside:
            try:
                beside.write(text)
                beside.flush()
                os.fsync(beside.fileno())
                os.chmod(beside.name, place.stat().st_mode & 0o777 if place.exists() else 0o644)
                os.replace(beside.name, place)
            except BaseException:
                os.unlink(beside.name)
                raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The folder is locked, not the file: that is replaced. Others have it for milliseconds."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # NFS locks only what is open for writing
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
