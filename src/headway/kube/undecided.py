"""What becomes of a new target: its lines, or what the user has to decide first."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.spec.target_text import TargetLine

FLAGS = ("--context", "--namespace", "--image", "--storage", "--machine", "--queue")


@dataclass(frozen=True)
class Wishes:
    """The flags of `headway target add`."""

    name: str
    context: str | None
    """Of the kubeconfig, given or the current one; None: in a pod."""
    namespace: str
    image: str | None = None
    storage: str | None = None
    machine: str | None = None
    queue: str | None = None
    typed: Mapping[str, str] = field(default_factory=dict)
    """The flags as they were typed, for commands to paste..."""
    settings: tuple[str, ...] = ()
    """... and those of --set."""

    def command(self, more: Mapping[str, str]) -> str:
        """As it was typed, with these flags in place of the same."""
        both = {**self.typed, **more}
        flags = {flag: both[flag] for flag in FLAGS if flag in both}
        words = [word for flag, value in flags.items() for word in (flag, value)]
        settings = [word for one in self.settings for word in ("--set", one)]
        return shlex.join(["headway", "target", "add", self.name, *words, *settings])


@dataclass
class Choice:
    lines: list[TargetLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What to do besides, or to know."""

    def add(self, path: tuple[str, ...], value: Any, comment: str) -> None:
        self.lines.append(TargetLine(path, value, comment))

    def has(self, *path: str) -> bool:
        return any(line.path == path for line in self.lines)


@dataclass(frozen=True)
class Undecided:
    """What the user has to decide."""

    problem: str
    candidates: tuple[tuple[str, str], ...]
    """Flags of each."""
    more: tuple[str, ...] = ()
    """Hints besides."""


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)
