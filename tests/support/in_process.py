"""What the command line says when it runs in this process: exit code and both streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    exit_code: int
    out: str
    err: str


Headway = Callable[..., Said]
