"""`make bench-kwok`: a run of NODES=5000 pods on simulated nodes. Needs root, takes 20 minutes.

The control plane, the commands and the coordinator's pod, with the keeper in it, are real; that pod
is on the one real node. Worker pods are simulated, on KWOK nodes. This process opens their sessions
with the coordinator, one for each pod, with its name and address. Nothing trains, so the bench
stops `headway run` with Ctrl-C when all pods are up, and `status` shows a starting run. The user
has the rights that the guide lists. Calls are counted in the API server's audit log. Ends with one
line of JSON.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from cluster_tool import cluster as tool
from cluster_tool import network
from cluster_tool.api import Api, Object
from cluster_tool.audit import Audit, Call
from cluster_tool.cluster import Cluster
from cluster_tool.kwok import LABEL, simulate_nodes
from headway.data.tiny_stories import stories
from headway.errors import Exit
from headway.kube.names import COMPONENT, INSTANCE, SESSION_PORT, run_object
from headway.member.protocol.keys import parse_key
from support.commands import HEADWAY
from support.guide_rights import USER, users_kubeconfig
from support.lab import RUN_FILE
from support.s3 import credentials, s3_server
from support.sessions import Sessions
from support.waiting import wait_for

NODES = int(os.environ.get("NODES", "5000"))
FEW = 10
MORE = 10
"""Pods that `scale` adds."""
SETTLE_SECONDS = 60.0
"""After thousands of pods have started: by then the control plane, on two cores, lags behind."""
REPEATS = 5
TARGET_SECONDS = 2.0
TARGET_MEGABYTES = 200.0
UP_SECONDS = 120.0 + NODES / 5
SILENT_SECONDS = 600
"""What a node may be: thousands share two cores with the API server."""
CTRL_C = 130
MOST_TRIES = 5


@dataclass(frozen=True)
class Command:
    """One that has ended."""

    code: int
    seconds: float
    cpu_seconds: float
    megabytes: float
    """The most it had."""
    output: str
    calls: list[Call]

    def summary(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 2),
            "megabytes": round(self.megabytes, 1),
            "writes": dict(Counter(call.words for call in self.calls if call.is_write)),
            "reads": dict(Counter(call.words for call in self.calls if not call.is_write)),
        }


class Desk:
    """Where the user sits: a folder with a run and a target, and the rights of one namespace."""

    def __init__(
        self, cluster: Cluster, namespace: str, folder: Path, audit: Audit, access: dict[str, str]
    ) -> None:
        """`access` opens the bucket."""
        self.cluster, self.namespace, self.folder, self.audit = cluster, namespace, folder, audit
        kubeconfig = users_kubeconfig(cluster, namespace, folder)
        self.environment = {**os.environ, **access, "KUBECONFIG": str(kubeconfig)}
        secret = {"metadata": {"name": "bucket"}, "stringData": access}
        cluster.api.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
        parts = cluster.lend(namespace)
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        wait_for(
            "the claims",
            lambda: all(one["status"]["phase"] == "Bound" for one in cluster.api.items(claims)),
        )
        target = {
            "kube": {"namespace": namespace},
            "image": cluster.image,
            "storage": {"url": "s3://bucket", "secret": "bucket"},
            "pod": {
                "resources": {"cpu": "8", "memory": "64Gi"},
                "node_selector": {LABEL: "true"},
                "volumes": parts.volumes,
                "mounts": parts.mounts,
                "env": parts.environment,
            },
            "coordinator": {"node_selector": {"kubernetes.io/hostname": cluster.nodes[0].name}},
        }
        (folder / "targets.yaml").write_text(yaml.safe_dump({"lab": target}))
        (folder / "run.yaml").write_text(RUN_FILE)
        (folder / "text.txt").write_text("\n\n".join(stories(60_000, seed=1)))

    def headway(self, *arguments: str) -> Command:
        with self.started(*arguments) as typed:
            return typed.ended(0)

    def headway_until_done(self, *arguments: str) -> dict[str, Any]:
        """Runs the command again if the API server was too busy to answer."""
        tries: list[Command] = []
        while not tries or tries[-1].code:
            assert len(tries) < MOST_TRIES, tries[-1].output
            with self.started(*arguments) as typed:
                tries.append(typed.ended(0, int(Exit.RUN_FAILED)))
        together = Command(
            0,
            sum(one.seconds for one in tries),
            sum(one.cpu_seconds for one in tries),
            max(one.megabytes for one in tries),
            "",
            [call for one in tries for call in one.calls],
        )
        failures = [one.output.strip() for one in tries[:-1]]
        return together.summary() | ({"failures": failures} if failures else {})

    @contextmanager
    def started(self, *arguments: str) -> Iterator[Typed]:
        typed = Typed(self, arguments)
        try:
            yield typed
        except BaseException:
            typed.interrupt()
            raise


class Typed:
    """A command that has been started."""

    def __init__(self, desk: Desk, arguments: Sequence[str]) -> None:
        self.words = " ".join(arguments)
        self._desk = desk
        self._position = desk.audit.position
        self._usage = desk.folder / f"usage-{secrets.token_hex(4)}"
        # A process of its own between us and it: the memory of whoever starts a program counts as
        # that program's.
        measured = ("/usr/bin/time", "--quiet", "--format=%e %M %U %S", f"--output={self._usage}")
        self.process = subprocess.Popen(
            [*measured, *HEADWAY, *arguments],
            cwd=desk.folder,
            env=desk.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def interrupt(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, *expected: int) -> Command:
        output, _ = self.process.communicate(timeout=UP_SECONDS)
        code = self.process.returncode
        assert code in expected, f"headway {self.words} -> {code}\n{output}"
        elapsed, kilobytes, user, system = self._usage.read_text().split()[-4:]
        megabytes, cpu = int(kilobytes) * 1024 / 1e6, float(user) + float(system)
        calls = self._desk.audit.calls(USER, self._position)
        return Command(code, float(elapsed), cpu, megabytes, output, calls)


class Run:
    """One on the cluster, seen with all rights."""

    def __init__(self, desk: Desk, name: str, nodes: int) -> None:
        self.desk, self.name, self.nodes = desk, name, nodes
        self.api: Api = desk.cluster.api
        self.account = run_object(name)
        """The keeper's."""

    def launch(self) -> dict[str, Any]:
        began = time.time()
        size = ("--nodes", str(self.nodes), "--set", f"name={self.name}")
        with self.desk.started("run", "--on", "lab", *size) as typed:
            self.wait_until_up(self.nodes)
            up = time.time()
            typed.interrupt()
        command = typed.ended(CTRL_C, int(Exit.RUN_FAILED))
        made = [call for call in command.calls if call.is_write]
        before = [call for call in command.calls if call.time <= made[-1].time]
        return {
            "objects": dict(Counter(call.resource for call in made if call.code == 201)),
            "writes": len(made),
            "reads_before_all_were_made": len(before) - len(made),
            "reads_while_it_waited": len(command.calls) - len(before),
            "megabytes": round(command.megabytes, 1),
            "made_seconds": round(made[-1].time - began, 2),
            "all_up_seconds": round(up - began, 2),
            **({"failure": command.output.strip()} if command.code != CTRL_C else {}),
        }

    def wait_until_up(self, nodes: int) -> None:
        path = f"/apis/batch/v1/namespaces/{self.desk.namespace}/jobs/{run_object(self.name)}"
        deadline, ready = time.monotonic() + UP_SECONDS, -1
        while ready != nodes:
            assert time.monotonic() < deadline, f"{ready} of {nodes} pods of {self.name} are up"
            job = self.api.find(path)
            ready = job["status"].get("ready", 0) if job is not None else 0
            time.sleep(0.5)

    def pods(self, component: str) -> list[Object]:
        path = f"/api/v1/namespaces/{self.desk.namespace}/pods"
        selector = f"{INSTANCE}={self.name},{COMPONENT}={component}"
        return self.api.items(path, labelSelector=selector, resourceVersion="0")

    def sessions(self) -> Sessions:
        """Of all its pods."""
        path = f"/api/v1/namespaces/{self.desk.namespace}/secrets/{run_object(self.name)}"
        key = parse_key(base64.b64decode(self.api.get(path)["data"]["key"]), path)
        (pod,) = self.pods("coordinator")
        pods = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in self.pods("worker")}
        return Sessions((pod["status"]["podIP"], SESSION_PORT), key, self.name, pods)

    def coordinator(self) -> dict[str, Any]:
        """Its pod's processes, by what they are."""
        (pod,) = self.pods("coordinator")
        found = {}
        for pid in self.desk.cluster.nodes[0].pod_pids(pod["metadata"]["uid"]):
            process = psutil.Process(pid)
            words = process.cmdline()
            if name := next((word for word in words if word in ("keep", "coordinator")), None):
                used = process.cpu_times()
                found[name] = {
                    "most_megabytes": round(_peak_bytes(pid) / 1e6, 1),
                    "megabytes": round(process.memory_info().rss / 1e6, 1),
                    "cpu_seconds": round(used.user + used.system, 1),
                }
        restarts = sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
        return {**found, "restarts": restarts}

    def end(self) -> dict[str, Any]:
        stopped = self.desk.headway_until_done("stop", self.name)
        deleted = self.desk.headway_until_done("delete", self.name, "--yes")
        return {"stop": stopped, "delete": deleted}


def main() -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    namespace = "bench-kwok"
    accounts = [f"system:serviceaccount:{namespace}:{name}" for name in _accounts()]
    with tool.sole_use(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-kwok-")))
        cluster = Cluster.up(nodes=1)
        stack.callback(cluster.down)
        audit = Audit(cluster, accounts)
        port = stack.enter_context(s3_server(folder / "storage", network.HOST))
        # A simulated node that was late once is back, but its pods are never ready again.
        cluster.control_plane.be_patient_with_nodes(SILENT_SECONDS)
        _say(f"the cluster is up; {NODES} nodes are simulated")
        simulate_nodes(cluster, NODES)
        made = {"metadata": {"name": namespace, "labels": tool.RESTRICTED}}
        cluster.api.create("/api/v1/namespaces", made)
        desk = Desk(cluster, namespace, folder, audit, credentials(port, network.HOST))
        _say("the nodes are ready")
        found = measure(desk)
    status, large = found["status"], found["many"]
    is_constant = large["objects"] == found["few"]["objects"]
    line = {
        "name": "bench-kwok",
        "figure": status["median_seconds"],
        "target": TARGET_SECONDS,
        "pass": status["longest_seconds"] < TARGET_SECONDS
        and status["most_megabytes"] < TARGET_MEGABYTES
        and is_constant
        and found["scale"]["writes"] == {"patch jobs": 1}
        and found["delete"]["writes"] == {"delete jobs": 1}
        and not found["unbounded"],
        "spread": {"nodes": NODES, "objects_are_the_same": is_constant, **found},
    }
    print(json.dumps(line))
    return 0


def _ask_for_status(desk: Desk, run: Run) -> dict[str, Any]:
    asked = [desk.headway("status", run.name, "--json") for _ in range(REPEATS)]
    for command in asked:
        said = json.loads(command.output)
        assert said["cluster"]["ready"] == NODES, said
        assert said["state"] == "starting", f"the coordinator did not answer: {said}"
    found = {
        "median_seconds": round(statistics.median(one.seconds for one in asked), 2),
        "longest_seconds": max(one.seconds for one in asked),
        "cpu_seconds": round(statistics.median(one.cpu_seconds for one in asked), 2),
        "most_megabytes": max(one.summary()["megabytes"] for one in asked),
        "reads": asked[-1].summary()["reads"],
        "server_seconds": _server_seconds(asked[-1].calls),
    }
    _say(f"status: {found}")
    return found


def measure(desk: Desk) -> dict[str, Any]:
    many, few = Run(desk, "many", NODES), Run(desk, "few", FEW)
    found: dict[str, Any] = {"many": many.launch()}
    _say(f"{NODES} pods are up: {found['many']}")
    time.sleep(SETTLE_SECONDS)
    found["status_without_beats"] = _ask_for_status(desk, many)
    with many.sessions() as sessions:
        _say("they have sessions")
        time.sleep(SETTLE_SECONDS)
        found["status"] = _ask_for_status(desk, many)
        found["list"] = desk.headway("list", "--on", "lab").summary()
        found["scale"] = desk.headway("scale", many.name, "--nodes", str(NODES + MORE)).summary()
        many.wait_until_up(NODES + MORE)
        found["coordinator"] = many.coordinator()
        found["coordinator"]["sessions_lost"] = sessions.lost
        _say(f"coordinator: {found['coordinator']}")
        found |= many.end()
        _say(f"stop: {found['stop']}, delete: {found['delete']}")
    found["few"] = few.launch()
    few.end()
    keeper = Counter(call.words for call in desk.audit.calls(many.account))
    found["coordinator"]["calls"] = dict(keeper)
    everything = [call for name in _accounts() for call in desk.audit.calls(name)]
    found["unbounded"] = sorted({call.words for call in everything if call.is_unbounded})
    return found


def _accounts() -> list[str]:
    """Whose calls are noted: the user's, and those of the runs' keepers."""
    return [USER, run_object("few"), run_object("many")]


def _server_seconds(calls: Sequence[Call]) -> dict[str, float]:
    """By what was asked, all of them together."""
    found: Counter[str] = Counter()
    for call in calls:
        found[call.words] += call.seconds  # type: ignore[assignment]
    return {words: round(seconds, 3) for words, seconds in found.items()}


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


BEGAN = time.monotonic()


def _say(words: str) -> None:
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
