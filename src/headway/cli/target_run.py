"""A run on a target, as commands find it: by --on, or where it was started last."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.output import say

if TYPE_CHECKING:
    from headway.kube.client import Kube
    from headway.launch.claim_pod import ClaimPod
    from headway.launch.cluster import ClusterRun
    from headway.spec.target import Target
    from headway.state.rundir import RunDirectory

RUNS = "runs"
SUFFIX = ".on"


@dataclass(frozen=True)
class TargetRun:
    name: str
    on: str
    """Name of the target."""
    target: Target
    folder: Path
    """Of the run file, where targets are looked for."""

    @cached_property
    def kube(self) -> Kube:
        from headway.kube.client import Kube

        return Kube.at(self.target.kube.context, self.target.kube.namespace)

    @cached_property
    def cluster(self) -> ClusterRun:
        from headway.clock import SystemClock
        from headway.launch.cluster import ClusterRun

        return ClusterRun(self.kube, self.name, SystemClock())

    @property
    def storage(self) -> str:
        """Address of the target's storage from here."""
        storage = self.target.storage
        assert storage is not None
        if storage.url is not None:
            return storage.url.rstrip("/")
        serve_claims(self.folder)
        return f"claim://{self.on}"

    def require_scalable(self, nodes: int) -> None:
        """To so many nodes, as the run was launched."""
        from headway.errors import BadInput
        from headway.kube.names import run_object
        from headway.spec.resolve import Resolved

        found = self.kube.config_map(run_object(self.name))
        if found is None or not found.data:
            return
        resolved = Resolved.model_validate_json(found.data["spec.json"])
        if not resolved.is_live and nodes > 1:
            raise BadInput(f"run {self.name} starts anew when its nodes change: it stays at one")
        wanted = resolved.run.resources.nodes
        if wanted.minimum < wanted.maximum and not wanted.minimum <= nodes <= wanted.maximum:
            raise BadInput(
                f"{nodes} nodes are not within resources.nodes, {wanted}",
                "stop it, and start it with another range: it goes on from where it was",
            )

    def directory(self) -> RunDirectory:
        """Read from the storage itself: also when nothing of the run is left on the cluster."""
        from headway.state.rundir import RunDirectory

        return RunDirectory.open(f"{self.storage}/{RUNS}/{self.name}")


def target_run(reference: str | None, on: str | None, folder: Path) -> TargetRun | None:
    """None: it is a run on this machine."""
    from headway.spec.load import RUN_FILE, load_run, load_target
    from headway.spec.resolve import run_name

    if reference is not None and ("/" in reference or (folder / reference).is_dir()):
        name = None
    else:
        is_here = reference is None and (folder / RUN_FILE).is_file()
        name = run_name(load_run(folder / RUN_FILE)) if is_here else reference
    if name is None:
        return None
    on = on or started_on(folder, name)
    if on is None:
        return None
    return TargetRun(name, on, load_target(on, folder).target, folder)


def directory_of(reference: str | None, on: str | None, folder: Path) -> RunDirectory:
    """Of a run here or on a target, to be read."""
    from headway.state.find import find_run

    there = target_run(reference, on, folder)
    return find_run(reference, folder) if there is None else there.directory()


def started_on(folder: Path, name: str) -> str | None:
    """The target on which the run was started last from this folder."""
    try:
        return (folder / RUNS / f"{name}{SUFFIX}").read_text().strip() or None
    except FileNotFoundError:
        return None


def note_started_on(folder: Path, name: str, on: str | None) -> None:
    """None: on this machine."""
    note = folder / RUNS / f"{name}{SUFFIX}"
    if on is None:
        note.unlink(missing_ok=True)
        return
    note.parent.mkdir(exist_ok=True)
    note.write_text(f"{on}\n")


def serve_claims(folder: Path) -> None:
    """Lets `claim://TARGET/...` be opened like a bucket: a pod serves it as long as it is used."""
    from headway.kube.claim import register

    register(lambda name: _claim_pod(name, folder))


@cache
def _claim_pod(name: str, folder: Path) -> ClaimPod:
    """One for each target: it takes seconds to start, and lasts as long as this process."""
    from headway.clock import SystemClock
    from headway.kube.client import Kube
    from headway.launch.claim_pod import ClaimPod
    from headway.spec.load import load_target

    target = load_target(name, folder).target
    kube = Kube.at(target.kube.context, target.kube.namespace)
    return ClaimPod(kube, target, SystemClock(), say).start()
