"""What a change can break, tested in minutes: `make affected`.

Changed is what differs from BASE (default: where this branch left its upstream), committed or not.
Unit tests are chosen by the imports that lead from them to a changed module. Tests that train or
need a cluster are chosen by OTHER_TIERS, a sample for each part. Where it cannot be said what a
change reaches, everything is run. Each chosen file is printed with the reason.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.import_graph import ImportGraph

REPOSITORY = Path(__file__).parents[1]
PYTEST = (sys.executable, "-m", "pytest")
REACHES_EVERYTHING = (
    "pyproject.toml",
    "requirements/",
    "Makefile",
    ".ci/",
    "tests/conftest.py",
    "tools/affected.py",
    "tools/import_graph.py",
)
READ_BY_NOBODY = (
    "LICENSE",
    "CODE_OF_CONDUCT.md",
    ".gitignore",
    ".github/ISSUE_TEMPLATE/",
    ".github/PULL_REQUEST_TEMPLATE.md",
    "bench/results/",
)
NO_TESTS = 5
"""Exit code of pytest where all tests of the chosen files are those of the night."""
OF_ANY_CHANGE = "tests/unit/test_structure.py"
LOSSES = "tests/local/test_losing_workers.py"
LOST_MACHINE = "tests/cluster/test_losing_nodes.py::test_without_power"
OTHER_TIERS: dict[str, tuple[str, ...]] = {
    "src/headway/train/": (
        "tests/local/test_same_at_any_number_of_workers.py",
        "tests/local/test_damaged_checkpoints.py",
        "tests/local/test_export.py",
        "tests/local/test_kill_resume.py::test_in_a_folder",
        LOSSES,
    ),
    "src/headway/member/": (
        "tests/simulations",
        "tests/local/test_coordinator.py",
        "tests/local/test_group_over_session.py",
        LOSSES,
    ),
    "src/headway/launch/": (
        "tests/local/test_stopping_and_failing.py",
        "tests/local/test_script_run.py",
        LOSSES,
        LOST_MACHINE,
    ),
    "src/headway/kube/": ("tests/cluster/test_rendered.py", LOST_MACHINE),
    "src/headway/state/": (
        "tests/local/test_damaged_checkpoints.py",
        "tests/local/test_kill_resume.py::test_in_a_folder",
        "tests/local/test_made_before.py",
    ),
    "src/headway/data/": (
        "tests/local/test_prepare_killed.py",
        "tests/local/test_streaming.py",
        "tests/local/test_sources_in_stores.py",
    ),
    "src/headway/script/": ("tests/local/test_script_worker.py", "tests/local/test_script_run.py"),
    "src/headway/cli/": ("tests/local/test_stopping_and_failing.py",),
    "src/headway/preflight/": ("tests/local/test_mistakes.py",),
    "src/headway/http_server.py": ("tests/local/test_coordinator.py",),
    "src/headway/spec/schema/": ("tests/unit/spec/test_schema.py",),
    "examples/own-code/": ("tests/local/test_own_code.py",),
}
"""Beginnings of paths, and the tests outside of tests/unit that a change below them selects. The
longest beginning counts. What is not here is pure: its unit tests say all there is to say."""


@dataclass
class Selection:
    reasons: dict[str, str] = field(default_factory=dict)
    """Chosen test files, or single tests, and why each was chosen."""
    everything: str = ""
    """Why everything has to be run; empty if that is not so."""
    changed: set[str] = field(default_factory=set)
    """Test files that have changed themselves: also what the night runs of them."""

    def add(self, test: str, reason: str) -> None:
        self.reasons.setdefault(test, reason)

    def of_tier(self, tier: str) -> list[str]:
        return sorted(test for test in self.reasons if test.startswith(f"tests/{tier}"))


def select(changed: Iterable[str], graph: ImportGraph) -> Selection:
    """Return the tests for the changed paths, which are relative to the repository."""
    selection = Selection()
    for path in changed:
        _select_for(path, graph, selection)
    if not selection.everything:
        selection.add(OF_ANY_CHANGE, "reads every source file")
    return selection


def _select_for(path: str, graph: ImportGraph, selection: Selection) -> None:
    if path.startswith(REACHES_EVERYTHING) or path.endswith("conftest.py"):
        selection.everything = f"{path} has changed"
        return
    if path.startswith(READ_BY_NOBODY):
        return
    starts = [start for start in OTHER_TIERS if path.startswith(start)]
    for test in OTHER_TIERS[max(starts, key=len)] if starts else ():
        selection.add(test, f"tries what is in {max(starts, key=len)}")
    file = graph.repository / path
    if not file.exists():
        selection.everything = f"{path} has been removed or renamed"
    elif file.name == "__init__.py" and file.read_text().strip():
        selection.everything = f"{path} is loaded with every module of its package"
    elif file.name.startswith("test_") and file.suffix == ".py":
        selection.add(path, "has changed")
        selection.changed.add(path)
    elif file.suffix == ".py" and graph.module_of(file) in graph.files:
        _select_dependents(graph.module_of(file), graph, selection)
    else:
        tests_before = len(selection.reasons)
        for reader in sorted(graph.readers(file)):
            _select_dependents(reader, graph, selection, f"reads {path}", only_unit=True)
        if len(selection.reasons) == tests_before:
            selection.everything = f"no test says that it reads {path}"


def _select_dependents(
    module: str,
    graph: ImportGraph,
    selection: Selection,
    what: str = "has changed",
    only_unit: bool = False,
) -> None:
    # OTHER_TIERS chooses among the others, of which nearly all import nearly everything.
    only_unit = only_unit or module.startswith("headway")
    for test in sorted(graph.test_modules_that_depend_on(module)):
        path = str(graph.files[test].path.relative_to(graph.repository))
        if path.startswith("tests/unit/") or not only_unit:
            chain = " > ".join(graph.chain(test, module)[1:])
            selection.add(path, f"{chain or 'it'} {what}")


def changed_paths(base: str) -> list[str]:
    differ = _git("diff", "--name-only", "--no-renames", base)
    new = _git("ls-files", "--others", "--exclude-standard")
    return sorted({*differ.splitlines(), *new.splitlines()})


def default_base() -> str:
    """Return the commit where this branch left its upstream, or the last commit without one."""
    for upstream in ("@{upstream}", "origin/main"):
        try:
            return _git("merge-base", "HEAD", upstream)
        except subprocess.CalledProcessError:
            continue
    return "HEAD"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.check_output(
        command, cwd=REPOSITORY, text=True, stderr=subprocess.DEVNULL
    ).strip()


def commands(selection: Selection) -> list[tuple[str, ...]]:
    """Return what to run, cheapest first."""
    if selection.everything:
        return [("bash", ".ci/run")]
    found: list[tuple[str, ...]] = []
    for tier, options in (
        ("unit", ("-n", "2", "--dist", "loadfile")),
        ("simulations", ("-n", "2", "--dist", "worksteal")),
        ("local", ()),
        ("cluster", ()),
        ("images", ()),
    ):
        if tier == "cluster" and _lacks_cluster(os.environ):
            continue
        tests = selection.of_tier(tier)
        changed = [test for test in tests if test in selection.changed]
        others = [test for test in tests if test not in selection.changed]
        if others and tier != "images":
            found.append((*PYTEST, *options, "-m", "not long", *others))
        if changed:
            found.append((*PYTEST, *options, *changed))
    return found


def _lacks_cluster(environment: Mapping[str, str]) -> bool:
    return os.geteuid() != 0 and "HEADWAY_TEST_KUBECONFIG" not in environment


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make affected", description=__doc__)
    parser.add_argument("--base", help="compare with this commit")
    parser.add_argument("--only-list", action="store_true", help="run nothing")
    parser.add_argument("paths", nargs="*", help="changed paths; default: those that git names")
    asked = parser.parse_args(arguments)
    base = asked.base or default_base()
    changed = asked.paths or changed_paths(base)
    if not changed:
        print(f"error: nothing differs from {base}")
        print("hint: compare with another commit: make affected BASE=HEAD~1")
        return 2
    selection = select(changed, ImportGraph(REPOSITORY))
    if selection.everything:
        print(f"everything, because {selection.everything}")
    for test, reason in sorted(selection.reasons.items()):
        print(f"{test}\n    {reason}")
    left_out = selection.of_tier("cluster") if _lacks_cluster(os.environ) else []
    has_run = False
    for command in [] if asked.only_list else commands(selection):
        print(f"+ {' '.join(command)}", flush=True)
        exit_code = subprocess.run(command, cwd=REPOSITORY).returncode
        if exit_code not in (0, NO_TESTS):
            return exit_code
        has_run = has_run or exit_code == 0
    if left_out:
        print(f"not run, for want of root or HEADWAY_TEST_KUBECONFIG: {' '.join(left_out)}")
    if not has_run and not asked.only_list:
        print("error: no test was selected: only the night has tests of this; run `make nightly`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
