"""headway coordinator: the process that decides which workers are in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.output import say

if TYPE_CHECKING:
    from headway.member.coordinator.record import GenerationRecord

KUBE = "kube:"


def coordinator(
    settings: Annotated[
        Path,
        typer.Option("--settings", metavar="FILE", help="Settings as JSON, written by a launcher."),
    ],
) -> None:
    """Run the membership coordinator until stdin closes (used by launchers)."""
    import asyncio

    from headway.member.coordinator.process import run_coordinator
    from headway.member.coordinator.settings import read_settings

    found = read_settings(settings)
    record = _record(found.record, found.run)
    asyncio.run(run_coordinator(found, record, _print_addresses, _say_with_time))


def _record(place: str, run: str) -> GenerationRecord:
    if place.startswith(KUBE):
        from headway.kube.client import KubeClient
        from headway.kube.config_map_record import KubeRecord

        return KubeRecord(KubeClient.in_cluster(), place.removeprefix(KUBE), run)
    from headway.member.coordinator.record import StoreRecord
    from headway.state.store import Store

    return StoreRecord(Store(place), run)


def _print_addresses(listen: str, http: str | None) -> None:
    print(json.dumps({"listen": listen, "http": http}), flush=True)


def _say_with_time(text: str) -> None:
    from headway.clock import SystemClock, stamp

    say(f"{stamp(SystemClock().now())} {text}")
