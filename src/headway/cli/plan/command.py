"""headway plan: does a run fit, how long does it take, what does it cost, what should change?"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.completion import runs_and_presets
from headway.cli.options import JsonOption, SetOption

if TYPE_CHECKING:
    from headway.cli.plan.asked import Asked
    from headway.cli.plan.run_plan import RunPlan
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
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="SHAPES",
            help="Compare devices, H100:8,A100-80:8, at each of --nodes 2,4,8; auto: those for "
            "rent that the run fits on.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say how each figure comes about, and what it rests on."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Say whether a run fits, how long it takes, what it costs and what to change.

    Asks neither a cluster (unless --on names a context without a target) nor the hub, needs no
    torch and writes nothing. Exits with 4 if the run does not fit or is over its budget. Of a run
    that exists, shows what was planned beside what is measured so far; with --set or --nodes, plans
    it by the time of the steps it has recorded."""
    from headway.cli.output import print_json
    from headway.cli.plan.asked import read_asked
    from headway.cli.plan.estimate import plan_of
    from headway.cli.plan.explanation import explanation
    from headway.cli.plan.facts import plan_facts
    from headway.cli.plan.screen import screen

    if compare is not None:
        _compare(read_asked(run, set_, on, None, device), compare, nodes, device, json_)
        return
    asked = read_asked(run, set_, on, nodes, device)
    if asked.directory is not None and set_ is None and nodes is None:
        _show_outcome(asked, json_)
        return
    found = plan_of(asked)
    if json_:
        print_json(plan_facts(found))
    else:
        print_lines(screen(found))
        if explain:
            print_lines(explanation(found))
    _require_good(found)


def _show_outcome(asked: Asked, json_: bool) -> None:
    """Of a run that exists: what was planned, beside what it has measured."""
    from headway.cli.output import print_json
    from headway.cli.plan.outcome_screen import outcome_facts, outcome_screen
    from headway.plan.outcome import outcome_rows
    from headway.report.planned import kept_plan, measured_so_far

    assert asked.directory is not None
    record, measured = kept_plan(asked.directory), measured_so_far(asked.directory)
    found = (asked.title, record, measured, outcome_rows(record, measured))
    if json_:
        print_json(outcome_facts(*found))
    else:
        print_lines(outcome_screen(*found))


def _compare(asked: Asked, shapes: str, nodes: str | None, device: str | None, json_: bool) -> None:
    from headway.cli.output import print_json
    from headway.cli.plan.comparison import compared, comparison_screen
    from headway.cli.plan.facts import comparison_facts
    from headway.errors import CheckFailed

    found = compared(asked, shapes, nodes, device)
    if json_:
        print_json(comparison_facts(found))
    else:
        print_lines(comparison_screen(found))
    if not found.good:
        raise CheckFailed(f"{asked.title} fits on none of them", "--compare auto finds some")


def print_lines(lines: Iterable[Line]) -> None:
    from headway.cli.terminal import has_colour, painted

    is_coloured = has_colour(sys.stdout)
    for line in lines:
        text = "".join(painted(text, style, is_coloured) for text, style in line)
        print(text.rstrip())


def _require_good(found: RunPlan) -> None:
    from headway.errors import CheckFailed

    refused = [one for one in found.fleets if one.is_refused]
    for one in refused:
        if one.fits.verdict == "no":
            what = "does not fit on"
        elif one.use is not None and one.use.verdict == "no":
            what = "leaves devices idle on"
        else:
            what = "is over its budget on"
        change = next(iter(one.change_words), None)
        raise CheckFailed(f"{found.asked.title} {what} {one.fleet}", change)
