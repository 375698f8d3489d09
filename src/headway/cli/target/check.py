"""headway target check: does a run work there? A run of two nodes finds out."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import JsonOption
from headway.cli.output import print_json, say

if TYPE_CHECKING:
    from headway.kube.check_lines import CheckLine
    from headway.spec.load import LoadedTarget

WAIT = "3min"
WIDEST = 110
COMMAND = re.compile(r"(?:^|(?<=: ))(?=(?:kubectl|headway|docker|aws|gcloud) )")
"""Where a command begins, in words about it."""
MARKS = {"passed": "passed", "warned": "warned", "failed": "FAILED", "not checked": "not checked"}


def check(
    name: Annotated[str, typer.Argument(metavar="TARGET", help="Target of targets.yaml.")],
    wait: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long the run may take, such as 15min."),
    ] = WAIT,
    json_: JsonOption = False,
) -> None:
    """Train a tiny model on two nodes of a target, and say how to fix what fails.

    Asks for your rights, quota, policy and queue first. Then launches a run like any other: the
    target's image, storage, devices and network. One of its pods asks for its own rights, what the
    storage lets it do, and the region of a bucket. All is deleted at the end, also after Ctrl-C; if
    the command is killed, the run's objects some minutes later. Exit code 4 if a line failed."""
    from headway.cli.new_target import named_target
    from headway.cli.preflight import require_train_extra
    from headway.clock import SystemClock
    from headway.errors import BadInput, CheckFailed
    from headway.kube.check_lines import has_failed, lines_json, verdict
    from headway.spec.quantities import Interval

    try:
        seconds = Interval.parse(wait)
    except ValueError as error:
        raise BadInput(f"--wait: {error}") from None
    if seconds.unit != "seconds":
        raise BadInput(f"--wait: {wait} is not a time such as 15min")
    require_train_extra("headway target check")
    found, clock = named_target(name, Path.cwd()), SystemClock()
    began = clock.monotonic()
    lines = _lines(found, float(seconds.amount))
    took = clock.monotonic() - began
    if json_:
        print_json(lines_json(name, took, lines))
    else:
        width = min(WIDEST, shutil.get_terminal_size().columns)
        print("\n".join(table(lines, width)))
        say(f"{verdict(lines)}, in {took:.0f} s")
    if has_failed(lines):
        raise CheckFailed(f"runs will not work on {name} as it is", None)


def _lines(found: LoadedTarget, wait_seconds: float) -> list[CheckLine]:
    from headway.cli.target.trial import TargetTrial
    from headway.errors import HeadwayError
    from headway.kube.check_lines import LOGIN, NAMES_IN_ORDER, failed, has_failed, unchecked

    with TemporaryDirectory(prefix="headway-") as folder:
        trial = TargetTrial(found, Path(folder), wait_seconds)
        say(f"asking the API server about namespace {found.target.kube.namespace}")
        try:
            lines = trial.api_lines()
        except HeadwayError as error:
            lines = [failed(LOGIN, error.message, error.hint or "make this work: kubectl get pods")]
        if not has_failed(lines):
            return [*lines, *trial.run_lines()]
        wrong = next(line.name for line in lines if line.outcome == "failed")
        return [*lines, *unchecked(NAMES_IN_ORDER[len(lines) :], f"first: {wrong}")]


def table(lines: Sequence[CheckLine], width: int) -> Iterator[str]:
    """A line for each, with what fixes it below; commands are not wrapped, to be pasted."""
    first = max(map(len, MARKS.values())) + 2
    second = max(len(line.name) for line in lines) + 2
    for line in lines:
        begin = f"{MARKS[line.outcome]:<{first}}{line.name:<{second}}"
        room = max(20, width - 1 - first - second)
        words = textwrap.wrap(line.evidence, room, break_on_hyphens=False) or [""]
        yield f"{begin}{words[0]}".rstrip()
        yield from (f"{'':{first + second}}{more}" for more in words[1:])
        if line.fix is not None and line.outcome != "passed":
            yield from _fix(line.fix, width)


def _fix(words: str, width: int) -> Iterator[str]:
    """Each command on a line of its own, not wrapped."""
    indent, begin = " " * 7, "  fix: "
    for part in words.split("; "):
        prose, command = (*COMMAND.split(part, 1), "")[:2]
        for text in textwrap.wrap(prose, width - 1 - len(indent), break_on_hyphens=False):
            yield f"{begin}{text}"
            begin = indent
        if command:
            yield f"{begin}{command}"
            begin = indent
