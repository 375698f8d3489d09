"""headway events: what happened to a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.options import JsonOption, OnOption, RunArgument
from headway.cli.output import print_json

if TYPE_CHECKING:
    from headway.cli.target_run import TargetRun


def events(run: RunArgument = None, on: OnOption = None, json_: JsonOption = False) -> None:
    """Show what happened to a run: starts, lost workers, checkpoints. On a target, also the events
    of Kubernetes."""
    from headway.cli.target_run import target_run
    from headway.state.find_run import find_run

    there = target_run(run, on, Path.cwd())
    found = find_run(run, Path.cwd()).history() if there is None else _on_target(there)
    _print(found, json_)


def _print(events: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(events)
        return
    for event in events:
        facts = "  ".join(f"{k}={v}" for k, v in event.items() if k not in ("time", "event"))
        print(f"{event['time']}  {event['event']:<12} {facts}")


def _on_target(run: TargetRun) -> list[dict[str, Any]]:
    """Events of the run, from its coordinator or, once it has ended, from its storage; and those of
    Kubernetes, which are all there is while the run starts."""
    cluster = run.cluster
    job = cluster.job()
    answer = cluster.ask("/events") if job is not None else None
    if answer is not None:
        own = json.loads(answer)
    elif job is not None and cluster.job_status(job).is_under_way:
        own = []
    else:
        own = run.directory().history()
    return sorted([*own, *cluster.events()], key=lambda event: str(event["time"]))
