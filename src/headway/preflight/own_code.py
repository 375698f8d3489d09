"""Whether the user's code can travel, and has the functions that a run file names. Nothing of it is
executed."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from headway.errors import BadInput, SpecError
from headway.launch.packages import find_uv
from headway.launch.requirements_file import read_requirements
from headway.preflight.signatures import definition_of, signature_of, yields
from headway.preflight.unchecked import Unchecked
from headway.spec.load import Loaded
from headway.spec.own_calls import own_calls
from headway.spec.run_file import ModelConfig
from headway.spec.run_sources import Key
from headway.state.code_folder import CodeFolderRefused, code_folder
from headway.state.own_function import LOSS, TRANSFORM, Misfit, config_misfit, misfit


def code_problems(loaded: Loaded, is_here: bool, unchecked: Unchecked) -> Iterator[SpecError]:
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
        try:
            code_folder(loaded.run, loaded.folder)
        except CodeFolderRefused as refused:
            where = str(loaded.located.mark(("code", "path")))
            yield SpecError(refused.message, where, refused.hint)
        yield from _requirements_problems(loaded, unchecked)
    for key, call in own_calls(loaded.run):
        # A transform runs here, wherever the run does, and only with what code.path has.
        is_transform = key[-1] == "transform"
        folders = [folder] if folder is not None else []
        if not is_transform:
            folders.append(Path.cwd())  # on the Python path of workers
        needs = loaded.run.code is not None and loaded.run.code.requirements is not None
        if is_transform or _is_in(call, folders) or (is_here and not needs):
            yield from _call_problems(call, folders, loaded, key)
        else:
            where = "in the packages of code.requirements" if needs else "in the image"
            unchecked.add(f"{'.'.join(map(str, key))}: {call} is looked for {where}")


def _requirements_problems(loaded: Loaded, unchecked: Unchecked) -> Iterator[SpecError]:
    assert loaded.run.code is not None
    if loaded.run.code.requirements is None:
        return
    where = str(loaded.located.mark(("code", "requirements")))
    try:
        read_requirements(loaded.folder / loaded.run.code.requirements)
        find_uv()
    except BadInput as refused:
        yield SpecError(refused.message, where, refused.hint)
    else:
        unchecked.add("code.requirements: run resolves them, and refuses what it cannot install")


def _call_problems(call: str, folders: list[Path], loaded: Loaded, key: Key) -> Iterator[SpecError]:
    module, _, function = call.partition(":")
    where = str(loaded.located.mark(key))
    file = _file_of(module, folders)
    if file is None:
        if not _is_in(call, folders) and importlib.util.find_spec(module.split(".")[0]) is None:
            yield SpecError(f"{call}: no module {module!r}", where, _near_module(module, folders))
        return
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except SyntaxError as error:
        text = f"{call}: {file.name}:{error.lineno}: {error.msg}"
        yield SpecError(text, where, f"correct line {error.lineno} of {file.name}")
        return
    names = set(_names_in(tree))
    if function not in names and not names & {"*", "__getattr__"}:
        near = difflib.get_close_matches(function, names, n=1)
        hint = f"did you mean {module}:{near[0]}?" if near else f"define {function} in {file.name}"
        yield SpecError(f"{call}: {file.name} has no function {function!r}", where, hint)
        return
    found = _misfit(call, tree, loaded, key)
    if found is not None:
        yield SpecError(f"{file.name}: {found[0]}", where, found[1])


def _misfit(call: str, tree: ast.Module, loaded: Loaded, key: Key) -> Misfit | None:
    """Why it cannot be called as it will be, where its definition shows that."""
    function = call.partition(":")[2]
    definition = definition_of(function, tree)
    if definition is None:
        return None
    if yields(definition):
        text = f"{call} has a `yield`, and so returns a generator"
        return text, "it is called once for each record or micro-batch: use return"
    signature = signature_of(definition)
    if signature is None:
        return None
    builders: dict[Key, ModelConfig | None] = {
        ("model", "call"): loaded.run.model,
        ("objective", "teacher", "call"): loaded.run.objective.teacher,
    }
    if (model := builders.get(key)) is not None:
        return config_misfit(call, signature, model.config)
    return misfit(call, signature, TRANSFORM if key[-1] == "transform" else LOSS)


def _is_in(call: str, folders: list[Path]) -> bool:
    """Whether its package or module, of whatever kind, is in one of the folders."""
    top = call.partition(":")[0].split(".")[0]
    return any((folder / top).is_dir() or any(folder.glob(f"{top}.*")) for folder in folders)


def _file_of(module: str, folders: list[Path]) -> Path | None:
    """Its source, as Python would find it; None if it is elsewhere or not in Python."""
    for folder in folders:
        path = folder.joinpath(*module.split("."))
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                return file
    return None


def _near_module(module: str, folders: list[Path]) -> str:
    modules = sorted(file.stem for folder in folders for file in folder.glob("*.py"))
    near = difflib.get_close_matches(module, modules, n=1)
    return f"did you mean {near[0]}?" if near else "code: {path: FOLDER} says where modules are"


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
