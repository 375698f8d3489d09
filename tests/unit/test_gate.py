"""What fails a tier of `.ci/run` beside its tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

GATE = Path(__file__).parents[2] / ".ci" / "run"


def _bash(command: str) -> subprocess.CompletedProcess[str]:
    script = f"source {GATE}\n{command}\necho done"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True)


def _tier(command: str) -> subprocess.CompletedProcess[str]:
    return _bash(f"tier mine 1 {command}")


@pytest.mark.parametrize(
    "summary",
    [
        "5 passed in 1.05s",
        "5 passed, 2 skipped, 1 deselected in 100.05s (0:01:40)",
        "3 passed, 3 skipped in 1.05s",
    ],
)
def test_a_tier_whose_tests_ran(summary: str) -> None:
    done = _tier(f"echo '==== {summary} ===='")
    assert done.returncode == 0
    assert re.search(r"=== mine took \d+ s(, \d+ s of it lost to the host)?\ndone\n$", done.stdout)
    assert summary in done.stdout


def test_a_tier_without_tests() -> None:
    assert _tier("true").returncode == 0


def test_a_command_that_fails() -> None:
    done = _tier("false")
    assert (done.returncode, "done" in done.stdout) == (1, False)


@pytest.mark.parametrize("summary", ["39 skipped in 1.05s", "3 passed, 39 skipped in 1.05s"])
def test_a_tier_that_was_skipped(summary: str) -> None:
    done = _tier(f"echo '==== {summary} ===='")
    assert done.returncode == 1
    assert "=== mine failed: 39 tests were skipped" in done.stdout
    assert "done" not in done.stdout


@pytest.mark.parametrize(
    ("seconds", "lost", "code", "said"),
    [
        (120, 0, 0, "=== mine took 120 s\ndone\n"),
        (
            180,
            0,
            0,
            "=== mine took 180 s\n=== warning: mine is 50 % over its budget of 2 min\ndone\n",
        ),
        (241, 0, 1, "=== mine took 241 s\n=== mine failed: 100 % over its budget of 2 min\n"),
        (300, 0, 1, "=== mine took 300 s\n=== mine failed: 150 % over its budget of 2 min\n"),
        (190, 70, 0, "=== mine took 190 s, 70 s of it lost to the host\ndone\n"),
        (
            250,
            9,
            1,
            "=== mine took 250 s, 9 s of it lost to the host\n"
            "=== mine failed: 100 % over its budget of 2 min\n",
        ),
    ],
)
def test_a_tier_over_its_budget(seconds: int, lost: int, code: int, said: str) -> None:
    done = _bash(f"require_in_budget mine 2 {seconds} {lost}")
    assert (done.returncode, done.stdout) == (code, said)


def test_what_the_host_took_is_the_average_of_the_processors(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    stat.write_text(
        f"cpu  9 9 9 9 9 9 9 {90 * ticks} 0 0\n"
        f"cpu0 9 9 9 9 9 9 9 {60 * ticks} 0 0\n"
        f"cpu1 9 9 9 9 9 9 9 {30 * ticks} 0 0\n"
        "intr 7 7 7 7 7 7 7 7 7 7\n"
    )
    assert _bash(f"stolen_seconds {stat}").stdout == "45done\n"
    assert _bash("stolen_seconds").returncode == 0


def test_contributors_are_told_the_budgets() -> None:
    table = (GATE.parents[1] / "CONTRIBUTING.md").read_text()
    told = dict(re.findall(r"`make (test-\w+)` \| (\d+)", table))
    tiers = re.findall(r"^tier .* (\d+) make (test-\w+)", GATE.read_text(), re.MULTILINE)
    assert told == {target: budget for budget, target in tiers}
