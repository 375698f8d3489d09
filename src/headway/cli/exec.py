"""headway exec: a command in a pod of a run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.completion import local_runs
from headway.cli.options import OnOption

if TYPE_CHECKING:
    from headway.kube.pod_exec import LocalEnds

STDIN, STDOUT, STDERR = 0, 1, 2
CLOSED_PIPE = 141
"""As a shell reports a program whose reader went away."""


def exec_(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Name of a run.", autocompletion=local_runs),
    ],
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="Command and its arguments, after --."),
    ],
    node: Annotated[int, typer.Option(min=0, help="Node, counted from 0.")] = 0,
    on: OnOption = None,
) -> None:
    """Run a command in the pod of a node: nvidia-smi, py-spy, a shell. With a terminal here, it has
    one there. Exits with the command's exit code; of Headway's own, 2 means that it could not be
    started and 3 that there is no such pod."""
    from headway.cli.target_run import target_run
    from headway.errors import BadInput
    from headway.launch.pod_shell import exit_code_in

    there = target_run(run, on, Path.cwd())
    if there is None:
        raise BadInput(
            f"run {run} was not launched on a target from this folder", _where(run, command)
        )
    with _local_ends() as ends:
        try:
            code = exit_code_in(there.cluster, node, command, ends)
        except BrokenPipeError:
            code = CLOSED_PIPE
    raise typer.Exit(code)


def _where(run: str, command: list[str]) -> str | None:
    """What to type instead, for a target that is known here."""
    from headway.spec.load import load_targets

    targets = sorted(load_targets(Path.cwd()))
    if not targets:
        return "a run of this machine has no pods: use a shell"
    typed = f"headway exec {run} --on {targets[0]} -- {shlex.join(command)}"
    others = f"known targets: {', '.join(targets)}; for example: " if len(targets) > 1 else ""
    return f"{others}{typed}"


@contextmanager
def _local_ends() -> Iterator[LocalEnds]:
    """With a terminal in raw mode, where there is one: Ctrl-C and all other keys are the
    command's."""
    import termios
    import tty

    from headway.kube.pod_exec import LocalEnds

    stdin = STDIN if sys.stdin is not None else os.open(os.devnull, os.O_RDONLY)
    if not (os.isatty(stdin) and os.isatty(STDOUT)):
        yield LocalEnds(stdin, partial(_write, STDOUT), partial(_write, STDERR))
        return
    before = termios.tcgetattr(stdin)
    tty.setraw(stdin, termios.TCSADRAIN)  # what was typed already is kept
    try:
        yield LocalEnds(
            stdin,
            partial(_write, STDOUT),
            partial(_write, STDERR),
            size=_size,
        )
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _size() -> tuple[int, int]:
    size = os.get_terminal_size(STDOUT)
    return size.columns, size.lines


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]
