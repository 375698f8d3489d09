"""The page of traps: what each is, and the tests that prove it impossible or handled. Tests say so
by `@pytest.mark.trap(N)`, found in the source of `tests` without importing it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TABLE = "docs/reference/traps.toml"
PAGE = "docs/reference/traps.md"
MARKER = "trap"
GATE_MARKERS = ("chaos", "local", "cluster")
"""Markers of the tiers of the gate; all of `tests/unit` is one, too."""


class WrongTraps(Exception):
    """The table or a marker is wrong."""


@dataclass(frozen=True)
class Trap:
    number: int
    trap: str
    how: str = ""
    """How it is impossible or handled."""
    script: str = ""
    """What remains for a script of the user's own."""
    missing: str = ""
    """What has to be built or tested before it is proven."""
    making_a_cluster: bool = False


@dataclass(frozen=True)
class TrapTest:
    """A test that proves traps."""

    file: str
    """From the root of the repository."""
    name: str
    traps: tuple[int, ...]
    markers: frozenset[str] = field(default=frozenset())
    """All markers of the function and of its module."""

    @property
    def tier(self) -> str | None:
        """The tier of the gate that runs it."""
        if {"long", "skip"} & self.markers:
            return None
        if self.file.startswith("tests/unit/"):
            return "unit"
        return next((tier for tier in GATE_MARKERS if tier in self.markers), None)


def read_traps(root: Path) -> list[Trap]:
    content = tomllib.loads((root / TABLE).read_text("utf-8"))
    try:
        return [Trap(**entry) for entry in content["traps"]]
    except TypeError as error:
        raise WrongTraps(f"{TABLE}: {error}") from None


def trap_tests(root: Path) -> list[TrapTest]:
    found: list[TrapTest] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        if f"mark.{MARKER}(" in text:
            found += _tests_in(ast.parse(text), path.relative_to(root).as_posix())
    return found


def _tests_in(module: ast.Module, file: str) -> Iterator[TrapTest]:
    shared: set[str] = set()
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name("pytestmark")], value=value):
                marks = value.elts if isinstance(value, ast.List) else [value]
                shared |= {_name_of(mark) for mark in marks}
    if MARKER in shared:
        raise WrongTraps(f"{file}: a trap is proven by a test, not by all tests of a file")
    for node in module.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        marks = [one for one in node.decorator_list if _name_of(one) == MARKER]
        if marks:
            numbers = tuple(number for mark in marks for number in _numbers(mark, file))
            names = frozenset(map(_name_of, node.decorator_list)) | shared
            yield TrapTest(file, node.name, numbers, names)


def _numbers(mark: ast.expr, file: str) -> list[int]:
    given = mark.args if isinstance(mark, ast.Call) else []
    numbers = [one.value for one in given if isinstance(one, ast.Constant)]
    if not numbers or len(numbers) < len(given) or not all(type(n) is int for n in numbers):
        raise WrongTraps(f"{file}:{mark.lineno}: a trap has a number: @pytest.mark.trap(17)")
    return [n for n in numbers if isinstance(n, int)]


def _name_of(mark: ast.expr) -> str:
    """`x` of `pytest.mark.x` and `pytest.mark.x(...)`."""
    called = mark.func if isinstance(mark, ast.Call) else mark
    return called.attr if isinstance(called, ast.Attribute) else ""


def require_consistent(traps: list[Trap], tests: list[TrapTest]) -> None:
    """Every marker has its trap, and every trap that counts as proven a test in the gate."""
    known = {trap.number: trap for trap in traps}
    if [trap.number for trap in traps] != list(range(1, len(traps) + 1)):
        raise WrongTraps(f"{TABLE}: numbers go from 1 on, each once")
    for test in tests:
        where = f"{test.file}::{test.name}"
        if "skip" in test.markers:
            raise WrongTraps(f"{where} is skipped, and proves nothing")
        for number in test.traps:
            if number not in known:
                raise WrongTraps(f"{where}: there is no trap {number} in {TABLE}")
            if known[number].making_a_cluster:
                raise WrongTraps(f"{where}: trap {number} is one of making a cluster")
    for trap in traps:
        if trap.making_a_cluster or trap.missing:
            continue
        if not any(test.tier for test in tests if trap.number in test.traps):
            raise WrongTraps(
                f"trap {trap.number} ({trap.trap}) has no test in the gate: mark one, or say in "
                f"{TABLE} what is missing"
            )


def trap_page(root: Path, note: str) -> str:
    traps, tests = read_traps(root), trap_tests(root)
    require_consistent(traps, tests)
    open_ones = [trap for trap in traps if trap.missing]
    clusters = [trap for trap in traps if trap.making_a_cluster]
    proven = len(traps) - len(open_ones) - len(clusters)
    lines = [
        note,
        "# The traps of training on Kubernetes by hand",
        "",
        "What five public tutorials warn of, or fall into, and what becomes of it with Headway. "
        f"Of {len(traps)}, {proven} are proven by tests, in the gate or at night, and "
        f"{len(open_ones) + len(clusters)} are open: {len(clusters)} belong to making a cluster, "
        "which Headway does not do yet. A test named here fails if the trap is open again; "
        "*cluster* is a Kubernetes of three nodes on one machine.",
        "",
        "| | trap | state |",
        "|---|---|---|",
        *(
            f"| {trap.number} | [{trap.trap}](#{_anchor(trap)}) | {_state(trap, tests)} |"
            for trap in traps
        ),
        "",
    ]
    for trap in traps:
        lines += [*_entry(trap, [test for test in tests if trap.number in test.traps]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _state(trap: Trap, tests: list[TrapTest]) -> str:
    if trap.making_a_cluster:
        return "open: Headway does not make clusters yet"
    if not trap.missing:
        return "proven"
    return "in part" if any(trap.number in test.traps for test in tests) else "open"


def _heading(trap: Trap) -> str:
    return f"{trap.number} {trap.trap}"


def _anchor(trap: Trap) -> str:
    plain = "".join(one for one in _heading(trap).lower() if one.isalnum() or one in " -_")
    return plain.replace(" ", "-")


def _entry(trap: Trap, tests: list[TrapTest]) -> list[str]:
    lines = [f"## {_heading(trap)}"]
    if trap.making_a_cluster:
        lines.append("Open: Headway does not make clusters yet.")
    if trap.how:
        lines.append(trap.how)
    if trap.script:
        lines.append(f"A script of your own: {trap.script}")
    if trap.missing:
        lines.append(f"**Missing**: {trap.missing}")
    if tests:
        lines.append("")
    for test in tests:
        link = f"[{test.name.removeprefix('test_')}](../../{test.file})"
        lines.append(f"- {link}, {test.tier or 'not in the gate'}")
    return lines
