"""What probes answer, as `kube/probe.py` and `headway probe` write it in JSON. A probe in the
workers' image cannot import this: a test compares the two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from headway.errors import BadInput

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ProbeFacts:
    """Of `facts`."""

    python: str
    machine: str
    torch: str | None
    headway: str | None
    lacking: list[str]
    """What keeps Headway from being brought into the image."""
    nvidia: int
    """Devices in /dev..."""
    nvidia_driver: int
    """... and in the driver's own list."""
    amd: int
    fabric: int
    """Devices of a network that collectives use without the kernel: EFA, InfiniBand."""
    nccl_plugin_error: str | None
    user: int
    time: float


@dataclass(frozen=True)
class NameAnswer:
    """Of `resolve`."""

    milliseconds: list[float]
    addresses: list[str]
    error: str | None
    servers: list[str]


@dataclass(frozen=True)
class PortAnswer:
    port: int
    milliseconds: float | None
    error: str | None


@dataclass(frozen=True)
class SendAnswer:
    """Of `send`."""

    num_bytes: int
    seconds: float
    error: str | None

    @property
    def gigabits(self) -> float:
        """A second."""
        return 8e-9 * self.num_bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class WriteAnswer:
    """Of `claim-write` and `bucket-write`."""

    steps: dict[str, str | None]
    """What was tried, in order, and why it failed; nothing is tried after that."""
    num_bytes: int
    seconds: float
    sha256: str
    owner: str | None = None
    mode: str | None = None

    @property
    def problem(self) -> tuple[str, str] | None:
        """The step that failed, and why."""
        return next(((step, why) for step, why in self.steps.items() if why is not None), None)


@dataclass(frozen=True)
class ReadAnswer:
    """Of `claim-read` and `bucket-read`."""

    waited: float
    num_bytes: int
    seconds: float
    error: str | None


@dataclass(frozen=True)
class CreateAnswer:
    """Of `claim-create` and `bucket-create`: whether it was the first, by way of creating."""

    first: dict[str, bool]
    error: str | None


@dataclass(frozen=True)
class RegionAnswer:
    """Of `bucket-region`."""

    region: str | None
    endpoint: str
    error: str | None


@dataclass(frozen=True)
class RightsAnswer:
    """Of `rights`."""

    missing: list[int]
    """Indices of those that were asked for."""
    error: str | None


def parsed(kind: type[Answer], content: Mapping[str, Any]) -> Answer:
    """Ignores what a newer probe says besides. Raises BadInput if something is missing."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{name: value for name, value in content.items() if name in known})
    except TypeError:
        raise BadInput(f"a probe answers something else: {json.dumps(dict(content))}") from None


def port_answers(content: Mapping[str, Any]) -> list[PortAnswer]:
    return [parsed(PortAnswer, one) for one in content["ports"]]
