"""A node that compiles, as in a pod: with a folder of its own, on a storage that others share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.clock import SystemClock
from headway.errors import Exit
from headway.launch.compile_cache import CompileCache
from headway.launch.compile_identity import compile_identity
from headway.launch.node_run import NodeRun, NodeSettings
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from support.chains import LAUNCH, launched
from support.workers import resolved_run


class AloneNode(NodeRun):
    """Without the coordinator that a pod has."""

    def _coordinator_address(self) -> None:
        return None


class CompilingNode:
    def __init__(
        self, folder: Path, storage: Path, run_file: str, sets: Mapping[str, str | Path]
    ) -> None:
        folder.mkdir()
        (folder / "run.yaml").write_text(run_file)
        resolved = resolved_run(folder, sets)
        self.directory = RunDirectory.create(resolved.run_directory, SystemClock())
        self.directory.write_spec(resolved)
        self.lines: list[str] = []
        """What its pod prints."""
        cache = CompileCache(
            Store(storage),
            compile_identity(resolved),
            b"a key",
            folder / "cache",
            SystemClock(),
            self.lines.append,
        )
        self.node = AloneNode(
            resolved,
            self.directory,
            NodeSettings(folder.name, 0, LAUNCH, "none", folder / "key"),
            SystemClock(),
            self.lines.append,
            compile_cache=cache,
        )
        self.node.generation = launched(self.directory)

    def trains(self) -> dict[str, Any]:
        """To the end; its counters."""
        assert self.node.run() == Exit.DONE, self.lines
        events = self.directory.events.read()[0]
        (counted,) = [event for event in events if event["event"] == "compiled"]
        return counted

    def numbers(self) -> list[Any]:
        """Losses and norms, and losses of evaluations."""
        steps = [(line["loss"], line["grad_norm"]) for line in self.directory.steps()]
        return [*steps, *(line["loss"] for line in self.directory.evaluations.read()[0])]
