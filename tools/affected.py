"""Run the tests that a change can break, in minutes: `make affected`.

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
NO_TESTS = 5
"""Exit code of pytest if every test of the chosen files is marked `long`."""
REACHES_EVERYTHING = (
    ".ci/",
    "Makefile",
    "pyproject.toml",
    "requirements/",
    "tests/conftest.py",
    "tools/affected.py",
    "tools/import_graph.py",
)
WITHOUT_TESTS = (
    ".github/ISSUE_TEMPLATE/",
    ".github/PULL_REQUEST_TEMPLATE.md",
    ".gitignore",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "LICENSE",
    "bench/results/",
)
ALWAYS_RUN = "tests/unit/test_structure.py"
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
    "examples/gpu-proof/": (
        "tests/unit/test_gpu_proof.py",
        "tests/cluster/test_rendered.py::test_the_api_server_takes_the_job_that_proves_a_gpu",
    ),
    "examples/elastic-gpt2/": ("tests/cluster/test_tutorials.py::test_elastic_gpt2",),
}
"""Tests outside of tests/unit, keyed by path prefix. The longest prefix wins. A part without a row
is pure: its unit tests suffice."""


@dataclass
class Selection:
    reasons: dict[str, str] = field(default_factory=dict)
    """Chosen test files, or single tests, and why each was chosen."""
    everything: str = ""
    """Why everything has to be run; empty if that is not so."""
    changed: set[str] = field(default_factory=set)
    """Test files that have changed themselves. Their tests that are marked `long` are run, too."""

    def of_tier(self, tier: str) -> list[str]:
        return sorted(test for test in self.reasons if test.startswith(f"tests/{tier}"))


def select(changed: Iterable[str], graph: ImportGraph) -> Selection:
    """Return the tests for the changed paths, which are relative to the repository."""
    selection = Selection()
    for path in changed:
        selection.everything = selection.everything or _select_for(path, graph, selection)
    selection.reasons.setdefault(ALWAYS_RUN, "reads every source file")
    return selection


def _select_for(path: str, graph: ImportGraph, selection: Selection) -> str:
    """Add the tests for one path. Return why everything has to be run, or an empty string."""
    if path.startswith(REACHES_EVERYTHING) or path.endswith("conftest.py"):
        return f"{path} has changed"
    if path.startswith(WITHOUT_TESTS):
        return ""
    file = graph.repository / path
    if not file.exists():
        return f"{path} has been removed or renamed"
    if file.name == "__init__.py":
        return f"{path} is loaded with every module of its package"
    if file.name.startswith("test_") and file.suffix == ".py":
        selection.reasons[path] = "has changed"
        selection.changed.add(path)
        return ""
    found = _tests_of_other_tiers(path)
    is_module = file.suffix == ".py" and graph.module_of(file) in graph.files
    if is_module:
        found |= _dependents(graph.module_of(file), graph, "has changed")
    if not is_module or not (found or path.startswith("bench/")):
        # A helper may be started by its path; other files are read.
        for reader in sorted(graph.readers(file)):
            found |= _dependents(reader, graph, f"names {path}", is_read=path.startswith("src/"))
    if not found and not path.startswith("bench/"):
        return f"no test is known to need {path}"
    for test, reason in found.items():
        selection.reasons.setdefault(test, reason)
    return ""


def _tests_of_other_tiers(path: str) -> dict[str, str]:
    starts = [start for start in OTHER_TIERS if path.startswith(start)]
    if not starts:
        return {}
    longest = max(starts, key=len)
    return dict.fromkeys(OTHER_TIERS[longest], f"tries what is in {longest}")


def _dependents(
    module: str, graph: ImportGraph, what: str, is_read: bool = False
) -> dict[str, str]:
    """Return the test files that depend on a module, and by which imports. Of a module in src only
    unit tests: nearly all others import nearly everything, and OTHER_TIERS chooses among them."""
    found = {}
    for test in sorted(graph.test_modules_that_depend_on(module)):
        path = str(graph.files[test].path.relative_to(graph.repository))
        if path.startswith("tests/unit/") or not (is_read or module.startswith("headway")):
            chain = " > ".join(graph.chain(test, module)[1:])
            found[path] = f"{chain or 'it'} {what}"
    return found


def changed_paths(base: str) -> list[str]:
    differ = _git("diff", "--name-only", "--no-renames", base)
    new = _git("ls-files", "--others", "--exclude-standard")
    return sorted({*differ.splitlines(), *new.splitlines()})


def default_base() -> str:
    """Return the commit where this branch left its upstream, or HEAD if it has none."""
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
        ("unit", ("-n", "3", "--dist", "loadfile")),
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
        if others:
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
    options = parser.parse_args(arguments)
    base = options.base or default_base()
    changed = options.paths or changed_paths(base)
    if not changed:
        print(f"error: nothing differs from {base}")
        print("hint: compare with another commit: make affected BASE=HEAD~1")
        return 2
    print(f"{len(changed)} files differ from {base}")
    selection = select(changed, ImportGraph(REPOSITORY))
    for test, reason in sorted(selection.reasons.items()):
        print(f"{test}\n    {reason}")
    if selection.everything:
        print(f"everything is run: {selection.everything}", flush=True)
    return 0 if options.only_list else run(selection)


def run(selection: Selection) -> int:
    has_run = False
    for command in commands(selection):
        print(f"+ {' '.join(command)}", flush=True)
        exit_code = subprocess.run(command, cwd=REPOSITORY).returncode
        if exit_code not in (0, NO_TESTS):
            return exit_code
        has_run = has_run or exit_code == 0
    left_out = selection.of_tier("cluster") if _lacks_cluster(os.environ) else []
    if left_out and not selection.everything:
        print(f"not run, for want of root or HEADWAY_TEST_KUBECONFIG: {' '.join(left_out)}")
    if not has_run:
        print("error: no test was run")
        print("hint: the tests of this change may be those of the night: make nightly")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
