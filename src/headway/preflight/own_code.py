"""Whether the functions that a run file names are in the user's code. Nothing of it is executed."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from headway.errors import SpecError
from headway.spec.data_config import DataSetConfig
from headway.spec.load import Loaded

Key = tuple[str, ...]


def code_problems(loaded: Loaded) -> Iterator[SpecError]:
    folder = None
    if loaded.run.code is not None:
        folder = loaded.folder / loaded.run.code.path
        if not folder.is_dir():
            yield SpecError(
                f"code.path: no folder {folder}",
                str(loaded.located.mark(("code", "path"))),
                "paths start at the run file's folder",
            )
            return
    for key, call in _calls(loaded):
        yield from _call_problems(call, folder, str(loaded.located.mark(key)))


def _calls(loaded: Loaded) -> Iterator[tuple[Key, str]]:
    run = loaded.run
    sets: dict[Key, DataSetConfig] = {
        ("data", "validation", name): one for name, one in run.data.validation.items()
    }
    if run.data.train is not None:
        sets[("data", "train")] = run.data.train
    calls: dict[Key, str | None] = {
        ("model", "call"): run.model.call if run.model else None,
        ("objective", "call"): run.objective.call,
        ("evaluation", "metrics", "call"): (
            run.evaluation.metrics.call if run.evaluation.metrics else None
        ),
        **{(*key, "transform"): one.transform for key, one in sets.items()},
    }
    yield from ((key, call) for key, call in calls.items() if call is not None)


def _call_problems(call: str, folder: Path | None, where: str) -> Iterator[SpecError]:
    module, _, function = call.partition(":")
    file = _file_of(module, folder)
    if file is None:
        if importlib.util.find_spec(module.split(".")[0]) is None:
            yield SpecError(f"{call}: no module {module!r}", where, _near_module(module, folder))
        return
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except SyntaxError as error:
        text = f"{call}: {file.name}:{error.lineno}: {error.msg}"
        yield SpecError(text, where, f"correct line {error.lineno} of {file.name}")
        return
    names = set(_names_in(tree))
    if function not in names and "*" not in names:
        near = difflib.get_close_matches(function, names, n=1)
        hint = f"did you mean {module}:{near[0]}?" if near else f"define {function} in {file.name}"
        yield SpecError(f"{call}: {file.name} has no function {function!r}", where, hint)


def _file_of(module: str, folder: Path | None) -> Path | None:
    if folder is None:
        return None
    path = folder.joinpath(*module.split("."))
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _near_module(module: str, folder: Path | None) -> str:
    if folder is None:
        return "code: {path: .} in the run file says where your modules are"
    modules = sorted(file.stem for file in folder.glob("*.py"))
    near = difflib.get_close_matches(module, modules, n=1)
    return f"did you mean {near[0]}?" if near else f"modules in {folder}: {', '.join(modules[:12])}"


def _names_in(tree: ast.Module) -> Iterator[str]:
    """Names that importing the module defines, also inside `if` and `try`; `*` for all of another
    module's."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (one.asname or one.name for one in names)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
