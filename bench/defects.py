"""`make defects`: sixteen defects planted by SEED, and which tests catch each.

A defect is one change to one statement, drawn before any test is looked at. The type checker gets
the first try, then `make affected`, the gate, and the tests that only the night has. Each answer is
written down when it is known, in bench/results/defects-SEED.json, and the same command resumes
there. A statement that no test of `make affected` reaches is replaced by the next draw, and stays
in the list. Takes minutes for a defect that is caught, hours for one that is not, so
STAGES=types,affected takes the quick stages first. Ends with one line of JSON."""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
import os
import random
import re
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
PYTEST = ".venv/bin/python -m pytest"
STAGES = {
    "types": (".venv/bin/mypy",),
    "affected": ("make -o check affected",),
    "gate": tuple(f".ci/run {tier}" for tier in ("unit", "simulations", "local", "cluster")),
    "night": tuple(f".ci/run {tier}" for tier in ("unit-long", "local-long", "cluster-long")),
}
"""Commands of each stage. `make check` would fail for the format of a planted line, so only its
type checker is run."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
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
    is_reached: bool = False
    """Whether a test has come to the statement."""

    @property
    def is_decided(self) -> bool:
        return any(self.caught_by.values()) or len(self.caught_by) == len(STAGES)

    @property
    def is_untouched(self) -> bool:
        """Whether no test that its file selects comes to the statement."""
        is_caught = any(self.caught_by.values())
        return "affected" in self.caught_by and not (is_caught or self.is_reached)


def defects(part: str, draws: random.Random) -> Iterator[Defect]:
    """Draw from the statements inside of functions, each as likely as any other."""
    places = []
    for path in sorted((CLONE / "src" / "headway" / part).rglob("*.py")):
        text = path.read_text()
        lines = text.splitlines()
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, FUNCTIONS)]
        inside = {
            (node.lineno, node.col_offset): node
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.stmt) and node is not function
        }
        # A probe before an `elif` would make another chain of it.
        places += [
            (path, inside[place])
            for place in sorted(inside)
            if not lines[place[0] - 1].lstrip().startswith("elif")
        ]
    while True:
        path, statement = draws.choice(places)
        changes = list(_changes(statement))
        if changes:
            yield Defect(
                path=str(path.relative_to(CLONE)),
                line=statement.lineno,
                before=ast.unparse(statement),
                after=ast.unparse(draws.choice(changes)),
            )


def _changes(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statement with one operator, condition, constant or effect changed."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Expr | ast.AugAssign) and not is_docstring:
        yield ast.Pass()
    if isinstance(statement, ast.Return) and ast.unparse(statement) not in (
        "return",
        "return None",
    ):
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
    probe = (
        f"{indent}with __import__('contextlib').suppress(OSError):\n"  # a pod has no such folder
        f"{indent}    __import__('pathlib').Path({str(reached)!r}).touch()\n"
    )
    changed = [f"{indent}{line}\n" for line in defect.after.splitlines()]
    lines[statement.lineno - 1 : statement.end_lineno] = [probe, *changed]
    path.write_text("".join(lines))


def first_failure(commands: tuple[str, ...]) -> str:
    """Return the first test that failed, or the command that did; empty if none did."""
    environment = {**os.environ, "PYTEST_ADDOPTS": "-x"}
    environment.pop("PYTHONPATH", None)  # of this bench: tests have their own
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
            found = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - |$)", done.stdout, re.MULTILINE)
            return found[1] if found else f"{command}: {done.stdout.strip()[-300:]}"
    return ""


def run_stages(defect: Defect, record: Record) -> None:
    reached = CLONE.parent / "reached"
    if not defect.caught_by:
        reached.unlink(missing_ok=True)
    for stage in os.environ.get("STAGES", ",".join(STAGES)).split(","):
        commands = STAGES[stage]
        if defect.is_decided or stage in defect.caught_by or defect.is_untouched:
            continue
        began = time.monotonic()
        clean_up()
        plant(defect, reached)
        found = first_failure(commands)
        clean_up()
        if found.startswith("tests/") and first_failure((f"{PYTEST} {found}",)):
            print(f"{found} fails without the defect, too", file=sys.stderr)
            sys.exit(1)
        defect.caught_by[stage] = found
        defect.seconds[stage] = round(time.monotonic() - began)
        defect.is_reached = defect.is_reached or reached.exists()
        record.write()
        print(f"{defect.path}:{defect.line} {stage}: {found or 'not caught'}", file=sys.stderr)


def clean_up() -> None:
    """A session that was cut off has left its defect."""
    git("reset", "-q", "--hard")


def git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=CLONE, text=True).strip()


class Record:
    """The defects in the order in which they were drawn, and what is known of them."""

    def __init__(self, seed: int) -> None:
        self.path = REPOSITORY / "bench" / "results" / f"defects-{seed}.json"
        self.groups: list[list[Defect]] = []
        """For each of the sixteen: its draws, of which the last one counts."""
        self.commit = ""
        """Of the tree that they were drawn from."""
        if self.path.exists():
            record = json.loads(self.path.read_text())
            self.commit = record["commit"]
            self.groups = [[Defect(**row) for row in group] for group in record["defects"]]

    def write(self) -> None:
        rows = [[dataclasses.asdict(defect) for defect in group] for group in self.groups]
        content = {"commit": self.commit, "defects": rows}
        self.path.write_text(json.dumps(content, indent=1) + "\n")


def make_clone(record: Record) -> None:
    """Check out the tree that the defects were drawn from, or the newest commit."""
    if not CLONE.exists():
        subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(CLONE)], check=True)
        (CLONE.parent / "shared").symlink_to(REPOSITORY.parent / "shared")
    clean_up()
    git("fetch", "-q", "origin")
    git("checkout", "-q", "--detach", record.commit or "origin/main")
    record.commit = git("rev-parse", "HEAD")


def main() -> int:
    seed = int(os.environ.get("SEED", "35"))
    record = Record(seed)
    make_clone(record)
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
    subprocess.run(["make", "install"], cwd=CLONE, check=True, stdout=subprocess.DEVNULL)
    for group, more in zip(record.groups, draws, strict=True):
        for _ in group:
            next(more)
        run_stages(group[-1], record)
        while group[-1].is_untouched:
            group.append(next(more))
            record.write()
            run_stages(group[-1], record)
    last = [group[-1] for group in record.groups]
    stages = [next((s for s, test in one.caught_by.items() if test), "nobody") for one in last]
    counts = {stage: stages.count(stage) for stage in (*STAGES, "nobody")}
    line = {
        "name": "defects",
        "figure": counts["night"],
        "target": 0,
        "pass": counts["night"] == 0,
        "spread": {"seed": seed, "commit": record.commit, "caught_by": counts},
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
