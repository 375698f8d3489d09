"""What the guide of `headway plan` shows is what the command prints.

To write the guide anew: HEADWAY_WRITE_GUIDE=1 .venv/bin/pytest tests/unit/cli/test_plan_guide.py
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from headway.cli.plan.figure_text import ranged
from headway.plan.figure import Figure
from support.in_process import Headway

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "plan.md"
SHOWN = re.compile(r"^```\n\$ headway (plan [^\n]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LEFT_OUT = "[...]\n"
OF_A_RUN = "plan t"
"""Of a run that was trained: no other block is."""


def blocks() -> list[tuple[str, str]]:
    return [(command, text) for command, text in SHOWN.findall(GUIDE.read_text())]


def printed(headway: Headway, command: str) -> str:
    said = headway(*shlex.split(command))
    return said.out + said.err


def shortened(text: str, like: str) -> str:
    """With what the guide leaves out left out: of each part that it shows, the first line says
    where it begins, and it has as many lines as before."""
    lines, parts, at = text.splitlines(keepends=True), [], 0
    for part in like.split(LEFT_OUT):
        wanted = part.splitlines(keepends=True)
        if wanted:
            names = [line.split(":")[0].split("  ")[:2] for line in lines]
            name = wanted[0].split(":")[0].split("  ")[:2]
            at = next(i for i in range(at, len(lines)) if names[i] == name)
        parts.append("".join(lines[at : at + len(wanted)]))
        at += len(wanted)
    return LEFT_OUT.join(parts)


def test_the_guide_shows_what_the_command_prints(headway: Headway) -> None:
    pages = GUIDE.read_text()
    for command, text in blocks():
        if command != OF_A_RUN:
            now = printed(headway, command)
            now = shortened(now, text) if LEFT_OUT in text else now
            pages = pages.replace(f"$ headway {command}\n{text}", f"$ headway {command}\n{now}")
    if os.environ.get("HEADWAY_WRITE_GUIDE"):
        GUIDE.write_text(pages)
    assert pages == GUIDE.read_text()
    assert len(blocks()) >= 5


def test_the_run_that_the_guide_shows_is_planned_as_it_says(headway: Headway) -> None:
    (shown,) = [text for command, text in blocks() if command == OF_A_RUN]
    (plan,) = json.loads(headway("plan", "tiny", "--json").out)["plans"]
    memory = plan["memory"]["memory_bytes"]
    assert ranged(Figure(**memory), "bytes") in shown


@pytest.mark.parametrize("command", [command for command, _ in blocks() if command != OF_A_RUN])
def test_no_line_is_wider_than_a_screen(command: str) -> None:
    (text,) = [text for one, text in blocks() if one == command]
    assert max(map(len, text.splitlines())) <= 80 or "error: " in text
