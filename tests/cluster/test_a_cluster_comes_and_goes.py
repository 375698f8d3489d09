"""A cluster from start to removal. First of the files, so that no other cluster is up yet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cluster_tool import pods
from cluster_tool.cluster import Cluster, traces
from cluster_tool.commands import run
from cluster_tool.node import MOUNT_POINTS
from cluster_tool.processes import Processes, start_ticks
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.long("tests the test cluster itself"),
]

TESTS = Path(__file__).parents[1]


def _ours(folder: Path) -> list[str]:
    """Processes that have the folder in their command: containerd's helpers too."""
    commands = (process.info["cmdline"] for process in psutil.process_iter(["cmdline"]))
    return [" ".join(words) for words in commands if words and str(folder) in " ".join(words)]


def test_nothing_is_left_of_it(machine: None, tmp_path: Path) -> None:
    if traces():
        pytest.skip("a test cluster is up: it is left alone")
    before = [path.exists() for path in MOUNT_POINTS]
    cluster = Cluster.up(tmp_path, nodes=1)
    try:
        running = _pids_of_a_pod(cluster)
        assert running
        assert _ours(tmp_path)
        # By a process that has started none of it and is not told where, while a pod still runs.
        down = [sys.executable, "-m", "cluster_tool", "down"]
        subprocess.run(down, cwd=TESTS, check=True, timeout=120)
        assert not [pid for pid in running if psutil.pid_exists(pid)]
        assert not _ours(tmp_path)
        assert not traces(tmp_path)
        assert str(tmp_path) not in run("losetup", "--list")
        assert [path.exists() for path in MOUNT_POINTS] == before
        assert [path.name for path in tmp_path.iterdir()] == ["log"]
    finally:
        cluster.down()


def _pids_of_a_pod(cluster: Cluster) -> set[int]:
    api, image = cluster.api, cluster.image
    assert image
    wait_for("an account", lambda: api.find("/api/v1/namespaces/default/serviceaccounts/default"))
    pods.start(api, "default", "pod", image, ("sleep", "1000"))
    pods.wait_running(api, "default", "pod")
    return cluster.nodes[0].pod_pids()


def test_a_process_that_only_has_the_number_is_not_ended(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    pid = processes.start("sleeper", ["sleep", "60"])
    ticks = start_ticks(pid)
    assert ticks is not None
    record = processes.records / "sleeper.json"
    record.write_text(json.dumps({"pid": pid, "ticks": ticks - 1}))
    processes.end("sleeper")
    assert start_ticks(pid) == ticks
    record.write_text(json.dumps({"pid": pid, "ticks": ticks}))
    processes.end("sleeper")
    assert start_ticks(pid) is None
