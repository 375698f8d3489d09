"""How long Kubernetes keeps the objects of a run that failed, and what a real bucket makes of
`headway target prune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock, stamp
from headway.launch.storage_prune import KEPT_SECONDS, used_mark
from headway.state.store import Store
from support.lab import Lab
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(360),
    pytest.mark.long("a whole run that fails, for what unit tests show over fakes"),
]

DAY = 86400
SAID_SECONDS = 90.0
FAILS = "def fails(*_):\n    raise RuntimeError('mine')\n"
OPTIONS = ("--set", "code={path: src}", "--set", 'objective={call: "mine:fails"}')


def job_of(lab: Lab, name: str = "it") -> dict[str, Any]:
    path = f"/apis/batch/v1/namespaces/{lab.namespace}/jobs/headway-{name}"
    found: dict[str, Any] = lab.cluster.api.get(path)
    return found


def test_a_failed_run_is_kept_and_what_it_leaves_is_pruned(lab: Lab, bucket: Path) -> None:
    lab.change_target(keep={"finished": "1h", "failed": "3d"})
    (lab.folder / "src").mkdir()
    (lab.folder / "src" / "mine.py").write_text(FAILS)
    with lab.typed("run", "--on", "lab", "--nodes", "1", *OPTIONS) as launch:
        launch.wait_for("workers are starting", SAID_SECONDS)
        launch.interrupt()  # it would delete what fails before its first step

    def kept_seconds() -> int:
        return int(job_of(lab)["spec"]["ttlSecondsAfterFinished"])

    wait_for("its failure", lambda: kept_seconds() == 3 * DAY, SAID_SECONDS)
    wait_for("its coordinator to end", lambda: lab.pods("coordinator") == [], SAID_SECONDS)
    assert "RuntimeError: mine" in lab.headway("status").stdout
    lab.headway("delete", "it", "--yes")
    only_what_is_old_is_pruned(lab, bucket)


def only_what_is_old_is_pruned(lab: Lab, bucket: Path) -> None:
    """Its age is edited: nobody waits for seven days."""
    (code,) = bucket.glob("code/2-*/mine.py")
    unused = f"code/{code.parent.name}"
    sets = [*bucket.glob("sets/*/")]
    assert sets
    old = stamp(SystemClock().now() - KEPT_SECONDS - 60)
    Store("s3://bucket/team").write(used_mark(unused), old.encode())
    assert code.parent.name in lab.headway("target", "storage", "lab").stdout
    said = lab.headway("target", "prune", "lab", "--yes").stderr
    assert f"removed {unused}" in said
    assert "unused for less than 7 days, and kept: " in said
    assert not [*bucket.glob("code/*")]
    assert [*bucket.glob("sets/*/")] == sets
    again = lab.headway("target", "prune", "lab", "--yes").stderr
    assert "nothing to remove from the storage of lab" in again
