"""What fails a tier of `.ci/run` beside its tests, what a night keeps, and who reads the list."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import gate
from tools.gate import GATE, MAX_MINUTES, NIGHT, Outcome, Tier, outcome_of, run_night, run_tier

REPOSITORY = Path(__file__).parents[2]
MINE = Tier("mine", 2, "make mine")


def summary(text: str) -> list[str]:
    return [f"==== {text} ===="]


def printing(text: str, exit_code: int = 0) -> Tier:
    """A tier whose command prints this and ends so."""
    script = REPOSITORY / "tests" / "support" / "printing.py"
    return Tier("mine", 1, f"{sys.executable} {script} {exit_code} {text}")


@pytest.mark.parametrize(
    ("text", "passed", "skipped"),
    [
        ("5 passed in 1.05s", 5, 0),
        ("5 passed, 2 skipped, 1 deselected in 100.05s (0:01:40)", 5, 2),
        ("3 passed, 3 skipped in 1.05s", 3, 3),
    ],
)
def test_a_tier_whose_tests_ran(text: str, passed: int, skipped: int) -> None:
    outcome = outcome_of(MINE, 0, summary(text), seconds=60, stolen_seconds=0)
    assert (outcome.passed, outcome.skipped, outcome.problem) == (passed, skipped, "")


def test_a_tier_without_tests() -> None:
    assert outcome_of(MINE, 0, [], 60, 0).problem == "no test passed"
    check = Tier("check", 2, "make check", has_tests=False)
    assert outcome_of(check, 0, [], 60, 0).problem == ""


def test_a_command_that_fails_and_the_tests_that_failed() -> None:
    lines = [
        "FAILED tests/unit/test_a.py::test_b[1-a b] - AssertionError: no",
        "ERROR tests/unit/test_c.py::test_d",
        *summary("1 failed, 7 passed, 1 error in 1.05s"),
    ]
    outcome = outcome_of(MINE, 2, lines, 60, 0)
    assert (outcome.failed, outcome.passed) == (2, 7)
    assert outcome.problem == "`make mine` ended with exit code 2"
    assert outcome.failures == (
        "tests/unit/test_a.py::test_b[1-a b]",
        "tests/unit/test_c.py::test_d",
    )


@pytest.mark.parametrize("text", ["39 skipped in 1.05s", "3 passed, 39 skipped in 1.05s"])
def test_a_tier_that_was_skipped(text: str) -> None:
    assert outcome_of(MINE, 0, summary(text), 60, 0).problem


@pytest.mark.parametrize(
    ("seconds", "stolen", "is_failed"),
    [(120, 0, False), (180, 0, False), (241, 0, True), (250, 10, False), (250, 9, True)],
)
def test_a_tier_over_its_budget(seconds: int, stolen: int, is_failed: bool) -> None:
    outcome = outcome_of(MINE, 0, summary("5 passed in 1.05s"), seconds, stolen)
    assert bool(outcome.problem) == is_failed


def test_what_a_tier_prints_is_shown_and_its_end_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_tier(printing("=== 5 passed in 1.05s ===")).problem == ""
    told = capsys.readouterr().out
    assert re.search(r"=== 5 passed in 1.05s ===\n=== mine took \d+ s", told)
    assert run_tier(printing("=== 5 passed in 1.05s ===", exit_code=3)).problem
    assert re.search(r"=== mine failed: `.*` ended with exit code 3", capsys.readouterr().out)


def test_what_the_host_took_is_the_average_of_the_processors(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    stat.write_text(
        f"cpu  9 9 9 9 9 9 9 {90 * ticks} 0 0\n"
        f"cpu0 9 9 9 9 9 9 9 {60 * ticks} 0 0\n"
        f"cpu1 9 9 9 9 9 9 9 {30 * ticks} 0 0\n"
        "intr 7 7 7 7 7 7 7 7 7 7\n"
    )
    assert gate.stolen_seconds(stat) == 45
    assert gate.stolen_seconds() >= 0


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own, with one commit, where results are kept."""
    for words in ("init -q", "commit -q --allow-empty -m first"):
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *author, *words.split()], cwd=tmp_path, check=True)
    (tmp_path / ".git" / "info" / "exclude").write_text(".nightly/\n")
    monkeypatch.setattr(gate, "REPOSITORY", tmp_path)
    monkeypatch.setattr(gate, "RESULTS", tmp_path / ".nightly")
    return tmp_path


def test_a_night_goes_on_after_a_failure_and_is_resumed(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = printing("=== 5 passed in 1.05s ==="), printing("=== 1 failed in 1.05s ===", 1)
    tiers = [Tier("bad", 1, bad.command), Tier("good", 1, good.command)]
    assert run_night(tiers) == 1
    (page,) = (night / ".nightly").glob("*.md")
    assert "| bad | `" in page.read_text()
    assert "| good | passed | 5 | 0 | 0 |" in page.read_text()
    capsys.readouterr()

    assert run_night([Tier("bad", 1, good.command), tiers[1]]) == 0
    told = capsys.readouterr().out
    assert "=== bad took" in told
    assert "=== good has passed on" in told
    assert "| bad | passed | 5 | 0 | 0 |" in page.read_text()


def test_a_night_of_a_changed_tree_is_refused(night: Path) -> None:
    (night / "changed").touch()
    assert run_night([]) == 2
    assert not (night / ".nightly").exists()


def test_no_tier_of_the_night_is_too_long() -> None:
    assert max(tier.minutes for tier in NIGHT) <= MAX_MINUTES
    assert sum(tier.minutes for tier in GATE) <= 40


def test_failures_are_on_the_page() -> None:
    outcome = Outcome("mine", 61, 0, 4, 1, 0, "`make mine` ended with exit code 2", ("a::b",))
    page = gate.night_page("0123", [MINE, Tier("other", 1, "make other")], [outcome])
    assert "| mine | `make mine` ended with exit code 2 | 4 | 1 | 0 | 1.0 |" in page
    assert "| other | not run |" in page
    assert "## Failed in mine\n\n- `a::b`" in page


def test_each_tier_is_a_target() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for tier in (*GATE, *NIGHT):
        make, target = tier.command.split()
        assert make == "make"
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_list_is_what_the_workflow_reads() -> None:
    command = ["bash", ".ci/run", "--list", "--json"]
    rows = json.loads(subprocess.check_output(command, cwd=REPOSITORY))
    assert [row["name"] for row in rows] == [tier.name for tier in GATE if tier.name != "install"]
    workflow = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    used = set(re.findall(r"matrix\.tier\.(\w+)", workflow))
    assert used == set(rows[0])


def test_the_slow_tests_are_there() -> None:
    """`make test` would run a slow test that has been renamed."""
    for line in (REPOSITORY / "tests" / "unit" / "slow.txt").read_text().split():
        path, _, function = line.partition("::")
        assert f"def {function}(" in (REPOSITORY / path).read_text(), line


def test_contributors_are_told_the_budgets() -> None:
    table = (REPOSITORY / "CONTRIBUTING.md").read_text()
    told = dict(re.findall(r"^\| `?([\w-]+)`? \| `make [\w-]+` \| (\d+)", table, re.MULTILINE))
    assert told == {tier.name: str(tier.minutes) for tier in (*GATE, *NIGHT)}
