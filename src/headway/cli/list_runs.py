"""headway list: the runs of this folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.options import JsonOption, OnOption
from headway.cli.output import print_json, print_table, say, short_age, short_loss, warn
from headway.clock import seconds_of

if TYPE_CHECKING:
    from headway.launch.job_status import ClusterRunStatus
    from headway.state.run_directory import RunDirectory
    from headway.state.status import RunStatus


COLUMNS = ("NAME", "STATE", "STEP", "LOSS", "HELD-OUT", "CHECKPOINT", "AGE")


def list_runs(on: OnOption = None, json_: JsonOption = False) -> None:
    """List the runs in this folder, or with --on those in the namespace of a target."""
    from headway.clock import SystemClock
    from headway.state import find_run as find
    from headway.state.status import read_status

    if on is not None:
        _list_target(on, json_)
        return
    folder = find.runs_folder(Path.cwd())
    now = SystemClock().now()
    there = find.list_runs(folder, warn)
    found = [read_status(directory, now) for directory in there]
    if json_:
        print_json([status.as_json() for status in found])
        return
    if not found:
        say(f"no runs in {folder}")
        return
    rows = [
        list_row(directory, status, now) for directory, status in zip(there, found, strict=True)
    ]
    print_table(COLUMNS, rows)


def list_row(directory: RunDirectory, status: RunStatus, now: float) -> tuple[str, ...]:
    losses = {name: short_loss(loss) for name, loss in status.evaluations.items()}
    several = ", ".join(f"{name} {loss}" for name, loss in losses.items())
    return (
        status.name,
        status.state,
        f"{status.step}/{status.total_steps or '?'}",
        f"{status.loss:.4f}" if status.loss is not None else "-",
        several if len(losses) > 1 else next(iter(losses.values()), "-"),
        str(status.checkpoint_step or "-"),
        short_age(now - seconds_of(directory.record()["created"])),
    )


def _list_target(on: str, json_: bool) -> None:
    """A few calls to the API server, whatever the size of the runs."""
    from headway.kube.client import KubeClient
    from headway.launch.job_status import cluster_runs
    from headway.spec.load import load_target

    kube = load_target(on, Path.cwd()).target.kube
    client = KubeClient.from_kubeconfig(kube.context, kube.namespace, say)
    found = cluster_runs(client)
    if json_:
        print_json([asdict(run) for run in found])
        return
    if not found:
        say(f"no runs in namespace {kube.namespace}")
        return
    rows = [(run.name, run.state, f"{run.ready}/{run.nodes}", _remark(run, on)) for run in found]
    print_table(("NAME", "STATE", "PODS", ""), rows)


def _remark(run: ClusterRunStatus, on: str) -> str:
    if run.lacks_coordinator:
        return f"no coordinator: headway resume {run.name} --on {on}"
    return run.why or run.accelerators or ""
