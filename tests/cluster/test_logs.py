"""`headway logs -f` follows a worker through all of its pods."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.kube.names import INDEX
from support.commands import HEADWAY
from support.lab import Lab
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

WORKERS = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (generation|step) ")
"""A line that a worker printed, not one about it."""
LINE_SECONDS = 60.0


def first_pod(lab: Lab) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = [pod for pod in lab.pods() if pod["metadata"]["labels"][INDEX] == "0"]
        return found[0] if found else None

    return wait_for("the pod of node 0", look)


def deleted(lab: Lab, pod: dict[str, Any]) -> None:
    lab.cluster.api.delete(
        f"/api/v1/namespaces/{lab.namespace}/pods/{pod['metadata']['name']}",
    )


def killed(lab: Lab, pod: dict[str, Any]) -> None:
    for pid in lab.node_of(pod).pod_pids(pod["metadata"]["uid"]):
        os.kill(pid, signal.SIGKILL)


def worker_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if WORKERS.match(line)]


@pytest.mark.long("a minute and a half; unit/launch/test_cluster_logs.py follows pods, too")
@pytest.mark.trap(19)
def test_every_line_once_and_in_order(lab: Lab) -> None:
    lab.headway("run", "--on", "lab", "--nodes", "2")
    lab.wait_for_workers(2)
    shown = lab.folder / "shown.txt"

    def wait_for_lines(more: int) -> None:
        lines = len(worker_lines(shown)) + more
        wait_for(f"{lines} lines", lambda: len(worker_lines(shown)) >= lines, LINE_SECONDS)

    with shown.open("w") as file:
        command = [*HEADWAY, "logs", "-f"]
        following = subprocess.Popen(command, cwd=lab.folder, stdout=file, stderr=file)
    ways: list[Callable[[Lab, dict[str, Any]], None]] = [deleted, killed]
    for way in ways:
        before = first_pod(lab)["metadata"]["uid"]
        wait_for_lines(1)  # the next one is not due for seconds
        way(lab, first_pod(lab))
        wait_for("another pod", lambda uid=before: first_pod(lab)["metadata"]["uid"] != uid)
        lab.wait_for_workers(2)
    lab.headway("scale", "--nodes", "3")
    lab.wait_for_workers(3)
    wait_for_lines(1)
    lab.headway("stop")
    following.wait(60)
    printed = worker_lines(lab.directory().log(0, 0))
    assert worker_lines(shown) == printed
    assert len({line.split()[0] for line in printed}) == len(printed)
    lab.require_exact()
