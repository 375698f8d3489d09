"""headway logs: what workers printed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import OnOption, RunArgument
from headway.cli.output import say

if TYPE_CHECKING:
    from headway.cli.target_run import TargetRun
    from headway.state.run_directory import RunDirectory

FOLLOW_SECONDS = 0.3
WITH_PODS = ("active", "finished", "failed")
"""States of a run on a target whose pods have logs; ended ones are kept for a while."""
ENDED = ("finished", "failed")


def logs(
    run: RunArgument = None,
    node: Annotated[int | None, typer.Option(help="Node, counted from 0.")] = None,
    rank: Annotated[int | None, typer.Option(help="Rank on its node, counted from 0.")] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="All workers; each line starts with the worker.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")
    ] = False,
    on: OnOption = None,
) -> None:
    """Print the log of the worker that failed, else of node 0 rank 0."""
    from headway.cli.target_run import target_run
    from headway.errors import NotFound
    from headway.state.find_run import find_run

    there = target_run(run, on, Path.cwd())
    state = None if there is None else _state(there, follow)
    if there is not None and state in WITH_PODS:
        gone = _print_pods(there, node, rank, all_, follow)
        if gone and state in ENDED and not follow:
            _print_stored(there.directory(), gone, rank, all_)
        return
    directory = find_run(run, Path.cwd()) if there is None else there.directory()
    # Logs that were fetched earlier from another place may have grown since.
    if there is not None or not directory.logs():
        directory.fetch_logs()
    if all_:
        chosen = directory.logs()
    else:
        wanted_node, wanted_rank = _first_to_fail(directory)
        chosen = [
            directory.log(
                wanted_node if node is None else node, wanted_rank if rank is None else rank
            )
        ]
    missing = [path.name for path in chosen if not path.is_file()]
    if missing or not chosen:
        known = ", ".join(path.name for path in directory.logs())
        if not known:
            raise NotFound(f"run {directory.name} has no logs yet")
        raise NotFound(f"run {directory.name} has no log {', '.join(missing)}", f"it has {known}")
    _print(chosen, directory, follow, with_names=len(chosen) > 1)


def _state(run: TargetRun, follow: bool) -> str | None:
    """Of one that has finished, when its pods have said all; None: it has no Job."""
    job = run.cluster.job() if follow else run.cluster.settled_end(say)
    return None if job is None else run.cluster.job_status(job).state


def _print_stored(
    directory: RunDirectory, nodes: Iterable[int], rank: int | None, with_names: bool
) -> None:
    """Of nodes without a pod: a Job that ends deletes those that have not exited by then."""
    directory.fetch_logs()
    wanted = {path for node in nodes for path in directory.logs_of(node)}
    if rank is not None:
        wanted &= {directory.log(node, rank) for node in nodes}
    _print(sorted(wanted), directory, False, with_names or len(wanted) > 1)


def _print_pods(
    run: TargetRun, node: int | None, rank: int | None, all_: bool, follow: bool
) -> list[int]:
    """Prints the logs of pods, which the API server has as long as they exist. Returns the nodes of
    which there were none."""
    from queue import Queue
    from threading import Thread

    from headway.clock import SystemClock
    from headway.launch.cluster_logs import NodeLog

    job = run.cluster.require_job()
    count = run.cluster.job_status(job).nodes
    if node is None:
        node = run.cluster.failed_node() or 0
    indexes = range(count) if all_ else [node]
    # Lines of a node with several ranks start with the rank.
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
    left, silent = len(indexes), set(indexes)
    while left:
        index, line = lines.get()
        if line is None:
            left -= 1
            continue
        silent.discard(index)
        if wanted in line:
            print(f"node-{index}: {line}" if all_ else line, flush=True)
    if follow:
        say("the run has ended")
    return sorted(silent)


def _first_to_fail(directory: RunDirectory) -> tuple[int, int]:
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
        is_running = follow and directory.is_running()
        for path in paths:
            with path.open("rb") as file:
                file.seek(offsets[path])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1] if is_running else data
            offsets[path] += len(whole)
            for line in whole.decode("utf-8", errors="replace").splitlines():
                print(f"{path.stem}: {line}" if with_names else line)
        sys.stdout.flush()
        if not is_running:
            if follow:
                say("the run has ended")
            return
        clock.sleep(FOLLOW_SECONDS)
