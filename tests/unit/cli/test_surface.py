"""The command line is a promise: its words, its speed, and what it loads."""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

from headway.cli.app import app
from headway.cli.command_table import COMMANDS, INTERNAL
from support.in_process import Headway

SURFACE = {
    "headway": ["--version", "--install-completion", "--show-completion"],
    "init": ["PRESET", "FOLDER", "--list"],
    "check": ["RUN_FILE", "--on", "--set", "--code", "--launcher", "--json"],
    "plan": [
        "RUN",
        "--on",
        "--nodes",
        "--device",
        "--set",
        "--compare",
        "--explain",
        "--json",
    ],
    "run": [
        "RUN_FILE",
        "--nodes",
        "--on",
        "--dry-run",
        "--output",
        "-o",
        "--set",
        "--extend",
        "--anyway",
        "--take-over",
    ],
    "stop": ["RUN", "--on"],
    "scale": ["--nodes", "RUN", "--on"],
    "resume": ["RUN", "--nodes", "--on", "--take-over", "--trust-code"],
    "fork": ["RUN[@STEP]", "NEW", "--set"],
    "delete": ["RUN", "--yes", "--on", "--uploaded"],
    "status": ["RUN", "--on", "--json"],
    "logs": ["RUN", "--node", "--rank", "--all", "--follow", "-f", "--on"],
    "events": ["RUN", "--on", "--json"],
    "list": ["--on", "--json"],
    "generate": [
        "RUN[@STEP]",
        "--prompt",
        "--max-tokens",
        "--temperature",
        "--top-k",
        "--seed",
        "--on",
        "--trust-code",
    ],
    "export": ["RUN[@STEP]", "--into", "--on", "--trust-code"],
    "watch": ["RUN", "--on"],
    "report": ["RUN", "--into", "--on"],
    "compare": ["RUN", "--on", "--json"],
    "tensorboard": ["RUN", "--port", "--on"],
    "prove": ["--into", "--devices"],
    "target": [],
    "target add": [
        "NAME",
        "--context",
        "--namespace",
        "-n",
        "--image",
        "--storage",
        "--machine",
        "--queue",
        "--set",
        "--dry-run",
    ],
    "image": [],
    "image build": ["--push", "--on", "--base", "--efa", "--platform", "--builder"],
    "node": [],
    "part": [],
    "keep": [],
    "serve": [],
    "wheels": ["FOLDER"],
    "facts": [],
    "target check": ["TARGET", "--wait", "--json"],
    "target rbac": ["TARGET", "--output", "-o"],
    "target cleanup": ["TARGET", "--yes"],
    "target storage": ["TARGET", "--json"],
    "target prune": ["TARGET", "--yes"],
    "coordinator": ["--settings"],
    "ledger": [],
    "ledger verify": ["RUN", "--on", "--json"],
    "data": [],
    "data prepare": [
        "SOURCES",
        "--into",
        "--tokenizer",
        "--train-vocab",
        "--column",
        "--template",
        "--messages",
        "--chat-template",
        "--transform",
        "--code",
        "--ids",
        "--mask",
        "--unmask",
        "--windows",
        "--deduplicate",
        "--hold-out",
        "--stream",
        "--stream-window",
        "--anonymous",
        "--strict",
        "--allow-unreadable",
        "--processes",
        "--on",
        "--nodes",
    ],
    "data tokenizer": [
        "SOURCES",
        "--vocab",
        "--into",
        "--masked",
        "--column",
        "--template",
        "--transform",
        "--code",
        "--anonymous",
    ],
    "data show": ["DIR", "--sequence-length", "--json"],
    "data sample": [
        "DIR",
        "--n",
        "-n",
        "--sequence-length",
        "--documents",
        "--seed",
        "--json",
    ],
    "data verify": ["DIR", "--json"],
}
"""People's scripts hold on to these: a change here is one for them, and goes into CHANGELOG."""

HELP_SECONDS = 0.2
HEAVY = ("torch", "transformers", "tokenizers", "numpy", "pydantic", "fsspec", "rich")


def words_of(command: Any) -> list[str]:
    words: list[str] = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            words.append(parameter.metavar or parameter.name.upper())
        else:
            words += parameter.opts
    return words


def test_commands_and_options_are_the_known_ones() -> None:
    group: Any = typer.main.get_command(app)
    found = {"headway": words_of(group)}
    for name, command in group.commands.items():
        found[name] = words_of(command)
        for inner, inner_command in getattr(command, "commands", {}).items():
            found[f"{name} {inner}"] = words_of(inner_command)
    assert found == SURFACE


def every_command() -> list[tuple[list[str], Any]]:
    group: Any = typer.main.get_command(app)
    found = []
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        if inner is not None:
            found += [([name, below], inner[below]) for below in inner]
        elif not command.hidden:
            found.append(([name], command))
    return found


def test_every_command_has_two_examples_that_it_accepts() -> None:
    group: Any = typer.main.get_command(app)
    for words, command in every_command():
        examples = (command.epilog or "").splitlines()
        assert len(examples) == 2, words
        for example in examples:
            program, *given = shlex.split(example)
            assert [program, *given[: len(words)]] == ["headway", *words]
            with group.make_context("headway", list(given)):
                assert command.make_context(words[-1], given[len(words) :])


def test_the_list_of_commands_has_the_first_sentence_of_each_help() -> None:
    group: Any = typer.main.get_command(app)
    for entry in COMMANDS:
        command = group.commands[entry.name]
        assert command.hidden == (entry.group == INTERNAL)
        if not command.hidden:
            words = " ".join(command.help.split())
            assert re.split(r"(?<=\.) ", words)[0] == entry.summary


def test_help_lists_the_commands_in_groups_without_internal_ones(headway: Headway) -> None:
    shown = headway("help", "--all").out
    assert "\nFor many experiments:\n  resume " in shown
    for name in ("coordinator", "node ", "part", "keep", "serve", "wheels"):
        assert f"\n  {name}" not in shown


FIRST_WEEK = ["init", "check", "plan", "run", "status", "watch", "stop", "generate", "export"]


def test_help_shows_the_commands_of_a_first_week_and_where_the_others_are(
    headway: Headway,
) -> None:
    shown = headway("-h").out
    assert re.findall(r"^  ([a-z]\w*) ", shown, re.MULTILINE) == FIRST_WEEK
    assert "headway help --all lists the others: resume, scale," in shown
    assert headway("help").out == shown


def test_help_of_a_command_is_that_of_the_command(headway: Headway) -> None:
    assert headway("help", "target").out == headway("target", "--help").out


def test_a_wrong_name_of_a_command_is_suggested(headway: Headway) -> None:
    said = headway("chekc")
    assert said.exit_code == 2
    assert "Did you mean 'check'?" in said.err


def test_help_is_fast(tmp_path: Path) -> None:
    """In processor time, which is what a user waits on an idle machine. The least of several: with
    neighbours on the same cores and caches the same work takes up to twice as much of it. The first
    compiles what it imports, as a user's does."""
    seconds = []
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = subprocess.check_output(
            [sys.executable, "-m", "headway.cli.main", "--help"], text=True, env=environment
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert "Train language models" in shown
    assert min(seconds) < HELP_SECONDS, seconds


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['headway', '--help']\n"
        "from headway.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
