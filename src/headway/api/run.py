"""Runs that exist: what `headway status`, `events`, `list` and `generate` read."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.api.tables import GeneratedText, Rows, html_facts, html_table
from headway.cli.list_runs import COLUMNS, list_row
from headway.cli.script_refusal import refuse_generate
from headway.cli.status import read_here, status_lines
from headway.cli.target_run import directory_of
from headway.clock import SystemClock
from headway.errors import needs_train
from headway.state import find_run as find
from headway.state.rewinds import apply_rewinds

if TYPE_CHECKING:
    from pandas import DataFrame

    from headway.state.record_log import Log
    from headway.state.run_directory import RunDirectory
    from headway.state.status import RunStatus


class Run:
    """One run, running or ended. Every call reads what there is now."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    @property
    def name(self) -> str:
        return self._directory.name

    @property
    def location(self) -> str:
        """Folder or address of the run directory."""
        return self._directory.location

    def status(self) -> RunStatus:
        return read_here(self.location).status

    def metrics(self) -> DataFrame | Rows:
        """Each committed step once. A DataFrame if pandas is installed, else a list of rows."""
        return _table(self._directory.metrics)

    def evaluations(self) -> DataFrame | Rows:
        """Losses of the validation sets, a row for each set and evaluation."""
        return _table(self._directory.evaluations)

    def samples(self) -> DataFrame | Rows:
        """Continuations of `evaluation.prompts`, a row for each prompt and evaluation."""
        return _table(self._directory.samples)

    def events(self) -> Rows:
        """What happened: starts, lost workers, checkpoints."""
        return Rows(self._directory.history())

    def generate(
        self,
        prompt: str,
        *,
        step: int | None = None,
        max_tokens: int = 100,
        temperature: float = 0.8,
        top_k: int = 50,
        seed: int = 0,
    ) -> GeneratedText:
        """The prompt and its continuation, by the newest checkpoint or that of `step`."""
        refuse_generate(self._directory)
        try:
            from headway.train.generate import generate
        except ImportError as error:
            raise needs_train("generate", error) from None
        pieces = generate(
            self._directory,
            step,
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            seed=seed,
        )
        return GeneratedText("".join(pieces))

    def __repr__(self) -> str:
        return f"<headway run {self.name} in {self.location}>"

    def _repr_html_(self) -> str:
        return html_facts(status_lines(read_here(self.location)))


class Runs(list[Run]):
    """The runs of a folder."""

    def _repr_html_(self) -> str:
        now = SystemClock().now()
        rows = (list_row(run._directory, run.status(), now) for run in self)
        return html_table([name.lower() for name in COLUMNS], rows)


def runs(folder: str | Path = ".") -> Runs:
    """The runs of a folder, as `headway list` shows them."""
    location = find.runs_folder(Path(folder).resolve())
    return Runs(Run(directory) for directory in find.list_runs(location))


def open_run(run: str | Path | None = None, *, on: str | None = None) -> Run:
    """A run by its name, its folder or its address; without one, that of ./run.yaml. `on`: the
    target that it runs on."""
    reference = None if run is None else str(run)
    return Run(directory_of(reference, on, Path.cwd()))


def _table(log: Log) -> Any:
    rows = Rows(apply_rewinds(log.read()[0]))
    if importlib.util.find_spec("pandas") is None:
        return rows
    from pandas import DataFrame

    return DataFrame(rows)
