"""Mistakes of a first hour that only `run` can find: in half a minute, and its hint helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import headway
from support.mistakes import MISTAKES, Mistake, commands_in, make, repair

pytestmark = pytest.mark.local


OWN_CODE = "a loss that fails"
TWICE = pytest.mark.long("half a minute; test_stopping_and_failing.py has an error in own code")


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(mistake, id=mistake.name, marks=TWICE if mistake.name == OWN_CODE else ())
        for mistake in MISTAKES
        if mistake.found_by == "run"
    ],
)
def test_run_names_it_and_its_hint_helps(mistake: Mistake, tmp_path: Path) -> None:
    make(mistake, tmp_path)
    said = headway("run", folder=tmp_path, expect=None).stderr
    assert mistake.says in said
    assert mistake.hint is None or mistake.hint in said
    assert "Traceback" not in said

    repair(mistake, tmp_path)
    for command in commands_in(said):
        headway(*command, folder=tmp_path)
    headway("run", folder=tmp_path)
