"""headway target check: does a run work there? Short-lived pods find out."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import JsonOption
from headway.cli.output import print_json, say

if TYPE_CHECKING:
    from headway.kube.check_lines import CheckLine
    from headway.spec.load import LoadedTarget

WAIT = "3min"
LONGER_SECONDS = 180.0
"""Than the wait for pods: after this, what is left of a killed check ends by itself."""
WIDEST = 110
COMMAND = re.compile(r"(?:^|(?<=: ))(?=(?:kubectl|headway|docker|aws|gcloud|chronyc) )")
"""Where a command begins, in words about it."""
MARKS = {"passed": "passed", "warned": "warned", "failed": "FAILED", "not checked": "not checked"}


def check(
    name: Annotated[str, typer.Argument(metavar="TARGET", help="Target of targets.yaml.")],
    wait: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long to wait for pods, such as 15min."),
    ] = WAIT,
    json_: JsonOption = False,
) -> None:
    """Try what a run needs on a target, with pods of a minute, and say how to fix what fails.

    Makes what a run of two nodes makes, with a probe in each pod: name resolution, traffic both
    ways and its speed, the storage, conditional writes, regions, clocks, devices, rights, quota,
    policy, queue and image. Everything is deleted at the end, also after Ctrl-C; if the command is
    killed, some minutes later. Exit code 4 if a line failed."""
    from headway.cli.target_render import errors_located
    from headway.clock import SystemClock
    from headway.errors import BadInput, CheckFailed
    from headway.kube.check_lines import has_failed, lines_json, verdict
    from headway.spec.load import load_target
    from headway.spec.quantities import Interval

    try:
        seconds = Interval.parse(wait)
    except ValueError as error:
        raise BadInput(f"--wait: {error}") from None
    if seconds.unit != "seconds":
        raise BadInput(f"--wait: {wait} is not a time such as 15min")
    found, clock = load_target(name, Path.cwd()), SystemClock()
    began = clock.monotonic()
    with errors_located(found):
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
    from headway.clock import SystemClock
    from headway.kube.client import KubeClient
    from headway.launch.target_check import checked_target

    kube = found.target.kube
    client = KubeClient.from_kubeconfig(kube.context, kube.namespace, say)
    longest = wait_seconds + LONGER_SECONDS
    return checked_target(
        client, found.name, found.target, wait_seconds, longest, SystemClock(), say
    )


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
