"""Mistakes of a first hour: `check` names each by file and line, and following its hint helps.

It does so within a second of processor time and without torch. What only `run` can find is in
tests/local/test_mistakes.py.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from support.in_process import Headway, Said
from support.mistakes import MISTAKES, Mistake, commands_in, make, repair, start

MOST_SECONDS = 1.0
BY_CHECK = [mistake for mistake in MISTAKES if mistake.found_by == "check"]


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, module, None)


def line_of(text: str, folder: Path) -> int:
    lines = (folder / "run.yaml").read_text().splitlines()
    (number,) = (at for at, line in enumerate(lines, start=1) if text in line)
    return number


def test_there_are_forty() -> None:
    assert len(MISTAKES) >= 40
    assert len(BY_CHECK) >= 30


def test_the_run_without_a_mistake_is_accepted(folder: Path, headway: Headway) -> None:
    start(folder)
    assert headway("check").exit_code == 0


@pytest.mark.parametrize("mistake", BY_CHECK, ids=lambda mistake: mistake.name)
def test_check_names_it_and_its_hint_helps(
    mistake: Mistake, folder: Path, headway: Headway
) -> None:
    make(mistake, folder)
    started = time.process_time()
    said = headway("check", *mistake.options)
    seconds = time.process_time() - started
    if seconds > MOST_SECONDS:  # the machine may have been slow just then
        started = time.process_time()
        headway("check", *mistake.options)
        seconds = time.process_time() - started
    assert said.exit_code in (2, 3), said
    assert mistake.says in said.err
    if mistake.where is not None:
        assert f"run.yaml:{line_of(mistake.where, folder)}:" in said.err
    assert mistake.hint is None or mistake.hint in hints(said), said.err
    assert "Traceback" not in said.err
    assert seconds < MOST_SECONDS

    repair(mistake, folder)
    for command in commands_in(hints(said)):
        assert headway(*command).exit_code == 0, command
    again = headway("check", *mistake.instead)
    assert again.exit_code == 0, again.err


def hints(said: Said) -> str:
    return "\n".join(line for line in said.err.splitlines() if line.startswith("hint: "))
