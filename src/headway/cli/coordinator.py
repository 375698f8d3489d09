"""headway coordinator: the process that decides which workers are in a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.output import say

if TYPE_CHECKING:
    from headway.member.coordinator.record import GenerationRecord

KUBE = "kube:"


def coordinator(
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="The run's name.")],
    record: Annotated[
        str,
        typer.Option(
            "--record",
            metavar="PLACE",
            help="Where generations are recorded before they are announced: a folder, s3://, or "
            "kube:NAME for a ConfigMap (in a pod).",
        ),
    ],
    key: Annotated[
        Path,
        typer.Option(
            "--key", metavar="FILE", help="File with the run's key: `openssl rand -hex 32`."
        ),
    ],
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Address for workers. Port 0: any free port."
        ),
    ] = "127.0.0.1:0",
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Address of /state, /history, /metrics and /healthz, which anyone who reaches it "
            "can read. Default: not served.",
        ),
    ] = None,
    minimum: Annotated[
        int,
        typer.Option(
            "--min", min=1, help="Minimum number of domains: with fewer, the run saves and waits."
        ),
    ] = 1,
    maximum: Annotated[
        int,
        typer.Option("--max", min=1, help="Maximum number of domains: further workers are spares."),
    ] = 1,
    first: Annotated[
        int,
        typer.Option(
            "--first",
            min=0,
            help="Number of domains that start without waiting for more. 0: --max.",
        ),
    ] = 0,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            metavar="NUMBER",
            min=0,
            help="All earlier members have ended: continue with generations after this one.",
        ),
    ] = None,
    domain_workers: Annotated[
        int,
        typer.Option(
            "--domain-pods", min=1, help="Workers of one domain, which hold one copy of the model."
        ),
    ] = 1,
    node_workers: Annotated[
        int,
        typer.Option(
            "--node-pods",
            min=1,
            help="Workers of one node, named NODE/RANK: domains then consist of whole nodes.",
        ),
    ] = 1,
    restarts: Annotated[
        bool,
        typer.Option("--restart", help="Workers end with their generation (elastic: restart)."),
    ] = False,
    newcomer_seconds: Annotated[
        float,
        typer.Option(
            "--newcomers",
            metavar="SECONDS",
            min=0,
            help="With --restart: wait from the first worker that wants to join those at work, "
            "who restart for it.",
        ),
    ] = 1.0,
    alone_seconds: Annotated[
        float | None,
        typer.Option(
            "--alone",
            metavar="SECONDS",
            min=0,
            help="Silence of all members at once after which they are lost: most likely this "
            "process is cut off. Default: 90, with --restart 15.",
        ),
    ] = None,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", help="Exit when stdin closes (used by launchers).")
    ] = False,
) -> None:
    """Run the membership coordinator (used by launchers)."""
    import asyncio
    import json

    from headway.errors import BadInput
    from headway.member.coordinator.process import (
        CoordinatorSettings,
        address_of,
        bound,
        run_coordinator,
    )
    from headway.member.coordinator.rules import ALONE_SECONDS, RESTART_ALONE_SECONDS, Rules
    from headway.member.protocol.handshake import require_name
    from headway.member.protocol.keys import read_key
    from headway.member.protocol.messages import MAX_RUN, MAX_WORKERS

    require_name(run, MAX_RUN)
    if alone_seconds is None:
        alone_seconds = RESTART_ALONE_SECONDS if restarts else ALONE_SECONDS
    if not minimum <= maximum:
        raise BadInput(f"--min {minimum} is more than --max {maximum}")
    if maximum * domain_workers > MAX_WORKERS:
        raise BadInput(
            f"--max {maximum} domains of {domain_workers}: at most {MAX_WORKERS} workers"
        )
    if domain_workers % node_workers:
        raise BadInput(
            f"--domain-pods {domain_workers} is not a multiple of --node-pods {node_workers}",
            "a domain is one or more whole nodes",
        )
    settings = CoordinatorSettings(
        run=run,
        key=read_key(key),
        record=_record(record, run),
        rules=Rules(
            min_domains=minimum,
            max_domains=maximum,
            first_domains=first,
            domain_workers=domain_workers,
            node_workers=node_workers,
            restarts=restarts,
            newcomer_seconds=newcomer_seconds,
            alone_seconds=alone_seconds,
        ),
        after=after,
        until_eof=until_eof,
    )
    listening = bound(listen)
    watching = bound(http) if http else None

    def started(incarnation: int) -> None:
        facts = {
            "run": run,
            "incarnation": incarnation,
            "listen": address_of(listening),
            "http": address_of(watching) if watching else None,
        }
        print(json.dumps(facts), flush=True)

    asyncio.run(run_coordinator(settings, listening, watching, started, _say_with_time))


def _record(place: str, run: str) -> GenerationRecord:
    if place.startswith(KUBE):
        from headway.kube.client import KubeClient
        from headway.kube.config_map_record import KubeRecord

        return KubeRecord(KubeClient.in_cluster(), place.removeprefix(KUBE), run)
    from headway.member.coordinator.record import StoreRecord
    from headway.state.store import Store

    return StoreRecord(Store(place), run)


def _say_with_time(text: str) -> None:
    from headway.clock import SystemClock, stamp

    say(f"{stamp(SystemClock().now())} {text}")
