"""A run that a real keeper keeps, look by look: over the fake API server, with a coordinator that
says what a test tells it to, and a clock that only looks move."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from lightkube.resources.core_v1 import Pod

from headway.clock import SystemClock, stamp
from headway.kube.client import KubeClient
from headway.kube.config_map_record import KubeRecord
from headway.kube.kinds import KindTerms
from headway.kube.names import (
    CONTROLLER_UIDS,
    FINALIZER,
    GATE,
    INDEX,
    SUSPECT,
    labels,
    record_object,
)
from headway.kube.node_prices import NodePrices
from headway.launch import keeper as keeper_module
from headway.launch import pod_watch as watch_module
from headway.launch.scarcity import ScarcityRules
from headway.member.coordinator.record import Entry
from headway.member.protocol.generation import nobody
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, Resolved, resolve
from headway.state.run_directory import Journal, RunDirectory
from support.fake_kube import FakeKube, coordinator_path, fake_kube
from support.fake_pods import PODS
from support.named_machines import named_machines

JOBS = "/apis/batch/v1/namespaces/ml/jobs"
CONFIG_MAPS = "/api/v1/namespaces/ml/configmaps"
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap"}
START = 1_800_000_000.0
SYNC_SECONDS = 5.0
"""For the watch to show what the API server has."""
SPOT = ("cloud/spot", "true")
SCARCITY = ScarcityRules(give_back_seconds=60.0, try_again_seconds=30.0)
RUN_FILE = """\
version: 1
name: it
model: {type: gpt2}
batch: {global: 4}
resources: {nodes: 1..8}
"""


@dataclass(frozen=True)
class Code:
    """What is tested, or the same with a defect in it."""

    keeper: ModuleType = keeper_module
    pod_watch: ModuleType = watch_module


class TestClock(SystemClock):
    __test__ = False

    def __init__(self) -> None:
        self.passed = 0.0
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while somebody sleeps."""

    def now(self) -> float:
        return START + self.passed

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        self.meanwhile()


class FakeCoordinator:
    def __init__(self) -> None:
        self.connected: set[str] = set()
        """Pods whose worker has a session and sends heartbeats."""
        self.members: set[str] = set()
        """Pods of the current generation."""
        self.dismissed: set[str] = set()
        self.died: str | None = None
        self.answers = True
        self.is_paused = False

    def keep_alive(self) -> str | None:
        how, self.died = self.died, None
        return how

    def state(self) -> dict[str, Any] | None:
        if not self.answers:
            return None
        heard = {"session": 1, "silent_seconds": 0.2}
        members = [{"pods": [f"{pod}.1/0.aaaa"]} for pod in sorted(self.members)]
        return {
            "pods": {f"{pod}.1/0.aaaa": heard for pod in self.connected},
            "generation": {"domains": members, "paused": self.is_paused},
        }

    def dismiss(self, place: str) -> None:
        self.dismissed.add(place)
        self.connected.discard(place)
        self.members.discard(place)


class KeptRun:
    def __init__(self, kube: FakeKube, folder: Path, code: Code, resolved: Resolved) -> None:
        self.kube = kube
        self.code = code
        self.clock = TestClock()
        self.coordinator = FakeCoordinator()
        self.said: list[str] = []
        self.resolved = resolved
        self.directory = RunDirectory.create(folder / "it", self.clock)
        self.journal = Journal(self.directory.events, self.clock)
        self.keeper: Any = self.new_keeper()
        kube.job("it", startTime="2026-11-16T09:00:00Z")
        kube.coordinator("it")
        metadata = {"name": record_object("it"), "namespace": "ml"}
        kube.put(f"{CONFIG_MAPS}/{record_object('it')}", {"metadata": metadata, **CONFIG_MAP})

    def new_keeper(self, kinds: Sequence[KindTerms] = (), rates: NodePrices | None = None) -> Any:
        return self.code.keeper.Keeper(
            KubeClient.from_kubeconfig(None, "ml"),
            self.resolved,
            self.directory,
            key=Path("/headway/key/key"),
            spot_label=SPOT,
            scarcity=SCARCITY,
            kinds=kinds,
            rates=rates,
            clock=self.clock,
            say=self.said.append,
        )

    # What Kubernetes does

    @property
    def job(self) -> dict[str, Any]:
        """The workers'."""
        return self.kube.objects[f"{JOBS}/headway-it"]

    @property
    def is_kept(self) -> bool:
        """Whether there is to be a coordinator."""
        owner = self.kube.objects[coordinator_path("it")]
        return bool(owner["spec"]["replicas"])

    def pod(self, name: str) -> dict[str, Any]:
        return self.kube.objects[f"{PODS}/{name}"]

    def has_pod(self, name: str) -> bool:
        return f"{PODS}/{name}" in self.kube.objects

    def is_released(self, name: str) -> bool:
        """Whether its Job does not count it."""
        return FINALIZER not in self.pod(name)["metadata"]["finalizers"]

    def is_marker(self, name: str) -> bool:
        """Whether it keeps other pods off its machine, its Job ignores it, and it goes with that
        Job."""
        assert self.has_pod(name)
        metadata = self.pod(name)["metadata"]
        (owner,) = metadata["ownerReferences"]
        is_ignored = not metadata["labels"].keys() & {*CONTROLLER_UIDS} and not owner["controller"]
        return SUSPECT in metadata["labels"] and is_ignored and self.is_released(name)

    def create_pod(
        self, index: int, name: str, age_seconds: float = 0.0, is_gated: bool = False
    ) -> None:
        """As the Job does."""
        job = self.job["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["name"], "uid": job["uid"]}
        metadata = {
            "labels": labels("it", "worker") | dict.fromkeys(CONTROLLER_UIDS, job["uid"]),
            "annotations": {INDEX: str(index)},
            "ownerReferences": [owner | {"controller": True}],
            "finalizers": [FINALIZER],
            "creationTimestamp": stamp(self.clock.now() - age_seconds),
        }
        terms: dict[str, Any] = {"nodeSelectorTerms": [{"matchExpressions": []}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        gates = [{"name": GATE}] if is_gated else []
        spec = {"schedulingGates": gates, "affinity": {"nodeAffinity": required}}
        self._put(name, metadata, spec, {"phase": "Pending"})

    def schedule_pod(self, name: str, machine: str) -> None:
        pod = self.pod(name)
        pod["spec"]["nodeName"] = machine
        self._update(pod, pod["status"])

    def start_pod(self, name: str, machine: str) -> None:
        """It is scheduled, and its worker is let into the run."""
        pod = self.pod(name)
        self.schedule_pod(name, machine)
        self._update(pod, {"phase": "Running"})
        self.coordinator.connected.add(name)
        self.coordinator.members.add(name)

    def wait_in_pod(self, name: str, waits: dict[str, str]) -> None:
        """Its container waits, for such a reason."""
        container = {"image": "", "imageID": "", "ready": False, "restartCount": 0}
        container |= {"name": "worker", "state": {"waiting": waits}}
        self._update(self.pod(name), {"phase": "Pending", "containerStatuses": [container]})

    def lose_power(self, *names: str) -> None:
        """Their sessions are silent; the coordinator continues without them."""
        self.coordinator.connected -= set(names)
        self.coordinator.members -= set(names)

    def end_pod(
        self, name: str, code: int, words: str = "", reason: str = "Error", ran_seconds: float = 0.0
    ) -> None:
        """The coordinator still counts on it."""
        self.coordinator.connected.discard(name)
        began, now = stamp(self.clock.now() - ran_seconds), stamp(self.clock.now())
        ended: dict[str, Any] = {"exitCode": code, "message": words, "reason": reason}
        ended |= {"startedAt": began, "finishedAt": now}
        container = {"image": "", "imageID": "", "ready": False, "restartCount": 0}
        container |= {"name": "worker", "state": {"terminated": ended}}
        phase = "Failed" if code else "Succeeded"
        self._update(self.pod(name), {"phase": phase, "containerStatuses": [container]})

    def stop(self, grace_seconds: float = 120.0) -> None:
        """As the user does: the Job deletes its pods, which have so long to save and end."""
        self.job["spec"]["suspend"] = True
        for name in sorted(self.coordinator.members):
            pod = self.pod(name)
            pod["metadata"]["deletionTimestamp"] = stamp(self.clock.now() + grace_seconds)
            self._update(pod, pod["status"])

    def end_job(self, kind: str, message: str = "") -> None:
        self.job["status"]["conditions"] = [{"type": kind, "status": "True", "message": message}]

    def delete_job(self) -> None:
        del self.kube.objects[f"{JOBS}/headway-it"]

    def train(self, step: int) -> None:
        """The run has committed this step."""
        record = {"step": step, "generation": 1, "writer": "w", "seconds": 1.0, "data_seconds": 0.0}
        record |= {"loss": 1.0, "tokens_per_second": 1.0, "time": stamp(self.clock.now())}
        self.directory.metrics.append(record)

    # What the keeper does

    def begin(self, *machines: str) -> list[str]:
        """One pod on each of these machines is training."""
        after = self.launch(self.keeper)
        assert after is not None
        self.record_generation(after + 1)
        self.keeper.pods.watch.start()
        names = [f"it-{index}-first" for index in range(len(machines))]
        for index, (name, machine) in enumerate(zip(names, machines, strict=True)):
            self.create_pod(index, name)
            self.start_pod(name, machine)
        self.look()
        assert self.is_kept
        return names

    def record_generation(self, number: int) -> None:
        """As the coordinator does."""
        record = KubeRecord(KubeClient.from_kubeconfig(None, "ml"), record_object("it"), "it")
        newest = record.read()
        assert record.swap(newest, Entry(newest.version + 1, 1, nobody(1, number)))

    def started_job(self) -> Any:
        """As a new keeper finds it."""
        return self.keeper.job.started(lambda: self.keeper.is_stopping)

    def launch(self, keeper: Any) -> int | None:
        """What a new keeper does first. Returns the generation after which it begins, if it is a
        new launch."""
        after: int | None = keeper.job.note_launch(keeper.job.started(lambda: keeper.is_stopping))
        return after

    def look(self, seconds: float = 0.0) -> None:
        """Looks for so long, and at least once, or until the keeper ends itself."""
        end = self.clock.passed + seconds
        while True:
            self.sync()
            self.keeper.look(self.coordinator)
            self.keeper.pods.calls.wait()
            self.keeper.job.settle()
            self.clock.passed += keeper_module.LOOK_SECONDS
            if not self.is_kept or self.clock.passed > end:
                return

    def events(self, kind: str) -> list[dict[str, Any]]:
        """From the launcher's journal."""
        return [one for one in self.directory.launcher.read()[0] if one["event"] == kind]

    def is_off_spot(self, name: str) -> bool:
        (term,) = self._term(name)
        return any(one["key"] == SPOT[0] for one in term["matchExpressions"])

    def is_placed(self, name: str) -> bool:
        return not self.pod(name)["spec"]["schedulingGates"]

    def calls(self, method: str, name: str) -> int:
        """How often a pod or Job was asked for so."""
        return sum(
            call.startswith(f"{method} ") and call.endswith(f"/{name}") for call in self.kube.calls
        )

    def _term(self, name: str) -> list[dict[str, Any]]:
        affinity = self.pod(name)["spec"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        return cast(list[dict[str, Any]], terms)

    def _put(self, name: str, metadata: dict[str, Any], spec: Any, status: Any) -> None:
        metadata = {"name": name, "namespace": "ml", **metadata}
        spec = {"containers": [], **spec}
        self.kube.put(f"{PODS}/{name}", {"metadata": metadata, "spec": spec, "status": status})

    def _update(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        pod["status"] = status
        self.kube.put(f"{PODS}/{pod['metadata']['name']}", pod)

    def sync(self) -> None:
        """Waits until the watch has caught up."""
        if self.kube.is_away or self.kube.pods.is_held:
            return
        deadline = time.monotonic() + SYNC_SECONDS
        while not self._is_synced():
            assert time.monotonic() < deadline, "the watch does not show what is there"
            time.sleep(0.002)

    def _is_synced(self) -> bool:
        """The keeper may have forgotten pods that it has deleted."""
        pods, there = self.keeper.pods.watch.pods(), self._there()
        if pods is None or set(pods) - there:
            return False
        return all(pod.delete_by is not None for pod in there - set(pods))

    def _there(self) -> set[Any]:
        pod_facts = self.code.pod_watch.pod_facts
        worker = labels("it", "worker").items()
        return {
            pod_facts(Pod.from_dict(one))
            for path, one in list(self.kube.objects.items())
            if path.startswith(f"{PODS}/") and worker <= one["metadata"].get("labels", {}).items()
        }


@contextmanager
def kept_run(
    folder: Path, code: Code, *settings: str, resolved: Resolved | None = None
) -> Iterator[KeptRun]:
    """KUBECONFIG is `folder/kubeconfig`. `resolved`: if it is another run than a live one."""
    with fake_kube(folder) as kube:
        run = KeptRun(kube, folder, code, resolved or _resolved(folder, settings))
        yield run
        run.keeper.pods.watch.stop()
        assert named_machines(kube.pod_patches) == []
        got = [call for call in kube.calls if call.startswith(f"GET {PODS}/")]
        assert got == [], "the keeper may list pods, and not get one by its name"


def _resolved(folder: Path, settings: tuple[str, ...]) -> Resolved:
    file = folder / "run.yaml"
    file.write_text(RUN_FILE)
    return resolve(
        load_run(file, ["data.train=prepared", "elastic=live", *settings]),
        Hardware(cores=2, cuda_devices=0),
        nodes=3,
        parameters=None,
        train_set=folder,
        validation_sets={},
    )
