"""The command line is a promise: its words, its speed, and what it loads."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

from headway.cli.main import app

SURFACE = {
    "headway": ["--version"],
    "init": ["PRESET", "FOLDER", "--list"],
    "check": ["RUN_FILE", "--on", "--set", "--code", "--json"],
    "run": [
        "RUN_FILE",
        "--nodes",
        "--on",
        "--dry-run",
        "--output",
        "-o",
        "--set",
        "--extend",
    ],
    "stop": ["RUN", "--on"],
    "scale": ["--nodes", "RUN", "--on"],
    "resume": ["RUN", "--nodes", "--on"],
    "fork": ["RUN[@STEP]", "NEW", "--set"],
    "delete": ["RUN", "--yes", "--on"],
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
    ],
    "export": ["RUN[@STEP]", "--into", "--on"],
    "report": ["[RUN]...", "--output", "-o", "--on"],
    "prove": ["--into", "--devices", "--on", "--nodes"],
    "node": [],
    "keep": [],
    "serve": [],
    "coordinator": [
        "--run",
        "--record",
        "--key",
        "--listen",
        "--http",
        "--min",
        "--max",
        "--first",
        "--after",
        "--domain-pods",
        "--node-pods",
        "--restart",
        "--tls-cert",
        "--tls-key",
        "--until-eof",
    ],
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
        "--transform",
        "--code",
        "--ids",
        "--mask",
        "--windows",
        "--deduplicate",
        "--hold-out",
        "--stream",
        "--anonymous",
        "--strict",
        "--processes",
        "--part",
    ],
    "data join": ["PART", "--into"],
    "data mix": ["[NAME=]DIR", "--into", "--weights", "--epochs", "--sequence-length"],
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
    "data verify": ["DIR", "--repair", "--json"],
}
"""People's scripts hold on to these: a change here is one for them, and goes into CHANGELOG."""

HELP_SECONDS = 0.3
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


def test_help_is_fast(tmp_path: Path) -> None:
    """In processor time, which is what a user waits on an idle machine. The least of several: with
    neighbours on the same cores and caches the same work takes up to twice as much of it. The first
    compiles what it imports, as a user's does."""
    seconds = []
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for _ in range(5):
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
