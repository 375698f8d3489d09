"""The command line in this process, in a folder of its own; and which tests are slow."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from headway.cli.main import main
from support.in_process import Headway, Said


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's current folder; their own targets are not ours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def headway(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Headway:
    def command(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["headway", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(int(ended.value.code or 0), *capsys.readouterr())

    return command


SLOW = Path(__file__).with_name("slow.txt")
"""Test functions that `make test` leaves out. `make slow-tests` measures them anew."""
SLOW_SECONDS = 0.2
_seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
"""Of each parametrization of each test function."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = set(SLOW.read_text().split())
    for item in items:
        if _function_of(item.nodeid) in slow:
            item.add_marker(pytest.mark.slow)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A setup is often that of a fixture which the whole file, or the whole session, shares.
    if report.when != "setup":
        _seconds[_function_of(report.nodeid)][report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under xdist, the process that collects all reports writes the list."""
    if os.environ.get("REMEMBER_SLOW") and not hasattr(session.config, "workerinput"):
        slow = [name for name, of in _seconds.items() if median(of.values()) > SLOW_SECONDS]
        SLOW.write_text("".join(f"{name}\n" for name in sorted(slow)))


def _function_of(nodeid: str) -> str:
    return nodeid.partition("[")[0]
