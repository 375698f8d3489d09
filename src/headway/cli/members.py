"""The workers of a run and what happened to them, as people read it, from its history.

In events a worker has a name for programs: `node-1.2/0` is rank 0 of node 1, started for the second
time; on Kubernetes the pod's name is in the place of `node-1`. People read "node 1", and the rank
where a node has several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.member.protocol.identity import WorkerIdentity, parse, replace_names, without_tokens
from headway.state.run_directory import RunDirectory

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Launch:
    """The newest launch of a run, as its launcher recorded it."""

    mode: str | None = None
    """`live` or `restart`."""
    ranks: int = 1
    """Workers on each node."""
    wanted_nodes: int | None = None
    """Nodes asked for by `--nodes`, then by `headway scale`."""
    pids: Mapping[str, int] = field(default_factory=dict)
    """Process ids by worker name; of workers with the same rank the newest is last."""


@dataclass(frozen=True)
class ListedWorker:
    name: str
    node: int
    local_rank: int
    pid: int | None
    leads: bool


def newest_launch(events: Sequence[Event]) -> Launch:
    mode, ranks, wanted, pids = None, 1, None, dict[str, int]()
    for event in events:
        match event["event"]:
            case "launched":
                mode, wanted, pids = event.get("mode"), event.get("nodes"), {}
                ranks = event["workers"] // wanted if wanted else 1
            case "scaled":
                wanted = event["nodes"]
            case "worker" if "name" in event:
                pids[event["name"]] = event["pid"]
    return Launch(mode, ranks, wanted, pids)


def members(directory: RunDirectory, launch: Launch) -> list[ListedWorker]:
    """Workers in the order of nodes. For `live`, those in the coordinator's record, which may be a
    moment ahead of training. Empty for an object store: it would cost two more requests."""
    if launch.mode in ("restart", "script"):
        names, leader = [name for name in launch.pids if _is_wanted(name, launch)], "node-0"
    elif launch.mode == "live" and directory.store.is_local:
        names, leader = _recorded(directory)
    else:
        return []
    found = {}
    for name in names:
        worker = parse(name)
        node, rank = worker.node_index, worker.local_rank
        if node is not None:
            leads = rank == 0 and worker.node == leader
            found[node, rank] = ListedWorker(name, node, rank, launch.pids.get(name), leads)
    return [found[place] for place in sorted(found)]


def _is_wanted(name: str, launch: Launch) -> bool:
    """Whether its node has not left since."""
    node = parse(name).node_index
    return node is None or launch.wanted_nodes is None or node < launch.wanted_nodes


def _recorded(directory: RunDirectory) -> tuple[list[str], str]:
    """Names of workers and of the leading node, from the coordinator's record."""
    from headway.errors import HeadwayError
    from headway.member.coordinator.record import StoreRecord
    from headway.state.store import Store

    record = StoreRecord(Store(directory.store.location("members")), directory.name)
    try:
        newest = record.read().generation
    except (OSError, HeadwayError):
        return [], ""  # `status` shows the rest
    leaders = newest.domains[newest.leader].workers if newest.domains else ("",)
    return [without_tokens(worker) for worker in newest.workers()], parse(leaders[0]).node


def readable_names(text: str, ranks: int) -> str:
    """A text in which workers are named as people name them."""

    def label(worker: WorkerIdentity) -> str | None:
        node = worker.node_index
        return None if node is None else worker_label(node, worker.local_rank, ranks)

    return replace_names(text, label)


def worker_label(node: int, local_rank: int, ranks: int) -> str:
    return f"node {node} rank {local_rank}" if ranks > 1 else f"node {node}"


def change_text(change: Event, before: int | None, ranks: int) -> str:
    """`before`: number of workers before the change."""
    workers, reason = change["workers"], readable_names(change["reason"], ranks)
    now = f"{workers} workers continue" if workers > 1 else "1 worker continues"
    if before is not None and workers >= before and " is lost" in reason:
        now += ", one of them new"
    again = ", its unfinished step discarded" if change["discarded"] else ""
    return f"{reason}; {now} ({change['seconds']:.1f} s{again})"


def change_lines(events: Sequence[Event], ranks: int) -> list[tuple[str, str]]:
    """Times and texts of all changes."""
    lines, before = [], None
    for event in events:
        if event["event"] == "changed":
            lines.append((event["time"], change_text(event, before, ranks)))
        if event["event"] in ("started", "changed"):
            before = event["workers"]
    return lines


def stuck_reports(events: Sequence[Event], step: int) -> list[Event]:
    """Reports of workers that no step completes, unless one has since: `step` is the newest."""
    reports: list[Event] = []
    for event in events:
        if event["event"] in ("launched", "started", "changed"):
            reports = []
        elif event["event"] == "stuck":
            reports.append(event)
    return [report for report in reports if report["step"] >= step]


def no_progress(report: Event) -> str:
    """Of an event `stuck`. A script that tells no steps is judged by its processor time."""
    if report.get("idle"):
        return f"no processor time used for {report['seconds']} s"
    return f"no step for {report['seconds']} s after step {report['step']}"


def stuck_text(reports: Sequence[Event], run: str, ranks: int) -> str:
    """One text for what several workers report at once, with the command to look closer."""
    longest = max(reports, key=lambda report: float(report["seconds"]))
    said = f"{no_progress(longest)}; "
    places = {(r["node"], r["local_rank"]) for r in reports if r["waits"] is False}
    does = "is not waiting for others"
    if len(places) != 1:
        places, does = _behind(reports), "has begun fewer collectives than others"
    if len(places) != 1:
        return f"{said}see what the workers are doing: headway logs {run} --all"
    ((node, rank),) = places
    who = worker_label(node, rank, ranks)
    return f"{said}{who} {does}: headway logs {run} --node {node} --rank {rank}"


def _behind(reports: Sequence[Event]) -> set[tuple[int, int]]:
    """Nodes and ranks of workers that have enqueued fewer collectives of a group than another."""
    most: dict[str, int] = {}
    for report in reports:
        for group, (enqueued, _) in (report.get("collectives") or {}).items():
            most[group] = max(most.get(group, 0), enqueued)
    return {
        (report["node"], report["local_rank"])
        for report in reports
        for group, (enqueued, _) in (report.get("collectives") or {}).items()
        if enqueued < most[group]
    }
