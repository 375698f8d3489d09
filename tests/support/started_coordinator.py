"""A coordinator as a launcher starts it, with its record and its files in one folder."""

from __future__ import annotations

from pathlib import Path

from headway.clock import Clock
from headway.launch.coordinator_process import CoordinatorProcess, new_key_file
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.settings import CoordinatorSettings

ANY_PORT = "127.0.0.1:0"
ALONE = Rules()


def coordinator_in(
    folder: Path, clock: Clock, rules: Rules = ALONE, *, run: str = "it", http: str | None = None
) -> CoordinatorProcess:
    settings = CoordinatorSettings(
        run=run,
        record=str(folder / "members"),
        key=str(new_key_file(folder)),
        rules=rules,
        http=http,
    )
    return CoordinatorProcess(settings, folder, clock)
