"""headway logs: what workers printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import OnOption, RunArgument
from headway.cli.output import say

if TYPE_CHECKING:
    from headway.cli.target_run import TargetRun
    from headway.state.rundir import RunDirectory

FOLLOW_SECONDS = 0.3


def logs(
    run: RunArgument = None,
    node: Annotated[int | None, typer.Option(help="Node, from 0.")] = None,
    rank: Annotated[int | None, typer.Option(help="Rank on its node, from 0.")] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Every worker, each line with its name.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")
    ] = False,
    on: OnOption = None,
) -> None:
    """Print what the worker that matters printed: the one that failed, else the first."""
    from headway.cli.target_run import target_run
    from headway.errors import NotFound
    from headway.state.find import find_run

    there = target_run(run, on, Path.cwd())
    if there is not None and _has_pods(there):
        _print_pods(there, node, rank, all_, follow)
        return
    directory = find_run(run, Path.cwd()) if there is None else there.directory()
    # What was fetched of a run elsewhere may have grown since.
    if there is not None or not directory.logs():
        directory.fetch_logs()
    if all_:
        chosen = directory.logs()
    else:
        wanted_node, wanted_rank = _worker_that_matters(directory)
        chosen = [
            directory.log(
                wanted_node if node is None else node, wanted_rank if rank is None else rank
            )
        ]
    missing = [path.name for path in chosen if not path.is_file()]
    if missing or not chosen:
        known = ", ".join(path.name for path in directory.logs()) or "no logs yet"
        wanted = ", ".join(missing) or "at all"
        raise NotFound(f"run {directory.name} has no log {wanted}", f"it has {known}")
    _print(chosen, directory, follow, with_names=len(chosen) > 1)


def _has_pods(run: TargetRun) -> bool:
    job = run.cluster.job()
    return job is not None and run.cluster.on_cluster(job).state not in ("suspended", "queued")


def _print_pods(
    run: TargetRun, node: int | None, rank: int | None, all_: bool, follow: bool
) -> None:
    """Of a run whose pods are there: through the API server."""
    from queue import Queue
    from threading import Thread

    from headway.clock import SystemClock
    from headway.launch.cluster_logs import NodeLog

    job = run.cluster.require_job()
    count = run.cluster.on_cluster(job).nodes
    if node is None:
        node = run.cluster.failed_node() or 0
    indexes = range(count) if all_ else [node]
    # Where a node has several ranks, its lines begin with which of them.
    wanted = "" if rank is None else f".rank-{rank}: "
    lines: Queue[tuple[int, str | None]] = Queue()

    def read(index: int) -> None:
        try:
            for line in NodeLog(run.kube, run.name, index, SystemClock()).lines(follow):
                lines.put((index, line))
        finally:
            lines.put((index, None))

    for index in indexes:
        Thread(target=read, args=(index,), daemon=True).start()
    left = len(indexes)
    while left:
        index, line = lines.get()
        if line is None:
            left -= 1
        elif wanted in line:
            print(f"node-{index}: {line}" if all_ else line, flush=True)
    if follow:
        say("the run has ended")


def _worker_that_matters(directory: RunDirectory) -> tuple[int, int]:
    for event in reversed(directory.history()):
        if event["event"] == "failed":
            return event["node"], event["local_rank"]
        if event["event"] == "launched":
            break
    return 0, 0


def _print(paths: list[Path], directory: RunDirectory, follow: bool, with_names: bool) -> None:
    from headway.clock import SystemClock

    clock = SystemClock()
    offsets = dict.fromkeys(paths, 0)
    while True:
        going_on = follow and directory.is_running()
        for path in paths:
            with path.open("rb") as file:
                file.seek(offsets[path])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1] if going_on else data
            offsets[path] += len(whole)
            for line in whole.decode("utf-8", errors="replace").splitlines():
                print(f"{path.stem}: {line}" if with_names else line)
        sys.stdout.flush()
        if not going_on:
            if follow:
                say("the run has ended")
            return
        clock.sleep(FOLLOW_SECONDS)
