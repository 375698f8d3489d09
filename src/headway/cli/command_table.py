"""The commands in the groups of `headway help --all`, each with two examples; and that help."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PURPOSE = "Train language models from one run file, on this machine or on Kubernetes."
OPTIONS = [
    ("--version", "Print the version."),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Show completion for the current shell, to copy it."),
    ("-h, --help", "Show this message and exit."),
]
MOST_COLUMNS = 80
INTERNAL = ""
"""Group of the commands that only Headway itself calls: they are not listed."""


@dataclass(frozen=True)
class CommandEntry:
    """One command: the first sentence of its help, where its code is, and two examples."""

    group: str
    name: str
    summary: str
    code: str
    """`module:function`, or `module:app` for a command that has commands of its own."""
    examples: tuple[str, ...] = ()


FIRST_WEEK = "Commands of a first week"
EXPERIMENTS = "For many experiments"
DATA = "For data, and for what a run has seen of it"
CLUSTERS = "For those who own a cluster"
COMMANDS = [
    CommandEntry(
        FIRST_WEEK,
        "init",
        "Create a folder with a run file based on a preset, or with a training script.",
        "init:init",
        ("headway init tiny my-run", "headway init script my-script"),
    ),
    CommandEntry(
        FIRST_WEEK,
        "check",
        "Validate a run file, summarise the run, and refuse what headway run would refuse.",
        "check:check",
        ("headway check", "headway check run.yaml --set optimizer.lr=1e-4"),
    ),
    CommandEntry(
        FIRST_WEEK,
        "plan",
        "Say whether a run fits, how long it takes, what it costs and what to change.",
        "plan.command:plan",
        ("headway plan llama2-70b --on H100:8 --nodes 8", "headway plan --on lab --explain"),
    ),
    CommandEntry(
        FIRST_WEEK,
        "run",
        "Train from a run file, here or on a target.",
        "run:run",
        ("headway run", "headway run --nodes 4 --set 'train_for=500 steps'"),
    ),
    CommandEntry(
        FIRST_WEEK,
        "status",
        "Show what a run is doing: state, step, loss, speed, time left, last checkpoint.",
        "status:status",
        ("headway status", "headway status my-run --json"),
    ),
    CommandEntry(
        FIRST_WEEK,
        "watch",
        "Watch a run in the terminal: curves, speed, members and newest events, until it ends.",
        "watch:watch",
        ("headway watch", "headway watch my-run --on lab"),
    ),
    CommandEntry(
        FIRST_WEEK,
        "stop",
        "Save and stop a running run.",
        "stop:stop",
        ("headway stop", "headway stop my-run --on lab"),
    ),
    CommandEntry(
        FIRST_WEEK,
        "generate",
        "Continue a prompt with a trained model, on a GPU of this machine or its CPU.",
        "generate:generate",
        (
            'headway generate --prompt "Once"',
            'headway generate my-run@300 --prompt "Once" --temperature 0',
        ),
    ),
    CommandEntry(
        FIRST_WEEK,
        "export",
        "Write a trained model and its tokenizer in the Hugging Face format.",
        "export:export",
        ("headway export", "headway export my-run@300 --into my-model"),
    ),
    CommandEntry(
        EXPERIMENTS,
        "resume",
        "Resume a stopped run, with its settings, from its newest good checkpoint.",
        "resume:resume",
        ("headway resume my-run", "headway resume my-run --nodes 4"),
    ),
    CommandEntry(
        EXPERIMENTS,
        "scale",
        "Change the number of nodes of a running run.",
        "scale:scale",
        ("headway scale --nodes 5", "headway scale my-run --nodes 2"),
    ),
    CommandEntry(
        EXPERIMENTS,
        "fork",
        "Start a new run from a checkpoint of another run.",
        "fork:fork",
        (
            "headway fork my-run my-run-2",
            "headway fork my-run@300 slower --set optimizer.lr=1e-4",
        ),
    ),
    CommandEntry(
        EXPERIMENTS,
        "delete",
        "Delete runs with their checkpoints, logs and ledgers.",
        "delete:delete",
        ("headway delete my-run", "headway delete first second --on lab --uploaded --yes"),
    ),
    CommandEntry(
        EXPERIMENTS,
        "list",
        "List the runs in this folder, or with --on those in the namespace of a target.",
        "list_runs:list_runs",
        ("headway list", "headway list --on lab"),
    ),
    CommandEntry(
        EXPERIMENTS,
        "logs",
        "Print the log of the worker that failed, else of node 0 rank 0.",
        "logs:logs",
        ("headway logs --follow", "headway logs my-run --node 2"),
    ),
    CommandEntry(
        EXPERIMENTS,
        "events",
        "Show what happened to a run: starts, lost workers, checkpoints.",
        "events:events",
        ("headway events", "headway events my-run --json"),
    ),
    CommandEntry(
        EXPERIMENTS,
        "report",
        "Write a page of one run or several: losses, speed, members, every interruption.",
        "report:report",
        ("headway report", "headway report first second --into both.html"),
    ),
    CommandEntry(
        EXPERIMENTS,
        "compare",
        "Compare runs in a table: losses, speed, interruptions, and the settings that differ.",
        "compare:compare",
        ("headway compare first second", "headway compare first second --json"),
    ),
    CommandEntry(
        EXPERIMENTS,
        "tensorboard",
        "Show runs in TensorBoard, on this machine only, until Ctrl-C.",
        "tensorboard:tensorboard",
        ("headway tensorboard", "headway tensorboard first second --port 6007"),
    ),
    CommandEntry(DATA, "data", "Prepare data for training, and inspect it.", "data:app"),
    CommandEntry(DATA, "ledger", "Prove which samples a run consumed.", "ledger:app"),
    CommandEntry(
        CLUSTERS,
        "target",
        "Write a target for a cluster, check that runs work there, and remove what they left.",
        "target:app",
    ),
    CommandEntry(
        CLUSTERS,
        "image",
        "Build an image for workers, push it, and write it into a target.",
        "image:app",
    ),
    CommandEntry(
        CLUSTERS,
        "prove",
        "Check on this machine that Headway trains, resumes and exports as promised.",
        "prove:prove",
        ("headway prove", "headway prove --devices 2 --into two-gpus"),
    ),
    CommandEntry(INTERNAL, "coordinator", "", "coordinator:coordinator"),
    CommandEntry(INTERNAL, "node", "", "node:node"),
    CommandEntry(INTERNAL, "part", "", "part:part"),
    CommandEntry(INTERNAL, "keep", "", "keep:keep"),
    CommandEntry(INTERNAL, "serve", "", "serve:serve"),
    CommandEntry(INTERNAL, "wheels", "", "wheels:wheels"),
    CommandEntry(INTERNAL, "facts", "", "facts:facts"),
]


def help_text(has_all: bool = False) -> str:
    """Return what `headway --help` shows, or `headway help --all`. It does without the library of
    the command line, whose import takes longer than all the rest."""
    width = min(shutil.get_terminal_size().columns, MOST_COLUMNS) - 2
    lines = ["Usage: headway [OPTIONS] COMMAND [ARGS]...", "", f"  {PURPOSE}"]
    lines += ["", "Options:", *_columns(OPTIONS, width)]
    more = (EXPERIMENTS, DATA, CLUSTERS)
    groups = (FIRST_WEEK, *more) if has_all else (FIRST_WEEK,)
    shown = [entry for entry in COMMANDS if entry.group in groups]
    widest = max(len(entry.name) for entry in shown)
    for group in groups:
        rows = [(one.name.ljust(widest), one.summary) for one in shown if one.group == group]
        lines += ["", f"{group}:", *_columns(rows, width)]
    if not has_all:
        others = ", ".join(entry.name for entry in COMMANDS if entry.group in more)
        lines += ["", *textwrap.wrap(f"headway help --all lists the others: {others}.", width)]
    return "\n".join(lines)


def _columns(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    first = max(len(name) for name, _ in rows) + 4
    for name, text in rows:
        begin = f"  {name}".ljust(first)
        yield textwrap.fill(text, width, initial_indent=begin, subsequent_indent=" " * first)
