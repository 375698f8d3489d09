"""headway coordinator: the process that says who is in a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.output import say

if TYPE_CHECKING:
    from headway.member.records import Record

KUBE = "kube:"


def coordinator(
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="The run's name.")],
    record: Annotated[
        str,
        typer.Option(
            "--record",
            metavar="PLACE",
            help="Where generations are written before they are announced: a folder, s3://, or "
            "kube:NAME for a ConfigMap, in a pod.",
        ),
    ],
    key: Annotated[
        Path,
        typer.Option("--key", metavar="FILE", help="The run's key: `openssl rand -hex 32`."),
    ],
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="For workers. Port 0: any that is free."
        ),
    ] = "127.0.0.1:0",
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="For /state, /history, /metrics and /healthz, to be read by anyone who reaches it."
            " Left out: not served.",
        ),
    ] = None,
    minimum: Annotated[
        int, typer.Option("--min", min=1, help="With fewer domains the run saves and waits.")
    ] = 1,
    maximum: Annotated[
        int, typer.Option("--max", min=1, help="More pods than these domains need are spares.")
    ] = 1,
    first: Annotated[
        int,
        typer.Option(
            "--first", min=0, help="So many domains begin without waiting for more. 0: --max."
        ),
    ] = 0,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            metavar="NUMBER",
            min=0,
            help="All members of before have ended: go on with generations behind this one.",
        ),
    ] = None,
    domain_pods: Annotated[
        int, typer.Option("--domain-pods", min=1, help="Pods that hold one copy of the model.")
    ] = 1,
    node_pods: Annotated[
        int,
        typer.Option(
            "--node-pods",
            min=1,
            help="Pods of one node, by names NODE/RANK: domains are then made of whole nodes.",
        ),
    ] = 1,
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="FILE", help="Certificate (PEM), for TLS sessions."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key.")
    ] = None,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", help="End when stdin ends, as with a launcher.")
    ] = False,
) -> None:
    """Say who is in a run: workers keep a session with it. Launchers start it; you need not."""
    import asyncio
    import json

    from headway.errors import BadInput
    from headway.member.keys import read_key
    from headway.member.messages import MAX_PODS, MAX_RUN
    from headway.member.process import Settings, address_of, bound, run_coordinator
    from headway.member.rules import Rules
    from headway.member.wire import require_name

    require_name(run, MAX_RUN)
    if not minimum <= maximum:
        raise BadInput(f"--min {minimum} is more than --max {maximum}")
    if maximum * domain_pods > MAX_PODS:
        raise BadInput(f"--max {maximum} domains of {domain_pods}: at most {MAX_PODS} pods")
    if domain_pods % node_pods:
        raise BadInput(
            f"--domain-pods {domain_pods} is no multiple of --node-pods {node_pods}",
            "a domain is one whole node, or several",
        )
    if (tls_cert is None) != (tls_key is None):
        raise BadInput("--tls-cert and --tls-key belong together")
    settings = Settings(
        run=run,
        key=read_key(key),
        record=_record(record, run),
        rules=Rules(
            min_domains=minimum,
            max_domains=maximum,
            first_domains=first,
            domain_pods=domain_pods,
            node_pods=node_pods,
        ),
        tls=(tls_cert, tls_key) if tls_cert and tls_key else None,
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


def _record(place: str, run: str) -> Record:
    if place.startswith(KUBE):
        from headway.kube.client import Kube
        from headway.kube.record import KubeRecord

        return KubeRecord(Kube.inside(), place.removeprefix(KUBE), run)
    from headway.member.records import StoreRecord
    from headway.state.store import Store

    return StoreRecord(Store(place), run)


def _say_with_time(text: str) -> None:
    from headway.clock import SystemClock, stamp

    say(f"{stamp(SystemClock().now())} {text}")
