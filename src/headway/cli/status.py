"""headway status: what a run is doing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.options import JsonOption, OnOption, RunArgument
from headway.cli.output import (
    compiled_text,
    goodput_text,
    print_json,
    short_count,
    short_loss,
    short_time,
    spending_text,
)
from headway.errors import NotFound

if TYPE_CHECKING:
    from headway.cli.members import Event, Launch, ListedWorker
    from headway.cli.target_run import TargetRun
    from headway.launch.job_status import ClusterRunStatus
    from headway.state.status import RunStatus, State

MOST_LISTED = 8
"""Most members that are listed one by one."""


def status(run: RunArgument = None, on: OnOption = None, json_: JsonOption = False) -> None:
    """Show what a run is doing: state, step, loss, speed, time left, last checkpoint."""
    from headway.cli.target_run import target_run
    from headway.state.find_run import find_run

    if (elsewhere := target_run(run, on, Path.cwd())) is not None:
        _show_on_target(elsewhere, json_)
        return
    here = read_here(find_run(run, Path.cwd()).location)
    if json_:
        more = {"mode": here.launch.mode, "wanted_nodes": here.launch.wanted_nodes}
        there = [asdict(member) for member in here.members]
        print_json({**here.status.as_json(), **more, "members": there})
        return
    _print(status_lines(here))


@dataclass(frozen=True)
class StatusHere:
    """What is known of a run from its directory."""

    as_typed: str
    events: Sequence[Event]
    status: RunStatus
    launch: Launch
    members: list[ListedWorker]


def read_here(location: str) -> StatusHere:
    from headway.cli.members import members, newest_launch
    from headway.clock import SystemClock
    from headway.state.run_directory import RunDirectory
    from headway.state.run_history import HistoryReader
    from headway.state.status import status_of

    directory = RunDirectory(location)
    history = HistoryReader(directory).read()
    found = status_of(directory, history, SystemClock().now())
    launch = newest_launch(history.events)
    there = members(directory, launch) if found.state == "running" else []
    return StatusHere(directory.as_typed, history.events, found, launch, there)


def status_lines(here: StatusHere) -> list[tuple[str, str]]:
    return _lines(here.as_typed, here.events, here.status, here.launch, here.members)


def _print(lines: list[tuple[str, str]]) -> None:
    for key, value in lines:
        print(f"{key:<11} {value}")


def _show_on_target(run: TargetRun, json_: bool) -> None:
    """From its coordinator or, once it has ended, from its storage."""
    from headway.cli.members import newest_launch
    from headway.clock import SystemClock
    from headway.launch.job_status import NO_COORDINATOR
    from headway.launch.training_wait import reasons_to_wait
    from headway.state.run_history import HistoryReader
    from headway.state.status import RunStatus, status_of

    cluster = run.cluster
    job = cluster.job()
    on_cluster = cluster.job_status(job) if job is not None else None
    is_active = on_cluster is not None and on_cluster.is_under_way
    is_queued = on_cluster is not None and on_cluster.state == "queued"
    reasons: list[str] = []
    known, is_lacking = None, False
    if job is not None and is_active:
        known = None if is_queued else cluster.known()
        waits = reasons_to_wait(cluster, job, is_kept=known is not None)
        reasons = [reason.words for reason in waits]
        is_lacking = known is None and cluster.lacks_coordinator()
    found: RunStatus | None = None
    events: list[Event] = []
    if known is not None:
        found, events = RunStatus.from_json(known["status"]), known["events"]
        reasons += [known["loss"]] if known.get("loss") else []
    elif not is_active:
        with suppress(NotFound) if on_cluster is not None else nullcontext():
            directory = run.directory()  # none, if it was stopped before it was ever started
            history = HistoryReader(directory).read()
            found, events = status_of(directory, history, SystemClock().now()), [*history.events]
    if on_cluster is not None:
        on_cluster = replace(on_cluster, lacks_coordinator=is_lacking)
        found = found and replace(found, state=_state_of(found, on_cluster))
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
    up = f": {on_cluster.ready} of {on_cluster.nodes} pods ready" if on_cluster is not None else ""
    lines = [("on", f"{where}{up}"), *(("waiting", reason) for reason in reasons)]
    if on_cluster is not None and on_cluster.accelerators is not None:
        lines.insert(1, ("devices", on_cluster.accelerators))
    if is_lacking:
        lines += [("warning", NO_COORDINATOR), ("hint", f"headway resume {run.name} --on {run.on}")]
    if not is_active:
        lines += _budget(events, run.on)
    if found is None:
        state = "unknown" if is_lacking or cluster.unreachable is not None else "starting"
        if on_cluster is not None and on_cluster.state != "active":
            state = "stopped" if on_cluster.state == "suspended" else on_cluster.state
        _print([("run", run.name), ("state", state), *lines, *_shell(run, on_cluster)])
        return
    shown = _lines(run.name, events, found, newest_launch(events), [])
    _print([*shown[:2], *lines, *shown[2:], *_shell(run, on_cluster)])


def _shell(run: TargetRun, on_cluster: ClusterRunStatus | None) -> list[tuple[str, str]]:
    """The line with the command for a shell in a worker's pod, if there is one."""
    has_pods = on_cluster is not None and on_cluster.is_under_way and on_cluster.ready
    return [("shell", run.shell_command)] if has_pods else []


def _state_of(found: RunStatus, on_cluster: ClusterRunStatus) -> State:
    """Whether it waits for machines is decided by its Job: the run's own record may be older."""
    if on_cluster.state == "waiting":
        return "waiting"
    if on_cluster.state == "suspended" and found.state == "waiting":
        return "stopped"
    return found.state


def _budget(events: Sequence[Event], on: str) -> list[tuple[str, str]]:
    """Lines for a run whose newest start ended because its budget was used up, or could not be
    kept."""
    from headway.state.spent_money import used_budget

    known = ("launched", "budget", "budget_unknown")
    last = [event for event in events if event["event"] in known][-1:]
    if last and last[0]["event"] == "budget_unknown":
        why, what = last[0]["reason"], last[0]["hint"]
        return [
            ("budget", f"it cannot be kept, and a resumed run stops again: {why}"),
            ("hint", f"{what}, then headway run --on {on}"),
        ]
    return [
        (
            "budget",
            f"{used_budget(event)} are used up, and a resumed run stops again: raise "
            f"budget.{'usd' if 'usd' in event else 'hours'}, then headway run --on {on}",
        )
        for event in last
        if event["event"] == "budget"
    ]


def _lines(
    as_typed: str,
    events: Sequence[Event],
    found: RunStatus,
    launch: Launch,
    there: list[ListedWorker],
) -> list[tuple[str, str]]:
    lines = [("run", found.name), ("state", found.state)]
    if found.failure:
        first, *more = found.failure.splitlines()
        lines += [("cause", first), *(("", line) for line in more)]
    if found.failure_hint:
        lines.append(("hint", found.failure_hint))
    total = f" of {found.total_steps}" if found.total_steps is not None else ""
    has_steps = found.step or not found.is_script
    lines.append(("step", f"{found.step}{total}" if has_steps else "the script tells none"))
    if found.loss is not None:
        lines.append(("loss", f"{found.loss:.4f}"))
    for name, loss in found.evaluations.items():
        lines.append((name, short_loss(loss)))
    if found.tokens_per_second is not None:
        lines.append(("speed", f"{short_count(found.tokens_per_second)} tokens/s"))
    if found.seconds_left is not None:
        lines.append(("left", short_time(found.seconds_left)))
    if found.workers is not None and found.state == "running":
        lines += _members(found.workers, found.generation, launch, there)
    lines += _happened(as_typed, events, found, launch)
    if found.interruptions:
        several = "s" if found.interruptions > 1 else ""
        lines.append(("interrupted", f"{found.interruptions} time{several}"))
    if found.skipped_steps:
        lines.append(("skipped", f"{found.skipped_steps} steps (headway events shows why)"))
    if found.damaged_lines:
        several = "s are" if found.damaged_lines > 1 else " is"
        lines.append(("damaged", f"{found.damaged_lines} line{several} damaged and left out"))
    if found.checkpoint_step is not None:
        age = found.checkpoint_age_seconds
        ago = f", {short_time(age)} ago" if age is not None else ""
        lines.append(("checkpoint", f"step {found.checkpoint_step}{ago}"))
    if found.save_failure is not None:
        lines.append(("warning", f"saving fails: {found.save_failure}"))
    if found.compiled is not None:
        lines.append(("compile", compiled_text(found.compiled)))
    if found.goodput is not None:
        lines.append(("goodput", goodput_text(found.goodput)))
    if found.spending is not None:
        lines.append(("spent", spending_text(found.spending)))
    lines.append(("folder", found.folder))
    if found.is_script:
        from headway.state.run_directory import OUTPUT

        lines.append(("output", f"{found.folder}/{OUTPUT}"))
    return lines


def _members(
    workers: int, generation: int | None, launch: Launch, there: list[ListedWorker]
) -> list[tuple[str, str]]:
    """Number of workers, and a line for each."""
    from headway.cli.members import worker_label

    nodes = workers // launch.ranks
    mode = f" ({launch.mode})" if launch.mode else ""
    wanted = launch.wanted_nodes
    of = f" on {nodes} of {wanted} nodes" if wanted not in (None, nodes) else ""
    several = "s" if workers > 1 else ""
    lines = [("members", f"{workers} worker{several}{of}{mode}, generation {generation}")]
    if len(there) <= MOST_LISTED:
        for member in there:
            who = worker_label(member.node, member.local_rank, launch.ranks)
            leads = ", leader" if member.leads else ""
            lines.append(("", f"{who}: pid {member.pid}{leads}"))
    return lines


def _happened(
    as_typed: str, events: Sequence[Event], found: RunStatus, launch: Launch
) -> list[tuple[str, str]]:
    """Latest changes of membership, and whether no step completes."""
    from headway.cli.members import change_lines, stuck_reports, stuck_text
    from headway.state.status import SHOWN_CHANGES

    changes = change_lines(events, launch.ranks)[-SHOWN_CHANGES:]
    lines = [
        ("" if index else "changes", f"{time[11:19]}  {words}")
        for index, (time, words) in enumerate(changes)
    ]
    if found.state == "running" and (reports := stuck_reports(events, found.step)):
        lines.append(("warning", stuck_text(reports, as_typed, launch.ranks)))
    return lines
