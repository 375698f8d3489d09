"""The members of a run in words, from its history.

In events a worker has a name for programs: `node-1.2/0` is rank 0 of node 1, started for the second
time; on Kubernetes the pod's name is in the place of `node-1`. People read "node 1", and the rank
where a node has several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.state.lines import Record
from headway.state.rundir import RunDirectory

NAME = re.compile(r"\b(?:node|headway-[-a-z0-9]+)-(\d+)(?:-[a-z0-9]{5})?\.\d+/(\d+)")

Event = Mapping[str, Any]


class Look(RunDirectory):
    """A run at one moment: what has happened is read once, whoever asks."""

    _history: list[Record] | None = None

    def history(self) -> list[Record]:
        if self._history is None:
            self._history = super().history()
        return self._history


@dataclass(frozen=True)
class Start:
    """What the launcher has noted of the newest start of a run."""

    mode: str | None = None
    """`live` or `restart`."""
    ranks: int = 1
    """Workers of a node."""
    wanted_nodes: int | None = None
    """Of `--nodes`, then of `headway scale`."""
    pids: Mapping[str, int] = field(default_factory=dict)
    """Of all workers that were started, by name; a later one in the same place comes later."""


@dataclass(frozen=True)
class Member:
    name: str
    node: int
    local_rank: int
    pid: int | None
    leads: bool


def newest_start(events: Sequence[Event]) -> Start:
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
    return Start(mode, ranks, wanted, pids)


def members(directory: RunDirectory, start: Start) -> list[Member]:
    """By node. With `live` as the coordinator has them, which may be a moment ahead of training.
    Empty for an object store, where it would be two more requests."""
    if start.mode == "restart":
        names, leader = list(start.pids), "node-0"
    elif start.mode == "live" and directory.store.is_local:
        names, leader = _recorded(directory)
    else:
        return []
    found = {}
    for name in names:
        if place := NAME.match(name):
            node, rank = int(place[1]), int(place[2])
            leads = rank == 0 and name.startswith(f"{leader}.")
            found[node, rank] = Member(name, node, rank, start.pids.get(name), leads)
    return [found[place] for place in sorted(found)]


def _recorded(directory: RunDirectory) -> tuple[list[str], str]:
    """By the coordinator: names of workers, and the node that leads."""
    from headway.errors import HeadwayError
    from headway.member.records import StoreRecord
    from headway.state.store import Store

    record = StoreRecord(Store(directory.store.location("members")), directory.name)
    try:
        newest = record.read().generation
    except (OSError, HeadwayError):
        return [], ""  # `status` shows the rest
    # Without what tells a process from the one before it in the same place.
    names = [found[0] for pod in newest.pods() if (found := NAME.match(pod))]
    leaders = newest.domains[newest.leader].pods if newest.domains else ("",)
    return names, leaders[0].partition(".")[0]


def in_words(text: str, ranks: int) -> str:
    """A text with the names of workers as people say them."""
    return NAME.sub(lambda found: place_in_words(int(found[1]), int(found[2]), ranks), text)


def place_in_words(node: int, local_rank: int, ranks: int) -> str:
    return f"node {node} rank {local_rank}" if ranks > 1 else f"node {node}"


def change_in_words(change: Event, before: int | None, ranks: int) -> str:
    """`before`: workers before it."""
    workers, reason = change["workers"], in_words(change["reason"], ranks)
    go_on = f"{workers} workers go on" if workers > 1 else "1 worker goes on"
    if before is not None and workers >= before and " is lost" in reason:
        go_on += ", a new one among them"
    again = ", one step taken again" if change["discarded"] else ""
    return f"{reason}; {go_on} ({change['seconds']:.1f} s{again})"


def changes_in_words(events: Sequence[Event], ranks: int) -> list[tuple[str, str]]:
    """All of them, with their times."""
    lines, before = [], None
    for event in events:
        if event["event"] == "changed":
            lines.append((event["time"], change_in_words(event, before, ranks)))
        if event["event"] in ("started", "changed"):
            before = event["workers"]
    return lines


def stuck_reports(events: Sequence[Event], step: int) -> list[Event]:
    """Of workers that see no step being committed, if that is so: `step` is the newest one."""
    reports: list[Event] = []
    for event in events:
        if event["event"] in ("launched", "started", "changed"):
            reports = []
        elif event["event"] == "stuck":
            reports.append(event)
    return [report for report in reports if report["step"] >= step]


def stuck_in_words(reports: Sequence[Event], run: str, ranks: int) -> str:
    """What several workers report at about the same time, and where to look."""
    seconds = max(report["seconds"] for report in reports)
    said = f"no step for {seconds} s after step {reports[-1]['step']}; "
    places = {(r["node"], r["local_rank"]) for r in reports if r["waits"] is False}
    if len(places) != 1:
        return f"{said}what workers do: headway logs {run} --all"
    ((node, rank),) = places
    who = place_in_words(node, rank, ranks)
    return f"{said}{who} waits for nobody: headway logs {run} --node {node} --rank {rank}"
