"""A run on a target, found by --on or by where it was last started."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from headway.cli.output import say, warn

if TYPE_CHECKING:
    from headway.kube.client import KubeClient
    from headway.launch.claim_pod import ClaimPod
    from headway.launch.cluster_run import ClusterRun
    from headway.spec.load import Loaded
    from headway.spec.target_file import Target
    from headway.state.run_directory import RunDirectory

RUNS = "runs"
SUFFIX = ".on"


@dataclass(frozen=True)
class TargetRun:
    name: str
    on: str
    """Name of the target."""
    target: Target
    folder: Path
    """Folder of the run file, where targets are looked up."""
    bucket: str | None = None
    """Parent of its directory, if the run file itself names one."""
    claim_seconds: float | None = None
    """Time limit for the pod that serves the target's claim to start; None: that of an upload."""

    @cached_property
    def kube(self) -> KubeClient:
        from headway.kube.client import KubeClient
        from headway.kube.versions import VersionWatch

        kube = self.target.kube
        made = KubeClient.from_kubeconfig(kube.context, kube.namespace, say)
        made.on_answer = VersionWatch(warn).look
        return made

    @cached_property
    def cluster(self) -> ClusterRun:
        from headway.clock import SystemClock
        from headway.launch.cluster_run import ClusterRun

        return ClusterRun(self.kube, self.name, self.on, SystemClock())

    @property
    def shell_command(self) -> str:
        """Command for a shell in a worker's pod, which kubectl chooses."""
        from headway.kube.kubeconfig import used_context
        from headway.kube.names import run_object

        context = used_context(self.target.kube.context)
        where = ["-n", self.kube.namespace, *(["--context", context] if context else [])]
        pod = [f"job/{run_object(self.name)}", "-c", "worker"]
        return shlex.join(["kubectl", "exec", "-it", *where, *pod, "--", "sh"])

    @property
    def storage(self) -> str:
        """Address of its storage from this machine; `kube.storage_layout` has that of pods."""
        from headway.errors import NotFound

        storage = self.target.storage
        if storage is None:
            if self.bucket is not None:
                return self.bucket
            raise NotFound(
                f"the storage of run {self.name} is not known: target {self.on} names none",
                f"name the run by its address: s3://BUCKET/PREFIX/{self.name}",
            )
        if storage.url is not None:
            return storage.url.rstrip("/")
        serve_claims(self.folder, self.claim_seconds)
        return f"claim://{self.on}"

    @property
    def location(self) -> str:
        """Address of its directory from this machine."""
        return f"{self.bucket or f'{self.storage}/{RUNS}'}/{self.name}"

    def require_same_version(self) -> None:
        """Raises if another version of Headway has launched it."""
        from headway.kube.versions import require_makers_version

        require_makers_version(self.cluster.require_job(), self.name, self.on)

    def require_scalable(self, nodes: int) -> None:
        """Raises if the run, as it was launched, cannot have this number of nodes."""
        from headway.errors import BadInput
        from headway.spec.resolve import copies_problem, whole_copies

        resolved = self.cluster.launched_as()
        if resolved is None:
            return
        if problem := copies_problem(resolved.shard, nodes):
            fewer = whole_copies(resolved.shard, nodes)
            raise BadInput(problem, f"headway scale {self.name} --on {self.on} --nodes {fewer}")
        wanted = resolved.run.resources.nodes
        if wanted.minimum < wanted.maximum and not wanted.minimum <= nodes <= wanted.maximum:
            raise BadInput(
                f"{nodes} nodes is outside resources.nodes, {wanted}",
                "stop it, and start it with another range: it resumes where it stopped",
            )

    def directory(self) -> RunDirectory:
        """Reads the storage itself: works even when the run has no objects on the cluster."""
        from headway.state.run_directory import RunDirectory

        return RunDirectory.open(self.location)


def target_run(reference: str | None, on: str | None, folder: Path) -> TargetRun | None:
    """None: the run is on this machine. Its directory is the one recorded when it was started from
    this folder, else the one that the run file in this folder names."""
    from headway.spec.load import RUN_FILE, load_run, load_target
    from headway.spec.resolve import run_name

    if reference is not None and ("/" in reference or (folder / reference).is_dir()):
        return None
    name, bucket = reference, None
    if reference is None and (folder / RUN_FILE).is_file():
        loaded = load_run(folder / RUN_FILE)
        name, bucket = run_name(loaded), bucket_of(loaded)
    if name is None:
        return None
    noted_on, noted_bucket = started_on(folder, name)
    on = on or noted_on
    if on is None:
        return None
    if on == noted_on:
        bucket = noted_bucket
    return TargetRun(name, on, load_target(on, folder).target, folder, bucket)


def bucket_of(loaded: Loaded) -> str | None:
    """Parent of run directories, if the run file names one that is not on this machine."""
    from headway.spec.resolve import runs_location

    location = runs_location(loaded)
    return location if "://" in location else None


def directory_of(reference: str | None, on: str | None, folder: Path) -> RunDirectory:
    """Run directory of a run on this machine or on a target, for reading."""
    from headway.state.find_run import find_run

    there = target_run(reference, on, folder)
    return find_run(reference, folder) if there is None else there.directory()


def started_on(folder: Path, name: str) -> tuple[str | None, str | None]:
    """Target on which the run was last started from this folder, and its `TargetRun.bucket`."""
    try:
        lines = (folder / RUNS / f"{name}{SUFFIX}").read_text().split()
    except FileNotFoundError:
        lines = []
    on, bucket = (*lines, None, None)[:2]
    return on, bucket


def note_started_on(folder: Path, name: str, on: str | None, bucket: str | None = None) -> None:
    """Records the target, for later commands. None: this machine."""
    note = folder / RUNS / f"{name}{SUFFIX}"
    if on is None:
        note.unlink(missing_ok=True)
        return
    note.parent.mkdir(exist_ok=True)
    note.write_text("".join(f"{line}\n" for line in (on, bucket) if line is not None))


def serve_claims(folder: Path, start_seconds: float | None = None) -> None:
    """Lets `claim://TARGET/...` be opened like a bucket: a pod serves it as long as it is used."""
    from headway.kube.claim_files import register

    register(lambda name: _claim_pod(name, folder, start_seconds))


_claim_pods: dict[tuple[str, Path], ClaimPod] = {}
"""One per target: it takes seconds to start, and lasts as long as this process."""
_starting = Lock()
"""Several threads may upload to the same target."""


def _claim_pod(name: str, folder: Path, start_seconds: float | None) -> ClaimPod:
    from headway.cli.new_target import named_target
    from headway.clock import SystemClock
    from headway.kube.client import KubeClient
    from headway.launch.claim_pod import START_SECONDS, ClaimPod

    with _starting:
        if (name, folder) not in _claim_pods:
            target = named_target(name, folder).target
            where = target.kube
            kube = KubeClient.from_kubeconfig(where.context, where.namespace, say)
            seconds = START_SECONDS if start_seconds is None else start_seconds
            pod = ClaimPod(kube, target, SystemClock(), say, seconds)
            _claim_pods[name, folder] = pod.start()
        return _claim_pods[name, folder]


def end_claim_pods() -> None:
    """Ends them: they count against a quota that the run may need."""
    while _claim_pods:
        _claim_pods.popitem()[1].end()
