"""From files to a validated RunFile: read, extend, override, check, and say what is wrong where."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from headway.errors import BadInput, NotFound, SpecError
from headway.spec.located import Located, Mark, merge, read_yaml
from headway.spec.names import suggestion
from headway.spec.run import RunFile
from headway.spec.target import Target, TargetFile

RUN_FILE = "run.yaml"
TARGET_FILE = "targets.yaml"
Checked = TypeVar("Checked", bound=BaseModel)


@dataclass(frozen=True)
class Loaded:
    """A run file as read: `folder` is what its relative paths are relative to."""

    run: RunFile
    folder: Path
    located: Located
    """What was written, with positions; defaults are not in it."""


def preset_names() -> list[str]:
    folder = resources.files("headway.spec") / "presets"
    return sorted(
        item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    return (resources.files("headway.spec") / "presets" / f"{name}.yaml").read_text("utf-8")


def load_run(reference: str | Path | None = None, overrides: list[str] | None = None) -> Loaded:
    """Of a run file, a folder that holds one, a preset's name, or None for ./run.yaml."""
    located, folder = _read_with_bases(_find(reference), seen=())
    for override in overrides or []:
        located = merge(located, _override(override))
    return Loaded(validated(RunFile, located), folder, located)


def load_targets(folder: Path) -> dict[str, Target]:
    """Targets beside the run file, then those of the user's config folder that have other names."""
    config = Path(os.environ.get("XDG_CONFIG_HOME", "~/.config")).expanduser() / "headway"
    targets: dict[str, Target] = {}
    for place in (config, folder):
        file = place / TARGET_FILE
        if file.is_file():
            located = read_yaml(file.read_text("utf-8"), _shown(file))
            targets.update(validated(TargetFile, located).root)
    return targets


def _find(reference: str | Path | None) -> Path | str:
    if reference is None:
        file = Path(RUN_FILE)
        if not file.is_file():
            raise NotFound(
                f"no {RUN_FILE} in {Path.cwd()}",
                "name a run file, or make one: headway init tiny DIR",
            )
        return file
    path = Path(reference)
    if path.is_file():
        return path
    if (path / RUN_FILE).is_file():
        return path / RUN_FILE
    if str(reference) in preset_names():
        return str(reference)
    raise NotFound(
        f"no run file at {reference}",
        f"presets are {', '.join(preset_names())}; headway init makes one",
    )


def _read_with_bases(source: Path | str, seen: tuple[str, ...]) -> tuple[Located, Path]:
    """A file or preset with all it extends merged in below it."""
    if isinstance(source, Path):
        try:
            located = read_yaml(source.read_text("utf-8"), _shown(source))
        except UnicodeDecodeError as error:
            raise SpecError(f"not UTF-8 text (byte {error.start})", _shown(source)) from None
        folder = source.resolve().parent
    else:
        located, folder = read_yaml(preset_text(source), f"{source} (preset)"), Path.cwd()
    if not isinstance(located.value, dict):
        raise SpecError("a run file is a mapping of keys", str(located.mark(())))
    base = located.value.get("extends")
    if base is None:
        return located, folder
    where = str(located.mark(("extends",)))
    if not isinstance(base, str):
        raise SpecError("`extends` names one preset or one file", where)
    if base in seen:
        raise SpecError(f"`extends` goes round in a circle through {base}", where)
    file = folder / base
    if not file.is_file() and base not in preset_names():
        raise SpecError(
            f"`extends: {base}` is neither a preset nor a file", where, _near_preset(base)
        )
    below, _ = _read_with_bases(file if file.is_file() else base, (*seen, base))
    return merge(below, located), folder


def _near_preset(name: str) -> str:
    near = difflib.get_close_matches(name, preset_names(), n=1)
    return f"did you mean {near[0]}?" if near else f"presets: {', '.join(preset_names())}"


def _override(text: str) -> Located:
    """`--set a.b=c` as a located tree; the value is read as YAML."""
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise BadInput(f"--set {text}: write --set key.inner=value")
    inner = read_yaml(value, f"--set {key}")
    if value.strip() == "":
        raise BadInput(f"--set {text}: the value is empty")
    tree: Any = inner.value
    located = Located(None)
    mark = Mark(f"--set {key}", 0, 0)
    for index in range(len(parts), 0, -1):
        tree = {parts[index - 1]: tree}
        located.keys[tuple(parts[:index])] = mark
        located.values[tuple(parts[:index])] = mark
    prefix = tuple(parts)
    located.keys.update({(*prefix, *path): mark for path in inner.keys})
    located.values.update({(*prefix, *path): mark for path in inner.values})
    located.values[()] = mark
    located.value = tree
    return located


def validated(kind: type[Checked], located: Located) -> Checked:
    try:
        return kind.model_validate(located.value)
    except ValidationError as error:
        raise _explained(error, located, kind) from None


def _explained(error: ValidationError, located: Located, root: type[BaseModel]) -> SpecError:
    """All of pydantic's complaints as one error, each with its place and its mend."""
    found: dict[tuple[Any, ...], SpecError] = {}
    for item in error.errors(include_url=False):
        path = _written_path(item["loc"], located.value)
        key = ".".join(str(part) for part in path)
        hint = None
        if item["type"] == "extra_forbidden":
            inside = ".".join(str(part) for part in path[:-1])
            message = f"unknown key {str(path[-1])!r}" + (f" in {inside}" if inside else "")
            hint = _suggested(path, root)
        elif item["type"] == "missing":
            message = f"{key or 'the file'} lacks the key {str(item['loc'][-1])!r}"
        elif path in found:
            # A union complains once for each of its members: one line a place.
            message = f"{found[path].problem}; or {_sentence(item)}"
        else:
            message = f"{key}: {_sentence(item)}" if key else _sentence(item)
        place = (*path, item["loc"][-1]) if item["type"] == "missing" else path
        found[place] = SpecError(message, str(located.mark(path)), hint)
    first, *others = found.values()
    return SpecError(first.problem, first.where, first.hint, others)


def _suggested(path: tuple[str | int, ...], root: type[BaseModel]) -> str | None:
    if root is TargetFile:
        return suggestion(str(path[-1]), path[1:-1], Target)
    return suggestion(str(path[-1]), path[:-1], root)


def _written_path(loc: tuple[str | int, ...], value: Any) -> tuple[str | int, ...]:
    """The part of pydantic's location that the file really has, plus an unknown last key."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(value, dict) and part in value:
            path.append(part)
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path.append(part)
            value = value[part]
        else:
            break
    return tuple(path)


def _sentence(item: Any) -> str:
    if item["type"] == "literal_error":
        return f"{item['input']!r} is not one of {item['ctx']['expected']}"
    if item["type"] == "string_pattern_mismatch" and "A-Za-z_][\\w.]*:" in item["ctx"]["pattern"]:
        return f'{item["input"]!r} does not name a function; write "module:function"'
    if item["type"] == "string_pattern_mismatch":
        return f"{item['input']!r} does not have the form {item['ctx']['pattern']}"
    text = str(item["msg"]).removeprefix("Value error, ")
    text = text[0].lower() + text[1:] if text.startswith("Input should") else text
    return text if repr(item["input"]) in text else f"{text} (found {item['input']!r})"


def _shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
