"""A run file: what `headway check` and `headway run` do with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headway.api.run import Run
from headway.api.tables import html_facts
from headway.cli.check import examined, in_words, require_startable
from headway.cli.run import train_here
from headway.errors import BadInput, Exit, Stopped
from headway.spec.load import Loaded, load_run
from headway.spec.resolve import require_complete, run_name
from headway.state.run_directory import RunDirectory


@dataclass(frozen=True)
class CheckedRun:
    """A run file that `run` would accept."""

    facts: dict[str, Any]
    """As `headway check --json` has them."""
    unchecked: list[str]
    """What could not be checked here."""

    def _lines(self) -> list[tuple[str, str]]:
        known = [(key.replace("_", " "), value) for key, value in in_words(self.facts).items()]
        return [*known, *(("not checked", note) for note in self.unchecked)]

    def __repr__(self) -> str:
        return "\n".join(f"{key:<18}{value}" for key, value in self._lines())

    def _repr_html_(self) -> str:
        return html_facts(self._lines())


class RunConfig:
    """A run file as read, with its overrides."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    @property
    def name(self) -> str:
        return run_name(self._loaded)

    def check(self, *, code: bool = False) -> CheckedRun:
        """Raises what `run` would refuse, all of it at once. `code`: also runs one tiny batch
        through your own functions."""
        found, facts = examined(self._loaded, is_here=True, code=code)
        found.raise_problems()
        require_startable(self._loaded, on=None, anyway=True)
        return CheckedRun(facts, found.unchecked)

    def run(self, *, nodes: int | None = None, extend: bool = False) -> Run:
        """Trains on this machine to the end, or resumes the run of this name. An interrupt saves,
        and raises Stopped."""
        if threading.current_thread() is not threading.main_thread():
            raise BadInput(
                "run() was called from another thread than the main one, which alone is told of "
                "Ctrl-C",
                "call it from the main thread, or start `headway run` as a process",
            )
        require_complete(self._loaded)
        location, code = train_here(self._loaded, nodes, extend)
        run = Run(RunDirectory.open(location))
        if code == Exit.STOPPED:
            raise Stopped(f"run {run.name} stopped at step {run.status().step}", "run it again")
        return run

    def __repr__(self) -> str:
        return yaml.safe_dump(self._settings(), sort_keys=False)

    def _repr_html_(self) -> str:
        return html_facts((key, json.dumps(value)) for key, value in self._settings().items())

    def _settings(self) -> dict[str, Any]:
        run = self._loaded.run
        return run.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)


def load(
    run_file: str | Path | None = None,
    set: Mapping[str, object] | None = None,
) -> RunConfig:
    """A run file, a folder that holds one, or a preset's name; without one, ./run.yaml. `set`:
    keys to override, as with --set: `{"train_for": "10 steps"}`."""
    overrides = [
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in (set or {}).items()
    ]
    return RunConfig(load_run(run_file, overrides))
