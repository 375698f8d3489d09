"""headway plan: does a run fit, how long does it take, what does it cost, what should change?"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.completion import runs_and_presets
from headway.cli.options import JsonOption, SetOption

if TYPE_CHECKING:
    from headway.cli.plan.estimate import RunPlan
    from headway.cli.terminal import Line


def plan(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Run file or its folder, preset, or a run that exists. Default: ./run.yaml.",
            autocompletion=runs_and_presets,
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="TARGET",
            help="Target of targets.yaml, or devices of a node such as H100:8. Default: the "
            "accelerators of the run file, else this machine.",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="N", help="Number of nodes, or a range: 2..4. Default: as the run."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="KEY=VALUE,...",
            help="Describe an accelerator that Headway does not know: "
            "like=H100,memory=94GB,bf16=835T",
        ),
    ] = None,
    set_: SetOption = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say how each figure comes about, and what it rests on."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Say whether a run fits, how long it takes, what it costs and what to change.

    Writes nothing, needs no torch, and asks neither a cluster nor the hub. Exits with 4 if the run
    does not fit."""
    from headway.cli.output import print_json
    from headway.cli.plan.asked import read_asked
    from headway.cli.plan.estimate import plan_of
    from headway.cli.plan.explanation import explanation
    from headway.cli.plan.facts import plan_facts
    from headway.cli.plan.screen import screen

    found = plan_of(read_asked(run, set_, on, nodes, device))
    if json_:
        print_json(plan_facts(found))
    else:
        print_lines(screen(found))
        if explain:
            print_lines(explanation(found))
    _require_good(found)


def print_lines(lines: Iterable[Line]) -> None:
    from headway.cli.terminal import has_colour, painted

    is_coloured = has_colour(sys.stdout)
    for line in lines:
        text = "".join(painted(text, style, is_coloured) for text, style in line)
        print(text.rstrip())


def _require_good(found: RunPlan) -> None:
    from headway.errors import CheckFailed

    refused = [one for one in found.fleets if one.is_refused]
    if refused:
        raise CheckFailed(f"{found.asked.title} does not fit on {refused[0].fleet}")
