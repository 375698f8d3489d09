"""A node that compiles, as in a pod: with a folder of its own, and a store that others share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.clock import SystemClock
from headway.errors import Exit
from headway.launch.compiled_code import SETTLED_SECONDS, CompiledCode, machine_kind
from headway.launch.node_run import NodeRun, NodeSettings
from headway.state.run_directory import SPEC, RunDirectory
from headway.state.store import Store
from support.chains import LAUNCH, launched
from support.workers import resolved_run


class LateClock(SystemClock):
    """All files are settled by it."""

    def now(self) -> float:
        return super().now() + SETTLED_SECONDS


class AloneNode(NodeRun):
    """Without the coordinator that a pod has. Its run is too short to keep anything meanwhile."""

    given: Mapping[str, str]
    """Variables that its pod would have."""

    def _coordinator_address(self) -> None:
        return None

    def _keep_compiled(self) -> None:
        pass

    def _environment(self, packages: str | None) -> dict[str, str]:
        return {**super()._environment(packages), **self.given}


class CompilingNode:
    def __init__(
        self, folder: Path, store: Path, run_file: str, sets: Mapping[str, str | Path]
    ) -> None:
        folder.mkdir()
        (folder / "run.yaml").write_text(run_file)
        resolved = resolved_run(folder, sets)
        self.directory = RunDirectory.create(resolved.run_directory, SystemClock())
        self.directory.write_spec(resolved)
        self.lines: list[str] = []
        """What its pod prints."""
        self._compiled = CompiledCode(
            *(Store(store), machine_kind(), b"a key", folder / "cache"),
            *(LateClock(), self.lines.append),
        )
        self.node = AloneNode(
            resolved,
            self.directory,
            NodeSettings(folder.name, 0, LAUNCH, "none", folder / "key"),
            SystemClock(),
            self.lines.append,
            compiled=self._compiled,
        )
        self.node.given = {
            "HEADWAY_SPEC": self.directory.store.location(SPEC),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        }
        self.node.generation = launched(self.directory)

    def trains(self) -> dict[str, Any]:
        """To the end, and keeps what it has compiled. Returns its counters."""
        assert self.node.run() == Exit.DONE, self.lines
        self._compiled._save()
        events = self.directory.events.read()[0]
        (counted,) = [event for event in events if event["event"] == "compiled"]
        return counted

    def numbers(self) -> list[Any]:
        """Losses and norms, and losses of evaluations."""
        steps = [(line["loss"], line["grad_norm"]) for line in self.directory.steps()]
        return [*steps, *(line["loss"] for line in self.directory.evaluations.read()[0])]
