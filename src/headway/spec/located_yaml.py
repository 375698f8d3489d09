"""YAML whose every key and value remembers its file, line and column.

Positions are what make an error useful, so the file is composed to nodes first and turned into
plain values here. Two readings differ from YAML 1.1 on purpose: `6e-4` is a number, and only
`true` and `false` are booleans (so `off` stays a word). The arguments of `command` are text as they
are written, whatever they look like.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from headway.errors import SpecError

Path = tuple[str | int, ...]
PRESET = " (preset)"
"""Ends the name of a preset where a position shows a file's."""
COMMAND = "command"
"""Key of a list whose items are text: a script may tell `0.10` from `0.1`."""


@dataclass(frozen=True)
class Mark:
    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass
class Located:
    """A plain value with the marks of its keys (where the key stands) and values."""

    value: Any
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)

    def mark(self, path: Path) -> Mark:
        """Of the key at `path`, or of the nearest thing above it that is written down."""
        for length in range(len(path), -1, -1):
            for marks in (self.keys, self.values):
                if path[:length] in marks:
                    return marks[path[:length]]
        return Mark("run file", 0, 0)


class _Loader(yaml.SafeLoader):
    pass


# Copies: SafeLoader's own tables must not change under other users of PyYAML.
_Loader.yaml_implicit_resolvers = {
    letter: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag
        not in (
            "tag:yaml.org,2002:bool",
            "tag:yaml.org,2002:float",
            "tag:yaml.org,2002:int",
            "tag:yaml.org,2002:timestamp",
        )
    ]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def read_yaml(text: str, file: str, key: str | None = None) -> Located:
    """The document in `text`, located; an empty document is an empty mapping. `key`: of the run
    file, whose value it is."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            located = Located({}, values={(): Mark(file, 1, 1)})
            if node is not None:
                if key == COMMAND:
                    _take_as_text(node)
                located.value = _construct(loader, node, (), located, file)
            return located
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        problem = error.problem or error.context or ""
        if r"'\t'" in problem:
            problem = "indent with spaces, not tabs"
        raise SpecError(f"not valid YAML: {problem}", where) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position].split("\n")
        where = f"{file}:{len(before)}:{len(before[-1]) + 1}"
        raise SpecError(f"not valid YAML: character {error.character:#x}", where) from None
    except RecursionError:
        raise SpecError("not valid YAML: an anchor that contains itself", file) from None


def _construct(loader: Any, node: yaml.Node, path: Path, located: Located, file: str) -> Any:
    located.values[path] = _mark(node, file)
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = _mark(key_node, file)
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise SpecError("`<<` is not read here", str(where), "extends: takes a whole file")
            key = loader.construct_object(key_node)
            if not isinstance(key, str):
                written = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
                hint = f'write "{written}"' if written else None
                raise SpecError(f"key {written or key} is not a word", str(where), hint)
            if key in result:
                first = located.keys[(*path, key)]
                raise SpecError(
                    f"key {key!r} is given twice (first in line {first.line})",
                    str(where),
                    "remove one of the two",
                )
            located.keys[(*path, key)] = where
            if (*path, key) == (COMMAND,):
                _take_as_text(value_node)
            result[key] = _construct(loader, value_node, (*path, key), located, file)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [
            _construct(loader, item, (*path, index), located, file)
            for index, item in enumerate(node.value)
        ]
    try:
        return loader.construct_object(node)
    except ValueError as error:  # a tag that the text does not fit: !!int abc
        raise SpecError(f"not valid YAML: {error}", str(_mark(node, file))) from None


def _take_as_text(node: yaml.Node) -> None:
    """The items of a list, whatever they look like."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if isinstance(item, yaml.ScalarNode):
                item.tag = "tag:yaml.org,2002:str"


def _mark(node: yaml.Node, file: str) -> Mark:
    return Mark(file, node.start_mark.line + 1, node.start_mark.column + 1)


# A mapping at these places is one choice out of several. When the overriding file chooses anew,
# the base's choice goes away whole: `model: {from: gpt2}` over a preset's `{type:, config:}`.
# A bare word at such a place is the value of the first key (`*` is any name).
CHOICES: dict[Path, tuple[str, ...]] = {
    ("model",): ("from", "type", "call"),
    ("objective",): ("type", "call"),
    ("objective", "teacher"): ("from", "type", "call"),
    ("data", "train"): ("path", "sources", "mixture"),
    ("data", "train", "tokenizer"): ("from", "train"),
    ("data", "validation", "*"): ("path", "sources"),
    ("data", "validation", "*", "tokenizer"): ("from", "train"),
}
# What stands beside these depends on their value, as `config` does on `type`; beside the others
# (`tokenizer` beside `sources`) it goes with any value.
DECIDED_BY_VALUE = ("from", "type", "call")


def _choices(path: Path) -> tuple[str, ...]:
    if path[:2] == ("data", "validation") and len(path) > 2:
        path = (*path[:2], "*", *path[3:])
    return CHOICES.get(path, ())


def _chooses_anew(path: Path, base: Any, over: Any) -> bool:
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return True
    if not over:
        return True  # `validation: {}` takes away what the base has
    return any(
        key not in base or (key in DECIDED_BY_VALUE and base[key] != over[key])
        for key in _choices(path)
        if key in over
    )


def merge(base: Located, over: Located) -> Located:
    """`over` on top of `base`, mapping by mapping; lists and plain values are replaced."""
    result = Located({}, dict(base.keys), dict(base.values))

    def forget(path: Path) -> None:
        for marks in (result.keys, result.values):
            for known in [known for known in marks if known[: len(path)] == path]:
                del marks[known]

    def combine(path: Path, below: Any, above: Any) -> Any:
        if isinstance(below, str) and isinstance(above, dict) and _choices(path):
            below = {_choices(path)[0]: below}
        if _chooses_anew(path, below, above):
            forget(path)
            for marks, source in ((result.keys, over.keys), (result.values, over.values)):
                marks.update({p: m for p, m in source.items() if p[: len(path)] == path})
            return above
        merged = dict(below)
        for key, value in above.items():
            inner = (*path, key)
            if key in merged:
                merged[key] = combine(inner, merged[key], value)
                result.keys[inner] = over.keys[inner]
            else:
                merged[key] = combine(inner, None, value)
        result.values[path] = over.values.get(path, result.values.get(path, Mark("", 0, 0)))
        return merged

    result.value = combine((), base.value, over.value)
    return result
