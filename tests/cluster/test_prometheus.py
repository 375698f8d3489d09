"""A real Prometheus reads a run on a cluster, where its annotations say."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.dashboard import (
    alert_queries,
    dashboard_queries,
    with_something_to_show,
)
from support.lab import RUN_FILE, Lab
from support.prometheus import Prometheus, require_prometheus

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(360),
    pytest.mark.long("Prometheus has to be installed"),
]


def test_a_run_is_found_and_its_losses_are_counted(lab: Lab, tmp_path: Path) -> None:
    require_prometheus()
    lab.write_run(with_something_to_show(RUN_FILE))
    lab.headway("run", "--on", "lab", "--nodes", "2")
    lab.wait_for_workers(2)
    (tmp_path / "prometheus").mkdir()
    with Prometheus(tmp_path / "prometheus", [annotated(lab.pods("coordinator")[0])]) as prometheus:
        prometheus.wait_for('headway_run_members{run="it"} == 2')
        kill_pod(lab, lab.pods()[0])
        prometheus.wait_for("headway_run_losses_total == 1")
        prometheus.wait_for("headway_run_replacements_total == 1")
        for query in dashboard_queries().values():
            prometheus.wait_for(query)
        for query in alert_queries().values():
            assert prometheus.query(query) == []


def annotated(pod: dict[str, Any]) -> dict[str, Any]:
    """Where its annotations say that metrics are. Debian's Prometheus cannot ask Kubernetes."""
    said = pod["metadata"]["annotations"]
    assert said["prometheus.io/scrape"] == "true"
    address = f"{pod['status']['podIP']}:{said['prometheus.io/port']}"
    return {
        "job_name": "pods",
        "metrics_path": said["prometheus.io/path"],
        "static_configs": [{"targets": [address]}],
    }


def kill_pod(lab: Lab, pod: dict[str, Any]) -> None:
    for pid in lab.node_of(pod).pod_pids(pod["metadata"]["uid"]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
