"""headway status: what a run is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.options import JsonOption, OnOption, RunArgument
from headway.cli.output import print_json, short_count, short_loss, short_time

if TYPE_CHECKING:
    from headway.cli.members import Event, Member, Start
    from headway.cli.target_run import TargetRun
    from headway.state.goodput import Goodput
    from headway.state.status import Status

MOST_LISTED = 8
"""Of more members than these only the number is shown."""


def status(run: RunArgument = None, on: OnOption = None, json_: JsonOption = False) -> None:
    """Show what a run is doing: state, step, loss, speed, time left, last checkpoint."""
    from headway.cli.members import Look, members, newest_start
    from headway.cli.target_run import target_run
    from headway.clock import SystemClock
    from headway.state.find import find_run
    from headway.state.status import read_status

    if (elsewhere := target_run(run, on, Path.cwd())) is not None:
        _show_on_target(elsewhere, json_)
        return
    directory = Look(find_run(run, Path.cwd()).location)
    found = read_status(directory, SystemClock().now())
    start = newest_start(directory.history())
    there = members(directory, start) if found.state == "running" else []
    if json_:
        more = {"mode": start.mode, "wanted_nodes": start.wanted_nodes}
        print_json({**found.as_json(), **more, "members": [asdict(member) for member in there]})
        return
    _print(_lines(directory.as_typed, directory.history(), found, start, there))


def _print(lines: list[tuple[str, str]]) -> None:
    for key, value in lines:
        print(f"{key:<12}{value}")


def _show_on_target(run: TargetRun, json_: bool) -> None:
    """As its coordinator has it. Of one that has ended, from the storage."""
    from headway.cli.members import newest_start
    from headway.clock import SystemClock
    from headway.state.status import Status, read_status

    cluster = run.cluster
    job = cluster.job()
    on_cluster = cluster.on_cluster(job) if job is not None else None
    is_active = on_cluster is not None and on_cluster.is_to_go_on
    is_queued = on_cluster is not None and on_cluster.state == "queued"
    reasons: list[str] = []
    known = None
    if job is not None and is_active:
        known = None if is_queued else cluster.known()
        reasons = [reason.words for reason in cluster.reasons(job, is_kept=known is not None)]
    found: Status | None = None
    events: list[Event] = []
    if known is not None:
        found, events = Status.from_json(known["status"]), known["events"]
        reasons += [known["loss"]] if known.get("loss") else []
    elif not is_active:
        directory = run.directory()
        found, events = read_status(directory, SystemClock().now()), [*directory.history()]
    if json_:
        print_json(
            {
                **(found.as_json() if found is not None else {"name": run.name}),
                "target": run.on,
                "cluster": asdict(on_cluster) if on_cluster is not None else None,
                "waiting": reasons,
            }
        )
        return
    where = f"{run.on}, namespace {run.kube.namespace}"
    up = f": {on_cluster.ready} of {on_cluster.nodes} pods up" if on_cluster is not None else ""
    lines = [("on", f"{where}{up}"), *(("waiting", reason) for reason in reasons)]
    if not is_active:
        lines += _budget(events, run.on)
    if found is None:
        _print([("run", run.name), ("state", "queued" if is_queued else "starting"), *lines])
        return
    shown = _lines(run.name, events, found, newest_start(events), [])
    _print([*shown[:2], *lines, *shown[2:]])


def _budget(events: Sequence[Event], on: str) -> list[tuple[str, str]]:
    """Of a run whose newest start was ended by it."""
    last = [event for event in events if event["event"] in ("launched", "budget")][-1:]
    return [
        (
            "budget",
            f"{event['spent_hours']:g} of {event['hours']:g} hours are used up, and it stops again "
            f"when it is resumed: raise budget.hours, then headway run --on {on}",
        )
        for event in last
        if event["event"] == "budget"
    ]


def _lines(
    as_typed: str, events: Sequence[Event], found: Status, start: Start, there: list[Member]
) -> list[tuple[str, str]]:
    lines = [("run", found.name), ("state", found.state)]
    if found.failure:
        lines.append(("cause", found.failure))
    total = f" of {found.total_steps}" if found.total_steps is not None else ""
    lines.append(("step", f"{found.step}{total}"))
    if found.loss is not None:
        lines.append(("loss", f"{found.loss:.4f}"))
    for name, loss in found.evaluations.items():
        lines.append((name, short_loss(loss)))
    if found.tokens_per_second is not None:
        lines.append(("speed", f"{short_count(found.tokens_per_second)} tokens/s"))
    if found.seconds_left is not None:
        lines.append(("left", short_time(found.seconds_left)))
    if found.workers is not None and found.state == "running":
        lines += _members(found.workers, found.generation, start, there)
    lines += _happened(as_typed, events, found, start)
    if found.skipped_steps:
        lines.append(("skipped", f"{found.skipped_steps} steps (headway events shows why)"))
    if found.checkpoint_step is not None:
        age = found.checkpoint_age_seconds
        ago = f", {short_time(age)} ago" if age is not None else ""
        lines.append(("checkpoint", f"step {found.checkpoint_step}{ago}"))
    if found.save_failure is not None:
        lines.append(("warning", f"saves fail: {found.save_failure}"))
    if found.goodput is not None:
        lines.append(("goodput", _goodput(found.goodput)))
    lines.append(("folder", found.folder))
    return lines


def _members(
    workers: int, generation: int | None, start: Start, there: list[Member]
) -> list[tuple[str, str]]:
    """How many, and who they are."""
    from headway.cli.members import place_in_words

    nodes = workers // start.ranks
    mode = f" ({start.mode})" if start.mode else ""
    wanted = start.wanted_nodes
    of = f" on {nodes} of {wanted} nodes" if wanted not in (None, nodes) else ""
    several = "s" if workers > 1 else ""
    lines = [("members", f"{workers} worker{several}{of}{mode}, generation {generation}")]
    if len(there) <= MOST_LISTED:
        for member in there:
            who = place_in_words(member.node, member.local_rank, start.ranks)
            leads = ", leads" if member.leads else ""
            lines.append(("", f"{who}: pid {member.pid}{leads}"))
    return lines


def _happened(
    as_typed: str, events: Sequence[Event], found: Status, start: Start
) -> list[tuple[str, str]]:
    """To the members, lately."""
    from headway.cli.members import changes_in_words, stuck_in_words, stuck_reports
    from headway.state.status import SHOWN_CHANGES

    changes = changes_in_words(events, start.ranks)[-SHOWN_CHANGES:]
    lines = [
        ("" if index else "changes", f"{time[11:19]}  {words}")
        for index, (time, words) in enumerate(changes)
    ]
    if found.state == "running" and (reports := stuck_reports(events, found.step)):
        lines.append(("warning", stuck_in_words(reports, as_typed, start.ranks)))
    return lines


def _goodput(found: Goodput) -> str:
    """The share of time that went into learning, and what took most of the rest."""
    causes = sorted(found.lost_seconds.items(), key=lambda pair: -pair[1])
    worst = ", ".join(
        f"{cause} {short_time(seconds)}" for cause, seconds in causes[:3] if seconds >= 1
    )
    total = short_time(found.total_seconds)
    return f"{found.ratio:.1%} of {total}" + (f"; the rest went to {worst}" if worst else "")
