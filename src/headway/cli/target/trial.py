"""The run of `headway target check`: two nodes train a tiny model by the way of every run on a
target, and all that was made for it is deleted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from lightkube.resources.core_v1 import Pod

from headway.cli.delete import delete_saved
from headway.cli.event_words import event_lines
from headway.cli.members import readable_names
from headway.cli.output import say, warn
from headway.cli.run_sets import trainable_sets
from headway.cli.target_launch import named_sets, upload_folders, wait_for_end
from headway.cli.target_render import require_complete_target, target_plan
from headway.cli.target_run import TargetRun, end_claim_pods
from headway.cli.uploads import uploads_of
from headway.clock import SystemClock, seconds_of
from headway.data.tiny_stories import write_text
from headway.errors import HeadwayError, RunFailed
from headway.kube.check_lines import RUN, CheckLine, failed, passed, warned
from headway.kube.check_objects import asked_rights, check_objects, timer_name, timer_of
from headway.kube.names import INDEX, Object, labels
from headway.kube.pod_status import pod_name
from headway.kube.storage_layout import LocalFolder
from headway.launch.check_findings import asked_lines, fabric_line, fact_lines, storage_fix
from headway.launch.cluster_run import ClusterRun
from headway.launch.launch_gate import LaunchGate
from headway.launch.target_facts import WRITTEN, TargetFacts, found_facts
from headway.launch.training_wait import NotYetTraining, network_hint, status_when_training
from headway.launch.worker_exit import PROGRESS
from headway.member.protocol.keys import new_key
from headway.spec.load import LoadedTarget, load_run
from headway.state.rewinds import Record
from headway.state.status import newest_event
from headway.state.store import Store

NODES, STEPS = 2, 20
RUN_FILE = """\
version: 1
name: {name}
extends: tiny
train_for: {steps} steps
checkpoint: {{every: {steps} steps}}
resources: {{nodes: {nodes}}}
track: []
"""
LONGER_SECONDS = 180.0
"""Time after its deadline at which what a killed check has left is deleted."""
MOST_PODS = 10
MOST_CHARACTERS = 300
"""Maximum length of the end of a log."""
TROUBLE = ("lost", "changed", "device_failed")
"""Events that no run has in its first steps, if all is well."""
DEVICES_FIX = (
    "if a pod lacks devices that it asked for: pod: {runtime_class: nvidia} in the target, where "
    "kubectl get runtimeclass has it; else the device plugin gives out what is not there"
)
Found = TypeVar("Found")


class TrialRun(ClusterRun):
    """Notes what the coordinator's pod has found: that pod is gone once the run has ended."""

    facts: TargetFacts | None = None

    def coordinators(self) -> list[Pod]:
        pods = super().coordinators()
        self.facts = self.facts or found_facts(pods)
        return pods


class TargetTrial:
    """The check of one target. `folder` is empty, and gets the run file."""

    def __init__(self, found: LoadedTarget, folder: Path, wait_seconds: float) -> None:
        """Raises SpecError if the target itself is wrong."""
        name = f"check-{uuid4().hex[:6]}"
        write_text(folder / "data")
        file = folder / "run.yaml"
        file.write_text(RUN_FILE.format(name=name, steps=STEPS, nodes=NODES))
        self._loaded, self._target = load_run(file), found.target
        require_complete_target(self._loaded, found)
        self._plan = target_plan(self._loaded, found, NODES)
        self._run = TargetRun(
            name, found.name, found.target, Path.cwd(), claim_seconds=wait_seconds
        )
        self._has_stored = self._has_objects = False
        self._wait_seconds = wait_seconds
        self._until = SystemClock().monotonic() + wait_seconds

    def api_lines(self) -> list[CheckLine]:
        """Return what the API server alone answers. Raises HeadwayError if it does not answer at
        all, or does not know the user."""
        kube, objects = self._run.kube, self._plan.objects(new_key())
        version = str(kube.call("GET", "version").get("gitVersion", "of an unknown version"))
        gate = LaunchGate(kube, self._target, self._run.on, objects, NODES, most_calls=sys.maxsize)
        found = gate.by_line(is_new=True)
        user = f", as {gate.user}" if gate.user is not None else ""
        who = f"Kubernetes {version.removeprefix('v')}{user}"
        return asked_lines(found, gate.failures, self._target, who)

    def run_lines(self) -> list[CheckLine]:
        """Launch the run, and return what its coordinator's pod has found and how it ended. All of
        it is deleted by then."""
        kube, name = self._run.kube, self._run.name
        cluster = TrialRun(kube, name, self._run.on, SystemClock())
        try:
            line, machines = self._run_line(cluster), self._machines()
        finally:
            self._remove(cluster)
        rights = asked_rights(name, self._target)
        return [
            *fact_lines(cluster.facts, rights, machines, self._target, self._run.on),
            fabric_line(self._plan.objects(new_key())[0]),
            line,
        ]

    # The run

    def _run_line(self, cluster: TrialRun) -> CheckLine:
        fix = storage_fix(self._target)
        try:
            objects = self._uploaded()
            fix = f"kubectl get pods,events -n {self._run.kube.namespace}, while it is tried again"
            return self._ended(cluster, objects)
        except NotYetTraining as error:
            said = "".join(f"; {words}" for words in self._last_words())
            words = f"after {self._wait_seconds:.0f} s: {error.message}{said}"
            longer = f"headway target check {self._run.on} --wait 15min, if that is all it needs"
            return failed(RUN, words, f"{error.hint or fix}; or {longer}")
        except HeadwayError as error:
            more = f"; {DEVICES_FIX}" if self._plan.resolved.device != "cpu" else ""
            return failed(RUN, error.message, f"{error.hint or fix}{more}")
        except OSError as error:
            return failed(RUN, str(error), fix)

    def _uploaded(self) -> list[Object]:
        """Upload what the run needs, and return its objects."""
        Store(self._run.location).write(WRITTEN, self._run.name.encode())
        self._has_stored = True
        with ExitStack() as nothing_in_the_background:
            sets = trainable_sets(self._loaded, nothing_in_the_background)
        here = [LocalFolder(key, "sets", Path(at)) for key, at in named_sets(sets).items()]
        plan = self._plan.with_sets(here, {})
        upload_folders(Store(self._run.storage), plan, self._run.on)
        end_claim_pods()
        return plan.objects(new_key())

    def _ended(self, cluster: TrialRun, objects: Sequence[Object]) -> CheckLine:
        name, wanted = self._run.name, self._plan.resolved.num_workers
        timer = timer_of(objects[0], name, self._wait_seconds + LONGER_SECONDS)
        made = self._run.kube.create(timer)
        self._has_objects = True
        cluster.launch(check_objects(objects, name, self._target, str(made.metadata.uid)))
        status = status_when_training(cluster, say, self._until)
        workers = status.get("workers")
        if workers is not None and workers < wanted:
            why = _why_fewer(cluster, self._plan.resolved.ranks_per_node)
            words = f"only {workers} of {wanted} workers train{why}"
            raise RunFailed(words, network_hint(cluster))
        wait_for_end(self._run, self._until)
        directory = self._run.directory()
        machines = sorted({one for pod in self._pods() if (one := _machine(pod)) is not None})
        return run_line(directory.history(), directory.steps(), wanted, machines)

    def _pods(self) -> list[Pod]:
        return self._run.kube.first_pods(labels(self._run.name, "worker"), MOST_PODS)

    def _machines(self) -> list[Object] | None:
        """Return the machines of the workers, whose labels name a region; None: they may not be
        seen, or do not matter."""
        kube, storage = self._run.kube, self._target.storage
        if storage is None or storage.url is None:
            return None
        try:
            names = sorted({one for pod in self._pods() if (one := _machine(pod)) is not None})
            return [kube.call("GET", f"api/v1/nodes/{name}") for name in names]
        except HeadwayError:
            return None

    def _last_words(self) -> Iterator[str]:
        """Yield the end of each worker's log, as far as it may be read."""
        for pod in self._pods():
            try:
                logged = self._run.kube.log_lines(pod_name(pod), "worker", False, None)
                lines = [line for _, line in logged if not PROGRESS.match(line)]
            except HeadwayError:
                continue
            if lines:
                assert pod.metadata is not None
                index = (pod.metadata.labels or {}).get(INDEX)
                yield f"node {index} says: {lines[-1][:MOST_CHARACTERS]}"

    # Its end

    def _remove(self, cluster: TrialRun) -> None:
        """Delete all that was made, each thing even if another one cannot be deleted."""
        uploads = _tried(partial(uploads_of, [self._run])) if self._has_stored else None
        if self._has_objects:
            say("deleting the run")
            _tried(partial(cluster.delete, say))
            _tried(partial(self._run.kube.delete_job, timer_name(self._run.name)))
        if self._has_stored:
            _tried(partial(delete_saved, self._run))
        if uploads is not None:
            uploads.remove()
        end_claim_pods()


def run_line(
    history: Sequence[Record], steps: Sequence[Record], workers: int, machines: Sequence[str]
) -> CheckLine:
    """Judge what the run has recorded. `workers`: number that was to train."""
    launched, started = (newest_event(history, one) for one in ("launched", "started"))
    if launched is None or started is None or len(steps) < STEPS:
        return failed(RUN, f"it ended after {len(steps)} of {STEPS} steps", None)
    seconds = seconds_of(steps[0]["time"]) - seconds_of(launched["time"])
    versions = ", ".join(f"{name} {found}" for name, found in started["versions"].items())
    evidence = (
        f"{started['workers']} workers on {' and '.join(machines)} took {STEPS} steps on "
        f"{started['device']}, the first after {seconds:.0f} s ({versions})"
    )
    if started["workers"] < workers:
        return failed(RUN, f"{evidence}; {workers} were to train", None)
    trouble = event_lines([one for one in history if one["event"] in TROUBLE])
    if trouble:
        return warned(RUN, f"{evidence}; {trouble[0][1]}", "once more, to see whether it stays so")
    if len(machines) == 1:
        return warned(
            RUN,
            f"{evidence}: nothing between machines was tried",
            "none, if there is one machine; else see what kubectl describe node says of the others",
        )
    return passed(RUN, evidence)


def _why_fewer(cluster: ClusterRun, ranks: int) -> str:
    """Return why workers are missing, as the coordinator knows it."""
    page = json.loads(cluster.ask("/history") or b"{}")
    reasons = [one["reason"] for one in page.get("generations", ()) if one["num_left"]]
    return f": {readable_names(reasons[-1], ranks)}" if reasons else ""


def _machine(pod: Pod) -> str | None:
    return pod.spec.nodeName if pod.spec is not None else None


def _tried(remove: Callable[[], Found]) -> Found | None:
    try:
        return remove()
    except (HeadwayError, OSError) as error:
        words = error.message if isinstance(error, HeadwayError) else str(error)
        warn(f"something of this check is left: {words}")
        return None
