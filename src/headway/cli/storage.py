"""headway storage: what runs have uploaded to a target."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.command_group import ExampleCommand, plain_app
from headway.cli.options import JsonOption
from headway.cli.output import print_json, print_table, say, short_bytes

if TYPE_CHECKING:
    from headway.kube.client import KubeClient

COLUMNS = ("KIND", "DIGEST", "FILES", "SIZE", "RUNS")
INCOMPLETE = "(incomplete)"

app = plain_app(help="Look at what runs have uploaded to a target.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command(
    "list",
    cls=ExampleCommand,
    epilog="headway storage list --on lab\nheadway storage list --on lab --json",
)
def list_(
    on: Annotated[str, typer.Option("--on", metavar="TARGET", help="Target with the storage.")],
    json_: JsonOption = False,
) -> None:
    """List the sets, code and models in the storage of a target, and the runs that name them."""
    from headway.cli.target_run import TargetRun, end_claim_pods
    from headway.launch.storage_use import stored_folders
    from headway.spec.load import load_target
    from headway.state.store import Store

    folder = Path.cwd()
    target = TargetRun("", on, load_target(on, folder).target, folder)
    launched = _launched(target.kube, on)
    try:
        found = stored_folders(Store(target.storage), launched)
    finally:
        end_claim_pods()
    if json_:
        print_json([asdict(each) for each in found])
        return
    if not found:
        say(f"nothing is uploaded to the storage of {on}")
        return
    rows = [
        (
            each.kind,
            each.digest,
            str(each.num_files),
            short_bytes(each.num_bytes),
            ", ".join(each.runs) or ("-" if each.is_whole else INCOMPLETE),
        )
        for each in found
    ]
    print_table(COLUMNS, rows)


def _launched(kube: KubeClient, target: str) -> dict[str, str]:
    """Resolved runs by name: one that waits in a queue has nothing in the storage yet. Raises if
    one cannot be read: what it names would be listed as unused."""
    from headway.errors import NotFound
    from headway.kube.pod_status import spec_config_map_name
    from headway.launch.job_status import jobs_of_runs

    found = {}
    for run, job in jobs_of_runs(kube):
        name = spec_config_map_name(job)
        config_map = kube.config_map(name) if name is not None else None
        if config_map is None or not config_map.data:
            raise NotFound(
                f"what run {run} uses is not known: ConfigMap {name or 'of its Job'} is not in "
                f"namespace {kube.namespace}",
                "if it is being launched or deleted, list again in a few seconds; else what is "
                f"wrong with it: headway status {run} --on {target}",
            )
        found[run] = config_map.data["spec.json"]
    return found
