"""headway list: the runs of this folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from headway.cli.options import JsonOption, OnOption
from headway.cli.output import print_json, print_table, say


def list_runs(on: OnOption = None, json_: JsonOption = False) -> None:
    """List the runs in this folder; with --on, those in the namespace of a target."""
    from headway.clock import SystemClock
    from headway.state import find_run as find
    from headway.state.status import read_status

    if on is not None:
        _list_target(on, json_)
        return
    folder = find.runs_folder(Path.cwd())
    now = SystemClock().now()
    found = [read_status(directory, now) for directory in find.list_runs(folder)]
    if json_:
        print_json([status.as_json() for status in found])
        return
    if not found:
        say(f"no runs in {folder}")
        return
    rows = [
        (
            status.name,
            status.state,
            f"{status.step}/{status.total_steps or '?'}",
            f"{status.loss:.4f}" if status.loss is not None else "-",
            str(status.checkpoint_step or "-"),
        )
        for status in found
    ]
    print_table(("NAME", "STATE", "STEP", "LOSS", "CHECKPOINT"), rows)


def _list_target(on: str, json_: bool) -> None:
    """One call to the API server, whatever the size of the runs."""
    from headway.clock import SystemClock
    from headway.kube.client import KubeClient
    from headway.launch.cluster_run import cluster_runs
    from headway.spec.load import load_target

    kube = load_target(on, Path.cwd()).target.kube
    found = list(
        cluster_runs(KubeClient.from_kubeconfig(kube.context, kube.namespace), SystemClock())
    )
    if json_:
        print_json([asdict(run) for run in found])
        return
    if not found:
        say(f"no runs in namespace {kube.namespace}")
        return
    rows = [(run.name, run.state, f"{run.ready}/{run.nodes}", run.why or "") for run in found]
    print_table(("NAME", "STATE", "PODS", ""), rows)
