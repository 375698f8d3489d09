"""The coordinator's settings: one JSON document, which the launcher writes and the coordinator
reads when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from headway.errors import BadInput, NotFound
from headway.member.coordinator.rules import Rules


@dataclass(frozen=True)
class CoordinatorSettings:
    run: str
    """Name of the run."""
    record: str
    """Place where generations are recorded before they are announced: a folder, s3://, or kube:NAME
    for a ConfigMap (in a pod)."""
    key: str
    """File with the run's key."""
    rules: Rules
    """Numbers of domains and workers, and deadlines."""
    listen: str = "127.0.0.1:0"
    """HOST:PORT for workers. Port 0: any free port."""
    http: str | None = None
    """HOST:PORT of /state, /history, /metrics and /healthz, which anyone who reaches it can read.
    None: they are not served."""
    after: int | None = None
    """If given, all earlier members have ended, and generations continue behind this number."""


def write_settings(settings: CoordinatorSettings, file: Path) -> None:
    file.write_bytes(msgspec.json.encode(settings))


def read_settings(file: Path) -> CoordinatorSettings:
    try:
        return msgspec.json.decode(file.read_bytes(), type=CoordinatorSettings)
    except FileNotFoundError:
        raise NotFound(f"{file}: no such file") from None
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"{file}: cannot be read: {error}") from None
