"""Which tests depend on which modules: the import graph of src, tests and bench, with what imports
alone do not show.

- Test files and conftest.py are modules of the graph. A test depends on a conftest.py only if it
  names one of its fixtures.
- A module that is named in a string, such as "headway.train.loop", counts as imported. Worker
  processes, patches and the table of commands name modules that way.
- `headway` itself loads its public names on first use: `from headway import Batch` imports the
  module that Batch is in, and nothing else.
- What runs the command line imports the commands whose names it has in its strings, or all of them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import grimp

from headway import _MODULES as PUBLIC_NAMES  # type: ignore[attr-defined]
from headway.cli.command_table import COMMANDS

PACKAGES = ("headway", "support", "cluster_tool", "bench", "tools")
COMMAND_LINE = "headway.cli.main"
COMMAND_FIXTURE = "headway"
"""Runs the command line. The other fixtures of its conftest.py do not."""
NAMES_A_MODULE = re.compile(
    r"""["'][^"'\n]*\b(headway|support)\.\w|from headway import|import headway\b"""
)
PUBLIC = {name: module for module, names in PUBLIC_NAMES.items() for name in names}
COMMAND_MODULES = {
    command.name: "headway.cli." + command.code.partition(":")[0] for command in COMMANDS
}


class SourceFile:
    """A Python file, parsed on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()

    @cached_property
    def _nodes(self) -> dict[type[ast.AST], list[Any]]:
        found: dict[type[ast.AST], list[Any]] = defaultdict(list)
        for node in ast.walk(ast.parse(self.text)):
            found[type(node)].append(node)
        return found

    @cached_property
    def strings(self) -> frozenset[str]:
        """String constants, docstrings excepted."""
        docstrings = {id(node.value) for node in self._nodes[ast.Expr]}
        return frozenset(
            node.value
            for node in self._nodes[ast.Constant]
            if isinstance(node.value, str) and id(node) not in docstrings
        )

    @cached_property
    def words(self) -> frozenset[str]:
        """Parts of its strings, among them names of the files and folders that it reads."""
        return frozenset(word for text in self.strings for word in re.split(r"[\s/'\"`]+", text))

    @cached_property
    def commands(self) -> set[str]:
        """Commands of `headway` that its strings name."""
        texts = set(self.strings)
        texts |= {name for text in self.strings for name in re.findall(r"headway (\w+)", text)}
        return texts & COMMAND_MODULES.keys()

    @cached_property
    def arguments(self) -> frozenset[str]:
        """Arguments of its functions: in tests, the fixtures that they use."""
        return frozenset(node.arg for node in self._nodes[ast.arg])

    def imported(self) -> Iterator[str]:
        """Imported modules, and names in modules, which may be modules themselves."""
        yield from (alias.name for node in self._nodes[ast.Import] for alias in node.names)
        for node in self._nodes[ast.ImportFrom]:
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def public_names(self) -> Iterator[str]:
        """Public names that it takes from `headway`."""
        for node in self._nodes[ast.ImportFrom]:
            if node.module == "headway":
                yield from (alias.name for alias in node.names)
        packages = {
            alias.asname or alias.name
            for node in self._nodes[ast.Import]
            for alias in node.names
            if alias.name == "headway"
        }
        for node in self._nodes[ast.Attribute]:
            if isinstance(node.value, ast.Name) and node.value.id in packages:
                yield node.attr

    def fixtures(self) -> frozenset[str]:
        """Names of the fixtures that it defines; with "" if one of them is used by every test."""
        found = set()
        for node in self._nodes[ast.FunctionDef]:
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            if any(mark.startswith("pytest.fixture") for mark in marks):
                found.add(node.name)
                found |= {"" for mark in marks if "autouse=True" in mark}
            elif node.name.startswith("pytest_"):
                found.add("")
        return frozenset(found)


class ImportGraph:
    def __init__(self, repository: Path) -> None:
        self.repository = repository
        sys.path[:0] = [str(repository), str(repository / "tests")]  # where grimp finds packages
        self.graph = grimp.build_graph(*PACKAGES, cache_dir=None)
        self.files = {self.module_of(path): SourceFile(path) for path in self._paths()}
        for imported in self.graph.find_modules_directly_imported_by("headway"):
            self.graph.remove_import(importer="headway", imported=imported)
        for module, file in self.files.items():
            self.graph.add_module(module)
            self._add_imports(module, file)
        for module, file in self.files.items():
            self._add_commands(module, file)

    def _paths(self) -> Iterator[Path]:
        for folder in ("src/headway", "tests", "bench", "tools"):
            yield from sorted((self.repository / folder).rglob("*.py"))

    def module_of(self, path: Path) -> str:
        """Return the module name of a file. Those of tests begin with `tests`."""
        parts = path.relative_to(self.repository).with_suffix("").parts
        if parts[0] == "src" or (parts[0] == "tests" and parts[1] in PACKAGES):
            parts = parts[1:]
        return ".".join(parts).removesuffix(".__init__")

    def tests(self) -> Iterator[tuple[str, Path]]:
        for module, file in self.files.items():
            if file.path.name.startswith("test_"):
                yield module, file.path

    def test_modules_that_depend_on(self, module: str) -> frozenset[str]:
        dependents = self.graph.find_downstream_modules(module) | {module}
        return frozenset(name for name, _ in self.tests() if name in dependents)

    def chain(self, test: str, module: str) -> tuple[str, ...]:
        """Return the shortest way from a test to a module that it depends on."""
        if test == module:
            return (test,)
        return self.graph.find_shortest_chain(importer=test, imported=module) or (test,)

    def readers(self, path: Path) -> frozenset[str]:
        """Return the modules whose strings name the file or its folder."""
        parts = path.relative_to(self.repository).parts
        is_source = parts[0] == "src"
        files = {k: v for k, v in self.files.items() if k.startswith("headway") == is_source}
        if is_source:
            part = self.module_of(self.repository.joinpath(*parts[:3]))
            nearby = {name: file for name, file in files.items() if name.startswith(part)}
            names = path.name, path.parent.name
            return (
                _naming(names[0], nearby) or _naming(names[1], nearby) or _naming(names[1], files)
            )
        if parts[0] == "tests":
            return _naming(path.name, files) | _naming(path.parent.name, files)
        return _naming(parts[0], files)

    def _link(self, importer: str, imported: Iterable[str]) -> None:
        for module in imported:
            if module in self.graph.modules and module != importer:
                self.graph.add_import(importer=importer, imported=module)

    def _add_imports(self, module: str, file: SourceFile) -> None:
        if module.startswith("tests."):
            left_out = {"headway"} | ({COMMAND_LINE} if file.path.name == "conftest.py" else set())
            self._link(module, set(file.imported()) - left_out)
            self._link(module, self._conftests(module, file))
            if COMMAND_FIXTURE in file.arguments:
                self._link(module, {COMMAND_LINE})
        if NAMES_A_MODULE.search(file.text) and module not in ("headway", "tools.import_graph"):
            self._link(module, {PUBLIC[name] for name in file.public_names() if name in PUBLIC})
            self._link(module, self._named_modules(file))

    def _conftests(self, module: str, file: SourceFile) -> Iterator[str]:
        used = {"", *file.arguments, *file.strings}
        for parent in file.path.parents:
            conftest = parent / "conftest.py"
            other = self.module_of(conftest) if conftest.is_relative_to(self.repository) else ""
            if other in self.files and other != module and used & self.files[other].fixtures():
                yield other

    def _named_modules(self, file: SourceFile) -> Iterator[str]:
        for text in file.strings:
            for name in re.findall(r"\b(?:headway|support)(?:\.\w+)+", text):
                while name and name not in self.graph.modules:
                    name = name.rpartition(".")[0]
                if "." in name:
                    yield name

    def _add_commands(self, module: str, file: SourceFile) -> None:
        """Link a module to the commands that it can run: those that it names. A test runs those
        that it or its helpers name, or any command if they name none."""
        is_test = file.path.name.startswith("test_")
        if is_test and self.graph.chain_exists(importer=module, imported=COMMAND_LINE):
            helpers = self.graph.find_upstream_modules(module)
            files = [file, *(self.files[name] for name in helpers if name.startswith("support."))]
            names = {name for one in files for name in one.commands} or set(COMMAND_MODULES)
        elif self.graph.direct_import_exists(importer=module, imported=COMMAND_LINE):
            names = file.commands
        else:
            return
        for name in names:
            command = COMMAND_MODULES[name]
            self._link(module, {command} | self.graph.find_descendants(command))


def _naming(name: str, files: Mapping[str, SourceFile]) -> frozenset[str]:
    return frozenset(module for module, file in files.items() if name in file.words)
