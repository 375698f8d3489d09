"""Loads run files and target files: read, extend, override, validate, report errors by position."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from headway.errors import BadInput, NotFound, SpecError
from headway.spec.key_suggestions import keys_at, near_value, suggestion
from headway.spec.located_yaml import PRESET, Located, Mark, merge, read_yaml
from headway.spec.pod_config import IMAGE_PATTERN, OBJECT_PATTERN
from headway.spec.quantities import Length
from headway.spec.run_file import RunFile
from headway.spec.script_keys import refuse_excluded
from headway.spec.section import CALL_PATTERN, NAME_PATTERN, VARIABLE_PATTERN, Suggesting
from headway.spec.target_file import NAMESPACE_PATTERN, Target, TargetFile
from headway.spec.unsupported_parallelism import instead_of, parallelism_of

RUN_FILE = "run.yaml"
TARGET_FILE = "targets.yaml"
Checked = TypeVar("Checked", bound=BaseModel)
FORMS = {
    NAME_PATTERN: "is not a valid name: lower-case letters, digits and inner dashes, at most 40",
    CALL_PATTERN: 'does not name a function; write "module:function"',
    VARIABLE_PATTERN: "is not the name of an environment variable",
    OBJECT_PATTERN: "is not a Kubernetes name: lower-case letters, digits, dashes and dots",
    NAMESPACE_PATTERN: "is not a namespace: lower-case letters, digits and dashes, at most 63",
    IMAGE_PATTERN: "has no digest, and a tag can change during a run; write ADDRESS@sha256:... "
    "with the digest from `docker buildx imagetools inspect IMAGE` or `crane digest IMAGE`",
}
"""What each pattern requires, in words."""


PRESET_ALIASES = {
    "gpt2": "gpt2-small",
    "gpt2-124m": "gpt2-small",
    "gpt2-355m": "gpt2-medium",
    "gpt2-774m": "gpt2-large",
    "gpt2-1.5b": "gpt2-xl",
    "bert": "bert-base",
    "llama2": "llama2-7b",
    "llama3": "llama3-8b",
    "llama-3.1-8b": "llama3-8b",
    "distil-gpt2": "distilgpt2",
}
"""Names of published models that people try, and the presets of their shape."""


@dataclass(frozen=True)
class Begun:
    """What a run's first start decided, and later starts keep: it is part of what the run is."""

    micro: int
    """Sequences per micro-batch."""
    loss_in_chunks: bool
    length: Length | None = None
    """`train_for` then."""


@dataclass(frozen=True)
class Loaded:
    """A run file as read: `folder` is what its relative paths are relative to."""

    run: RunFile
    folder: Path
    located: Located
    """What was written, with positions; defaults are not in it."""
    hub_commits: Mapping[str, str] | None = None
    """Of `Resolved`, once they are known."""
    begun: Begun | None = None
    """What the run's first start decided; None: it is new."""

    @property
    def file(self) -> str:
        return self.located.mark(()).file

    @property
    def is_preset(self) -> bool:
        """Named as it is, and not extended by a file."""
        return self.file.endswith(PRESET)


@dataclass(frozen=True)
class LoadedTarget:
    """A target as read."""

    name: str
    target: Target
    located: Located
    """The whole file it is in."""

    def mark(self, path: tuple[str | int, ...]) -> Mark:
        """Where a key of this target is written, or the nearest thing above it that is."""
        return self.located.mark((self.name, *path))


def preset_names() -> list[str]:
    folder = resources.files("headway.spec") / "presets"
    return sorted(
        item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    return (resources.files("headway.spec") / "presets" / f"{name}.yaml").read_text("utf-8")


def load_run(reference: str | Path | None = None, overrides: list[str] | None = None) -> Loaded:
    """Of a run file, a folder that holds one, a preset's name, or None for ./run.yaml."""
    source, bases = _find(reference), _overrides_of_base(overrides or [])
    if bases and not isinstance(source, Path):
        raise BadInput(
            f"--set {bases[-1]}: {source} is a preset, and extends nothing",
            "name the other preset in its place, or a run file that extends one",
        )
    instead = _overridden(Located({}), bases[-1]) if bases else None
    located, folder = _read_with_bases(source, seen=(), instead=instead)
    for override in overrides or []:
        located = _overridden(located, override)
    _drop_vocabulary_of_preset(located)
    refuse_excluded(located)
    return Loaded(validated(RunFile, located), folder, located)


def _drop_vocabulary_of_preset(located: Located) -> None:
    """A preset's vocabulary is that of the published tokenizer. With one that is trained for the
    run, the model has as many tokens as that has. A student needs its teacher's."""
    key = ("model", "config", "vocab_size")
    of_preset = key in located.keys and located.keys[key].file.endswith(PRESET)
    is_trained = ("data", "train", "tokenizer", "train") in located.keys
    has_teacher = ("objective", "teacher") in located.keys
    if of_preset and is_trained and not has_teacher:
        del located.value["model"]["config"]["vocab_size"]
        del located.keys[key], located.values[key]


def changed_run(run: RunFile, overrides: list[str]) -> RunFile:
    """A loaded run, with `--set` changes on top."""
    if bases := _overrides_of_base(overrides):
        raise BadInput(
            f"--set {bases[-1]}: a run that exists has taken all keys of its preset already",
            "set the keys that differ, or start a new run from a run file",
        )
    located = Located(run.model_dump(mode="json", by_alias=True, exclude_none=True))
    for override in overrides:
        located = _overridden(located, override)
    return validated(RunFile, located)


def load_targets(folder: Path) -> dict[str, Target]:
    """Targets beside the run file, then those of the user's config folder with other names."""
    return {name: found.target for name, found in _located_targets(folder).items()}


def load_target(name: str, folder: Path) -> LoadedTarget:
    targets = _located_targets(folder)
    if name in targets:
        return targets[name]
    if not targets:
        raise NotFound(
            f"no target {name!r}: neither {folder} nor {config_folder()} has a {TARGET_FILE}",
            f"to look at a cluster and write one: headway target add {name}",
        )
    near = difflib.get_close_matches(name, targets, n=1)
    known = f"known targets: {', '.join(sorted(targets))}"
    raise NotFound(f"no target {name!r}", f"did you mean {near[0]}? {known}" if near else known)


def _located_targets(folder: Path) -> dict[str, LoadedTarget]:
    found: dict[str, LoadedTarget] = {}
    for place in (config_folder(), folder):
        file = place / TARGET_FILE
        if file.is_file():
            located = _read(file)
            targets = validated(TargetFile, located).root
            found |= {name: LoadedTarget(name, target, located) for name, target in targets.items()}
    return found


def config_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "headway"


def _find(reference: str | Path | None) -> Path | str:
    if reference is None:
        file = Path(RUN_FILE)
        if not file.is_file():
            raise NotFound(
                f"no {RUN_FILE} in {Path.cwd()}",
                "name a run file, or create one: headway init tiny DIR",
            )
        return file
    path = Path(reference)
    if path.is_file():
        return path
    if (path / RUN_FILE).is_file():
        return path / RUN_FILE
    if str(reference) in preset_names():
        return str(reference)
    near = near_preset(str(reference))
    if "=" in str(reference):
        hint = f"to set a key: --set {reference}"
    elif near:
        hint = f"did you mean the preset {near}?"
    else:
        hint = "to create one that works as it is: headway init tiny my-run"
    is_path = isinstance(reference, Path) or "/" in reference
    missing = "no run file at" if is_path else "no run file or preset is called"
    raise NotFound(f"{missing} {reference}", hint)


def _read(file: Path) -> Located:
    try:
        return read_yaml(file.read_text("utf-8"), _shown(file))
    except UnicodeDecodeError as error:
        raise SpecError(f"not UTF-8 text (byte {error.start})", _shown(file)) from None


def _read_with_bases(
    source: Path | str, seen: tuple[Path | str, ...], instead: Located | None = None
) -> tuple[Located, Path]:
    """A file or preset, merged over all that it extends; `seen` are those that extend it.
    `instead`: an override of its own `extends`."""
    if isinstance(source, Path):
        located, folder = _read(source), source.resolve().parent
    else:
        located, folder = read_yaml(preset_text(source), source + PRESET), Path.cwd()
    if not isinstance(located.value, dict):
        raise SpecError("a run file must be a mapping of keys", str(located.mark(())))
    extending = instead or located
    base = extending.value.get("extends")
    if base is None:
        return located, folder
    where = str(extending.mark(("extends",)))
    if not isinstance(base, str):
        raise SpecError("`extends` must name one preset or one file", where)
    file = folder / base
    seen = (*seen, source.resolve() if isinstance(source, Path) else source)
    if file.resolve() in seen:
        raise SpecError(f"`extends` forms a circle through {base}", where)
    if not file.is_file() and base not in preset_names():
        raise SpecError(
            f"`extends: {base}` is neither a preset nor a file", where, preset_hint(base)
        )
    below, _ = _read_with_bases(file if file.is_file() else base, seen)
    return merge(below, located), folder


def preset_hint(name: str) -> str:
    near = near_preset(name)
    return f"did you mean {near}?" if near else f"presets: {', '.join(preset_names())}"


def near_preset(name: str) -> str | None:
    """Return the preset that a name probably means, however its words are joined."""
    known = {_letters(one): one for one in preset_names()} | {
        _letters(alias): one for alias, one in PRESET_ALIASES.items()
    }
    asked = _letters(name.rpartition("/")[2])
    if asked in known:
        return known[asked]
    near = difflib.get_close_matches(asked, known, n=1, cutoff=0.75)
    return known[near[0]] if near else None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _overrides_of_base(overrides: list[str]) -> list[str]:
    return [text for text in overrides if text.partition("=")[0].strip() == "extends"]


def _overridden(located: Located, text: str) -> Located:
    """With `--set a.b=c` on top; the value is parsed as YAML."""
    key, equals, value = text.partition("=")
    parts = tuple(key.strip().split("."))
    if not equals or not all(parts):
        raise BadInput(f"--set {text}: write --set key.inner=value")
    if value.strip() == "":
        raise BadInput(f"--set {text}: the value is empty")
    inner = read_yaml(value, f"--set {key}", key.strip())
    mark = Mark(f"--set {key}", 0, 0)
    over = Located(inner.value)
    for part in reversed(parts):
        over.value = {part: over.value}
    above = [parts[:length] for length in range(len(parts))]
    inside = [(*parts, *path) for path in ((), *inner.keys, *inner.values)]
    over.keys = over.values = dict.fromkeys([*above, *inside], mark)
    result = merge(located, over)
    # What lies above the key stays where the file has it: only the key itself is from here.
    for path in above:
        for after, before in ((result.keys, located.keys), (result.values, located.values)):
            if path in before:
                after[path] = before[path]
    return result


def validated(kind: type[Checked], located: Located) -> Checked:
    try:
        return kind.model_validate(located.value)
    except ValidationError as error:
        raise _explained(error, located, kind) from None


def _explained(error: ValidationError, located: Located, root: type[BaseModel]) -> SpecError:
    """All of pydantic's errors as one, each with its position and a hint."""
    found: dict[tuple[Any, ...], SpecError] = {}
    for item in error.errors(include_url=False):
        path = _written_path(item["loc"], located.value)
        key = ".".join(str(part) for part in path)
        hint = None
        if item["type"] == "extra_forbidden":
            inside = ".".join(str(part) for part in path[:-1])
            message = f"unknown key {str(path[-1])!r}" + (f" in {inside}" if inside else "")
            hint = _suggested(path, root)
        elif item["type"] == "missing" and isinstance(item["loc"][-1], int):
            message = f"{key}: too few values (found {item['input']!r})"
        elif item["type"] == "missing":
            message = f"{key or 'the file'} has no key {item['loc'][-1]!r}"
        elif path in found:
            # A union reports an error for each of its members: one line per position.
            message = f"{found[path].problem}; or {_sentence(item)}"
        else:
            message = f"{key}: {_sentence(item)}" if key else _sentence(item)
            hint = _value_hint(item)
            if item["type"] == "model_type":
                hint = f"its keys are {', '.join(_keys_at(path, root))}"
        place = (*path, item["loc"][-1]) if item["type"] == "missing" else path
        found[place] = SpecError(message, str(located.mark(path)), hint)
        if item["type"] == "extra_forbidden":
            found |= _parallelism(path, item["input"], located)
    first, *others = found.values()
    return SpecError(first.problem, first.where, first.hint, others)


def _parallelism(
    path: tuple[Any, ...], value: Any, located: Located
) -> dict[tuple[Any, ...], SpecError]:
    """Errors for kinds of parallelism that an unknown key asks for, or that keys inside it do."""
    named = {path: value}
    if isinstance(value, dict):
        named |= {(*path, key): inner for key, inner in value.items()}
    return {
        place: SpecError(
            f"{'.'.join(map(str, place))}: {kind} parallelism is not supported",
            str(located.mark(place)),
            instead_of(kind, degree),
        )
        for place, degree in named.items()
        if (kind := parallelism_of(str(place[-1]))) is not None
    }


def _suggested(path: tuple[str | int, ...], root: type[BaseModel]) -> str | None:
    if root is TargetFile:
        return suggestion(str(path[-1]), path[1:-1], Target)
    return suggestion(str(path[-1]), path[:-1], root)


def _keys_at(path: tuple[str | int, ...], root: type[BaseModel]) -> list[str]:
    return keys_at(path[1:], Target) if root is TargetFile else keys_at(path, root)


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
    found = repr(item["input"]) if item["input"] is not None else "nothing"
    match item["type"]:
        case "literal_error":
            return f"{found} is not {_one_of(item['ctx']['expected'])}"
        case "string_pattern_mismatch":
            pattern = item["ctx"]["pattern"]
            return f"{found} {FORMS.get(pattern, f'does not have the form {pattern}')}"
        case "model_type" | "dict_type":
            return f"must be a section with keys (found {found})"
        case "bool_type":
            return f"write true or false (found {found})"
        case "value_error":  # our own, which say all that is needed
            return str(item["msg"]).removeprefix("Value error, ")
    text = str(item["msg"])
    text = text[0].lower() + text[1:] if text.startswith("Input should") else text
    return f"{text} (found {found})"


def _value_hint(item: Any) -> str | None:
    """What to write instead of a wrong value, where it is plain what was meant."""
    given = str(item["input"])
    match item["type"]:
        case "literal_error":
            return near_value(given, re.findall(r"'([^']+)'", item["ctx"]["expected"]))
        case "string_pattern_mismatch" if item["ctx"]["pattern"] == NAME_PATTERN:
            name = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:40].strip("-")
            return f"write {name}" if name else None
        case "value_error":
            error = item["ctx"]["error"]
            return error.hint if isinstance(error, Suggesting) else None
    return None


def _one_of(expected: str) -> str:
    """From pydantic's list of valid values: `'a', 'b' or 'c'`."""
    return f"one of {expected}" if " or " in expected else expected


def _shown(path: Path) -> str:
    """A path relative to the current folder, if it is inside."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
