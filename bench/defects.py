"""`make defects`: sixteen defects planted by SEED, and which tests catch each.

A defect is one change to one statement, drawn before any test is looked at. `make affected` gets
the first try, then the gate, then the tests that only the night has. Each answer is written down
when it is known, in bench/results/defects-SEED.json, and the same command resumes there. A drawn
statement that no test has reached is replaced by the next draw, and stays in the list. Takes some
minutes for a defect that is caught, two hours for one that is not. Ends with one line of JSON."""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
CLONE = Path(os.environ.get("CLONE", "/tmp/headway-defects")) / "main"
PARTS = ("data", "train", "state", "launch", "kube", "cli", "plan")
OTHER_PARTS = ("member/worker", "member/protocol", "spec", "script", "preflight", "report")
STAGES = {
    "affected": ("make affected",),
    "gate": ("make test-unit", "make test-simulations", "make test-local", "make test-cluster"),
    "night": ("make test-unit-long", "make test-local-long", "make test-cluster-long"),
}
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass
class Defect:
    path: str
    line: int
    before: str
    after: str
    caught_by: dict[str, str] = field(default_factory=dict)
    """For each stage that was run: the first test that failed, or "" if none did."""
    seconds: dict[str, int] = field(default_factory=dict)
    is_reached: bool = True


def defects(part: str, draws: random.Random) -> Iterator[Defect]:
    """Draw from the statements inside of functions, each as likely as any other."""
    folder = REPOSITORY / "src" / "headway" / part
    places = [
        (path, statement)
        for path in sorted(folder.rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in ast.walk(function)
        if isinstance(statement, ast.stmt) and statement is not function
    ]
    while True:
        path, statement = draws.choice(places)
        changes = list(_changes(statement))
        if changes:
            yield Defect(
                path=str(path.relative_to(REPOSITORY)),
                line=statement.lineno,
                before=ast.unparse(statement),
                after=ast.unparse(draws.choice(changes)),
            )


def _changes(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statement with one operator, condition, constant or effect changed."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Expr | ast.AugAssign) and not is_docstring:
        yield ast.Pass()
    if isinstance(statement, ast.Return) and statement.value is not None:
        yield ast.Return(ast.Constant(None))
    for number in range(len(list(_own_nodes(statement)))):
        changed = copy.deepcopy(statement)
        twin = list(_own_nodes(changed))[number]
        if isinstance(twin, ast.Compare) and type(twin.ops[0]) in COMPARED:
            twin.ops[0] = COMPARED[type(twin.ops[0])]()
        elif isinstance(twin, ast.BinOp) and type(twin.op) in COMPUTED:
            twin.op = COMPUTED[type(twin.op)]()
        elif isinstance(twin, ast.BoolOp):
            twin.op = ast.Or() if isinstance(twin.op, ast.And) else ast.And()
        elif isinstance(twin, ast.If | ast.While | ast.IfExp):
            twin.test = ast.UnaryOp(ast.Not(), twin.test)
        elif isinstance(twin, ast.Constant) and isinstance(twin.value, bool):
            twin.value = not twin.value
        elif isinstance(twin, ast.Constant) and isinstance(twin.value, int | float):
            twin.value += 1
        else:
            continue
        yield ast.fix_missing_locations(changed)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statement and its expressions, without the statements inside of it. Bounds of
    slices are left out: they are lengths of random names more often than anything else."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.Slice):
            yield from _own_nodes(child)


def plant(defect: Defect, reached: Path) -> None:
    """Put the defect into the clone, after a probe that says that the statement was reached."""
    path = CLONE / defect.path
    lines = path.read_text().splitlines(keepends=True)
    (statement,) = (
        node
        for node in ast.walk(ast.parse("".join(lines)))
        if isinstance(node, ast.stmt)
        and node.lineno == defect.line
        and ast.unparse(node) == defect.before
    )
    indent = " " * statement.col_offset
    probe = f"{indent}__import__('pathlib').Path({str(reached)!r}).touch()\n"
    changed = [f"{indent}{line}\n" for line in defect.after.splitlines()]
    lines[statement.lineno - 1 : statement.end_lineno] = [probe, *changed]
    path.write_text("".join(lines))


def first_failure(commands: tuple[str, ...]) -> str:
    """Return the first test that failed, or the command that did; empty if none did."""
    environment = {**os.environ, "PYTEST_ADDOPTS": "-x"}
    for command in commands:
        done = subprocess.run(
            command.split(),
            cwd=CLONE,
            env=environment,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            lines = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
            return lines[0].split(" - ")[0] if lines else f"{command}: {done.stdout[-300:]}"
    return ""


def run_stages(defect: Defect, record: Record) -> None:
    reached = CLONE.parent / "reached"
    for stage, commands in STAGES.items():
        if any(defect.caught_by.values()) or not defect.is_reached:
            return
        if stage in defect.caught_by:
            continue
        reached.unlink(missing_ok=True)
        began = time.monotonic()
        plant(defect, reached)
        try:
            found = first_failure(commands)
        finally:
            git("checkout", "-q", "--", ".")
        defect.caught_by[stage] = found
        defect.seconds[stage] = round(time.monotonic() - began)
        defect.is_reached = bool(found) or reached.exists()
        record.write()
        print(f"{defect.path}:{defect.line} {stage}: {found or 'not caught'}", file=sys.stderr)


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=CLONE, check=True)


class Record:
    """The list of defects, in the order in which they were drawn, and what is known of them."""

    def __init__(self, seed: int) -> None:
        self.path = REPOSITORY / "bench" / "results" / f"defects-{seed}.json"
        self.groups: list[list[Defect]] = []
        """For each defect that is asked for: the draws, of which the last one counts."""
        if self.path.exists():
            rows = json.loads(self.path.read_text())
            self.groups = [[Defect(**row) for row in group] for group in rows]

    def write(self) -> None:
        rows = [[dataclasses.asdict(defect) for defect in group] for group in self.groups]
        self.path.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> int:
    seed = int(os.environ.get("SEED", "35"))
    record = Record(seed)
    random_parts = random.Random(seed).sample(OTHER_PARTS, 2)
    draws = [
        defects(part, random.Random(f"{seed} {number}"))
        for number, part in enumerate([*PARTS, *PARTS, *random_parts])
    ]
    if not record.groups:
        record.groups = [[next(each)] for each in draws]
        record.write()
    if os.environ.get("ONLY_DRAW"):
        return 0
    if not CLONE.exists():
        subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(CLONE)], check=True)
        (CLONE.parent / "shared").symlink_to(REPOSITORY.parent / "shared")
    subprocess.run(["make", "install"], cwd=CLONE, check=True, stdout=subprocess.DEVNULL)
    for group, more in zip(record.groups, draws, strict=True):
        for _ in group:
            next(more)
        while True:
            run_stages(group[-1], record)
            if group[-1].is_reached:
                break
            group.append(next(more))
            record.write()
    last = [group[-1] for group in record.groups]
    stages = [next((s for s, test in one.caught_by.items() if test), "nobody") for one in last]
    counts = {stage: stages.count(stage) for stage in (*STAGES, "nobody")}
    figure = counts["night"]
    line = {
        "name": "defects",
        "figure": figure,
        "target": 0,
        "pass": figure == 0,
        "spread": {"seed": seed, "caught_by": counts},
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
