"""What runs have uploaded to a target, removed with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headway.cli.output import hint, say, short_bytes, warn
from headway.cli.target_run import TargetRun
from headway.clock import SystemClock
from headway.errors import HeadwayError
from headway.launch.data_run import DataRun, prepared_folders
from headway.launch.storage_prune import folders_of, last_use, last_used_by, removed_folders
from headway.launch.storage_use import StoredFolder, launched_specs
from headway.state.run_directory import RunDirectory
from headway.state.store import Store

OTHERS = (
    "another launch has used it since; if no run needs it, headway target prune removes it after "
    "7 days"
)


@dataclass(frozen=True)
class Uploads:
    """Of some runs of one target."""

    runs: Sequence[TargetRun]
    folders: Sequence[StoredFolder]
    """What no other run names."""
    preparations: Mapping[str, str]
    """Preparations of such sets that the cluster still knows, and their folders."""
    left_of: frozenset[str]
    """Names of runs that have used a folder last which no run names."""

    def in_words(self) -> str | None:
        """None if there is nothing."""
        if not self.folders:
            return None
        kinds = ", ".join(dict.fromkeys(one.kind for one in self.folders))
        kinds = " and ".join(kinds.rsplit(", ", 1))
        return f"what no other run of {self._on} uses ({kinds}: {together(self.folders)})"

    @property
    def _on(self) -> str:
        return self.runs[0].on

    def remove(self) -> None:
        """After their runs are deleted."""
        try:
            self._remove()
        except (HeadwayError, OSError) as error:
            why = error.message if isinstance(error, HeadwayError) else str(error)
            warn(f"what was uploaded for it to {self._on} is still there: {why}")
            names = " ".join(run.name for run in self.runs)
            hint(f"to try again: headway delete {names} --on {self._on} --uploaded")

    def _remove(self) -> None:
        first, clock = self.runs[0], SystemClock()
        storage, names = Store(first.storage), [run.name for run in self.runs]

        def launched() -> Mapping[str, str]:
            return launched_specs(first.kube, self._on)

        may_go = last_used_by(storage, [*names, *self.preparations], clock)
        going = {one.name for one in self.folders if may_go(one)}
        for name, folder in self.preparations.items():
            if folder in going:
                DataRun(first.kube, name, self._on, clock).end()
        for one, is_gone in removed_folders(storage, self.folders, launched, clock, may_go):
            say(f"removed {one.name}" if is_gone else f"kept {one.name}: {OTHERS}")


def uploads_of(runs: Sequence[TargetRun]) -> Uploads:
    """Of runs that are still there, or of which only that is left. `runs` are on one target."""
    first, names = runs[0], [run.name for run in runs]
    storage = Store(first.storage)
    launched = launched_specs(first.kube, first.on)
    own = {run.name: f"{_spec(run)}{launched.get(run.name, '')}" for run in runs}
    prepared = {name: f"sets/{folder}" for name, folder in prepared_folders(first.kube) if folder}
    folders = folders_of(storage, names, prepared, {**launched, **own})
    prepared = {name: at for name, at in prepared.items() if at in {one.name for one in folders}}
    users = {last_use(storage, one)[1] for one in folders if not {*one.runs} & {*names}}
    return Uploads(runs, folders, prepared, frozenset(filter(None, users)))


def together(folders: Sequence[StoredFolder]) -> str:
    size = short_bytes(sum(each.num_bytes for each in folders))
    return f"{len(folders)} folder{'s' if len(folders) > 1 else ''}, {size}"


def _spec(run: TargetRun) -> str:
    """Its directory may be in another bucket than what it has uploaded."""
    with suppress(HeadwayError, OSError):
        return RunDirectory(run.location).store.read("spec.json").decode(errors="replace")
    return ""
