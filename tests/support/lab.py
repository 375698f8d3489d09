"""A target on the test cluster, a folder with a run for it, and a view of both from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cluster_tool import cluster as tool
from cluster_tool import faults
from cluster_tool.cluster import Cluster
from cluster_tool.node import Node
from headway.clock import seconds_of
from headway.data.tiny_stories import stories
from headway.state.ledger import verify_ledger
from headway.state.rewinds import step_after
from headway.state.run_directory import RunDirectory
from support import commands, live
from support.waiting import wait_for

RUN_FILE = live.RUN_FILE + "checkpoint: {every: 20s}\n"
START_SECONDS = 180.0
RECOVER_SECONDS = 60.0
COMPARED_AFTER = 100
"""Steps of the last generation whose losses are compared."""
TOLERANCE = 1e-5
STEP_SECONDS = 5.0
SPOT_LABEL = {"headway-test/capacity-type": "spot"}
"""Of machines that play spot machines."""


class Lab:
    """Commands are run in `folder`; the caller sets KUBECONFIG."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.shared = cluster.folder / "shared" / namespace
        """The claim's files, on this machine."""
        self.storage = self.shared
        """The files of the target's storage: a bucket's, if it is one."""
        parts = cluster.lend(namespace)
        target: dict[str, Any] = {
            "kube": {"namespace": namespace},
            "image": cluster.image,
            "storage": {"claim": parts.claim},
            "pod": {
                # One node has room for three workers and the coordinator.
                "resources": {"cpu": "450m", "memory": "2Gi"},
                "shared_memory": "64Mi",
                "volumes": parts.volumes,
                "mounts": parts.mounts,
                "env": {**parts.environment, "OMP_NUM_THREADS": "1"},
            },
            "coordinator": {"resources": {"cpu": "500m", "memory": "512Mi"}},
        }
        (folder / "targets.yaml").write_text(yaml.safe_dump({"lab": target}))

    def write_run(self, run_file: str = RUN_FILE) -> None:
        (self.folder / "text.txt").write_text("\n\n".join(stories(60_000, seed=1)))
        (self.folder / "run.yaml").write_text(run_file)

    def target(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.folder / "targets.yaml").read_text())["lab"]
        return found

    def change_target(self, pod: Mapping[str, Any] | None = None, **keys: Any) -> None:
        """Other values of the target's keys, and of those below `pod`."""
        path = self.folder / "targets.yaml"
        content = yaml.safe_load(path.read_text())
        content["lab"].update(keys)
        content["lab"]["pod"].update(pod or {})
        path.write_text(yaml.safe_dump(content))

    def make_secret(self, name: str, values: dict[str, str]) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/secrets"
        self.cluster.api.create(path, {"metadata": {"name": name}, "stringData": values})

    def make_quota(self, name: str, cpu: str, held: str) -> None:
        """Of which a pod of somebody else's, which never runs, holds a part. The pod comes first: a
        new quota counts what is there, and one that admission has not seen yet misses a new pod."""
        security = {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        container = {
            "name": "holds",
            "image": self.cluster.image,
            "resources": {"requests": {"cpu": held}},
            "securityContext": security,
        }
        spec = {"nodeSelector": {"nowhere": "true"}, "containers": [container]}
        api, path = self.cluster.api, f"/api/v1/namespaces/{self.namespace}"
        api.create(f"{path}/pods", {"metadata": {"name": "holds"}, "spec": spec})
        wait_for(
            "the scheduler to have seen it",
            lambda: api.get(f"{path}/pods/holds")["status"].get("conditions"),
        )
        quota = {"metadata": {"name": name}, "spec": {"hard": {"requests.cpu": cpu}}}
        api.create(f"{path}/resourcequotas", quota)
        wait_for(
            "the quota to count it",
            lambda: (
                api.get(f"{path}/resourcequotas/{name}").get("status", {}).get("used", {})
                == {"requests.cpu": held}
            ),
        )

    def headway(
        self, *arguments: str, expect: int | None = 0, seconds: float = START_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        return commands.headway(*arguments, folder=self.folder, expect=expect, seconds=seconds)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.headway("status", "--json").stdout)
        return found

    def typed(self, *arguments: str) -> commands.Typed:
        """In the background."""
        return commands.Typed(*arguments, folder=self.folder)

    # From outside

    def directory(self, name: str = "it") -> RunDirectory:
        return RunDirectory(self.shared / "runs" / name)

    def step(self, name: str = "it") -> int:
        return step_after(self.directory(name).metrics.last() or {"rewind": 0})

    def wait_for_step(self, step: int, seconds: float = RECOVER_SECONDS) -> None:
        wait_for(f"step {step}", lambda: self.step() >= step, seconds)

    def require_steps(self, seconds: float) -> None:
        """A new step every few seconds, for that long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.wait_for_step(self.step() + 1, STEP_SECONDS)

    def generation(self) -> Mapping[str, Any]:
        events = self.directory().history()
        changes = [event for event in events if event["event"] in ("started", "changed")]
        return max(changes, key=lambda event: event["generation"]) if changes else {}

    def first_step_of(self, generation: int) -> float | None:
        """When the first step of that generation or a newer one was committed."""
        for line in self.directory().steps():
            if line["generation"] >= generation:
                return seconds_of(line["time"])
        return None

    def wait_for_workers(self, workers: int, seconds: float = RECOVER_SECONDS) -> None:
        wait_for(f"{workers} workers", lambda: self.generation().get("workers") == workers, seconds)

    def pods(self, component: str = "worker") -> list[dict[str, Any]]:
        """Those that are to run: failed ones stay for a while, to be looked at."""
        selector = f"app.kubernetes.io/component={component}"
        found = self.cluster.api.items(
            f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=selector
        )
        return [
            pod
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["phase"] in ("Pending", "Running")
        ]

    def coordinator(self) -> dict[str, Any]:
        return self.pods("coordinator")[0]

    def replace_coordinator(self, seconds: float) -> None:
        """Evicts its pod, and waits for so long until another one is ready."""
        before = self.coordinator()["metadata"]
        assert faults.evict(self.cluster.api, self.namespace, before["name"])
        wait_for(
            "another coordinator",
            lambda: any(
                pod["metadata"]["uid"] != before["uid"] and is_ready(pod)
                for pod in self.pods("coordinator")
            ),
            seconds,
        )

    def markers(self) -> list[dict[str, Any]]:
        """Lost pods that keep others off their machines."""
        return self.cluster.api.items(
            f"/api/v1/namespaces/{self.namespace}/pods", labelSelector="headway/suspect"
        )

    def scheduled_on(self, node: Node) -> set[str]:
        """Names of all pods that were ever scheduled there, also of those that are gone."""
        events = self.cluster.api.items(
            f"/api/v1/namespaces/{self.namespace}/events", fieldSelector="reason=Scheduled"
        )
        return {
            event["involvedObject"]["name"]
            for event in events
            if event["message"].endswith(f" to {node.name}")
        }

    def is_kept(self, elsewhere_than: str) -> bool:
        """Whether a coordinator is up, and not on that machine."""
        return any(
            pod["spec"].get("nodeName") not in (None, elsewhere_than) and is_ready(pod)
            for pod in self.pods("coordinator")
        )

    def node_of(self, pod: Mapping[str, Any]) -> Node:
        return self.cluster.node(pod["spec"]["nodeName"])

    def machines_of_workers(self) -> set[str]:
        return {pod["spec"]["nodeName"] for pod in self.pods() if "nodeName" in pod["spec"]}

    def training_pids(self) -> dict[str, set[int]]:
        """Processes that train, by the pod they are in: those that the fork server has forked."""
        found = {}
        for pod in self.pods():
            if "nodeName" not in pod["spec"]:
                continue
            pids = self.node_of(pod).pod_pids(pod["metadata"]["uid"])
            found[pod["metadata"]["name"]] = {pid for pid in pids if _is_forked(pid)}
        return found

    def objects(self) -> list[str]:
        """Everything of Headway that is in the namespace."""
        kinds = {
            "/api/v1": ["pods", "services", "configmaps", "secrets", "serviceaccounts"],
            "/apis/batch/v1": ["jobs"],
            "/apis/apps/v1": ["replicasets"],
            "/apis/networking.k8s.io/v1": ["networkpolicies"],
            "/apis/rbac.authorization.k8s.io/v1": ["roles", "rolebindings"],
        }
        selector = "app.kubernetes.io/managed-by=headway"
        return [
            f"{kind}/{one['metadata']['name']}"
            for group, names in kinds.items()
            for kind in names
            for one in self.cluster.api.items(
                f"{group}/namespaces/{self.namespace}/{kind}", labelSelector=selector
            )
        ]

    def require_exact(self, name: str = "it") -> None:
        """Every sample once: the ledger, and one line of metrics for each step. What is not so can
        be looked at in `folder` afterwards."""
        copy = self.folder / f"{name}-as-it-was"
        shutil.copytree(self.directory(name).location, copy)
        directory = RunDirectory(copy)
        verdict = verify_ledger(directory.ledger.read()[0])
        assert verdict.breach is None, verdict
        steps = [line["step"] for line in directory.steps()]
        assert steps == list(range(1, len(steps) + 1))
        assert verdict.steps == len(steps), copy
        shutil.rmtree(copy)

    def require_as_undisturbed(self, *options: str) -> None:
        """The same steps with the same losses as by one process that nobody touches. `options`: of
        its `headway run`."""
        lines = self.directory().steps()
        last = [line["generation"] for line in lines].index(lines[-1]["generation"])
        lines = lines[: last + COMPARED_AFTER]
        length = f"train_for={len(lines)} steps"
        self.headway("run", "--set", "name=alone", "--set", length, *options)
        alone = RunDirectory(self.folder / "runs" / "alone").steps()
        assert len(alone) == len(lines)
        odd = [
            (mine["step"], mine["loss"], its["loss"])
            for mine, its in zip(lines, alone, strict=True)
            if abs(mine["loss"] - its["loss"]) > TOLERANCE
        ]
        assert not odd, odd[:5]


@contextmanager
def borrowed_lab(folder: Path) -> Iterator[Lab]:
    """For a bench: on a cluster of its own, which is gone afterwards."""
    with tool.sole_use():
        tool.take_down()
        cluster = Cluster.up()
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        try:
            with cluster.namespace("bench") as namespace:
                try:
                    yield Lab(cluster, namespace, folder)
                finally:
                    cluster.repair()
        finally:
            cluster.down()


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _is_forked(pid: int) -> bool:
    """Whether its parent has the same command: a worker, forked from the warm one."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        status = Path(f"/proc/{pid}/status").read_text()
        parent = next(line for line in status.splitlines() if line.startswith("PPid:"))
        above = Path(f"/proc/{parent.split()[1]}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"headway.train.fork_server" in words and words == above
