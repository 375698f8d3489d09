"""The Python files that a transform is made of: its module, and whatever that imports from the code
folder. An edit elsewhere in the folder, of a loss say, must not have the data prepared anew."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from headway.state.file_listing import VERSION_2, listing_of

VERSION_3 = "3-"
"""What digests of this kind begin with."""
AT_RUN_TIME = {"importlib", "__import__", "exec", "eval", "pkgutil", "runpy"}
"""With one of these a module may import any other."""


def transform_digest(folder: Path, transform: str) -> str:
    """Of these files, by name and content."""
    files = {
        path.relative_to(folder).as_posix(): path for path in transform_files(folder, transform)
    }
    return VERSION_3 + listing_of(files).digest.removeprefix(VERSION_2)


def transform_files(folder: Path, transform: str) -> list[Path]:
    """All Python files of the folder where it cannot be known which are needed."""
    found: set[Path] = set()
    waiting = list(_files_of(transform.partition(":")[0], folder))
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return _python_files(folder)
        if any(_imports_at_run_time(node) for node in ast.walk(tree)):
            return _python_files(folder)
        for node in ast.walk(tree):
            for module in _imported(node, file, folder):
                waiting += _files_of(module, folder)
    return sorted(found) or _python_files(folder)


def _python_files(folder: Path) -> list[Path]:
    """Every Python file below `folder`. Not others: a README must not have data prepared anew."""
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if path.is_file()
        and not any(
            part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts
        )
    ]


def _files_of(module: str, folder: Path) -> Iterator[Path]:
    """What importing a module runs, if it is in the folder: the packages it is in, and itself. A
    folder without __init__.py is a package, too."""
    path = folder
    for part in module.split("."):
        path = path / part
        for file in (path / "__init__.py", path.with_name(f"{part}.py")):
            if file.is_file():
                yield file


def _imported(node: ast.AST, file: Path, folder: Path) -> Iterator[str]:
    """Names of modules; also of what may be a function of one, which is then no file."""
    match node:
        case ast.Import(names=names):
            yield from (one.name for one in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            package = file.relative_to(folder).parent.parts
            above = package[: len(package) - level + 1] if level else ()
            base = ".".join([*above, *([module] if module else [])])
            yield base
            yield from (f"{base}.{one.name}" if base else one.name for one in names)


def _imports_at_run_time(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name):
            return name in AT_RUN_TIME
        case ast.Import(names=names):
            return any(one.name.split(".")[0] in AT_RUN_TIME for one in names)
        case ast.ImportFrom(module=module):
            return (module or "").split(".")[0] in AT_RUN_TIME
    return False
