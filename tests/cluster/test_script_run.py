"""A script in pods: a process of it is lost, it is scaled, stopped, resumed, used up and deleted;
its output on a claim and in a bucket."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headway.kube.client import KubeClient
from headway.kube.config_map_record import KubeRecord
from headway.kube.names import record_object, run_object
from headway.state.run_directory import RunDirectory
from support.lab import RECOVER_SECONDS, Lab, is_ready
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RUN_FILE = """\
version: 1
name: it
command: [python, train.py]
resources: {nodes: 2..3}
"""
SCRIPT = """\
import os, signal, sys, time
import fsspec

output, rank, world = (os.environ[key] for key in ("HEADWAY_OUTPUT", "RANK", "WORLD_SIZE"))
files = fsspec.core.url_to_fs(output)[0]


def note(text):
    with fsspec.open(f"{output}/rank-{rank}-{time.time_ns()}", "w") as file:
        file.write(text)


def end(*_):
    note(f"term of {world}")
    time.sleep(12 if rank == "0" else 0)  # longer than anybody waits for a model
    note(f"saved of {world}")
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
print(f"rank {rank} of {world} at {os.environ['MASTER_ADDR']}", flush=True)
note(f"start of {world}")
while not files.exists(f"{output}/finish"):
    files.invalidate_cache()
    time.sleep(0.2)
note("done")
"""


def write_script(lab: Lab) -> None:
    """In a folder of its own: the bucket's files may be beside it."""
    targets = lab.folder / "targets.yaml"
    lab.folder = lab.folder / "mine"
    lab.folder.mkdir()
    targets.rename(lab.folder / "targets.yaml")
    (lab.folder / "run.yaml").write_text(RUN_FILE)
    (lab.folder / "train.py").write_text(SCRIPT)


def processes(lab: Lab) -> list[int]:
    """Those of the script, in all pods."""
    uids = [(lab.node_of(pod), pod["metadata"]["uid"]) for pod in lab.pods()]
    pids = [pid for node, uid in uids for pid in node.pod_pids(uid)]
    return [pid for pid in pids if "train.py" in Path(f"/proc/{pid}/cmdline").read_text()]


class Seen:
    """The script's run, from its files."""

    def __init__(self, lab: Lab, runs: Path) -> None:
        self.lab, self.folder = lab, runs / "it"

    def notes(self, words: str) -> int:
        files = (self.folder / "output").glob("rank-*")
        return sum(file.read_text() == words for file in files)

    def starts(self) -> list[dict[str, Any]]:
        directory = RunDirectory(self.folder)
        return [event for event in directory.history() if event["event"] == "started"]

    def wait_for_start(self, workers: int, number: int = 1) -> None:
        """As the script itself sees it: so often."""
        wait_for(
            f"start {number} of {workers}",
            lambda: self.notes(f"start of {workers}") >= number * workers,
            2 * RECOVER_SECONDS,
        )

    def finish(self) -> None:
        (self.folder / "output" / "finish").touch()
        wait_for("its end", lambda: self.lab.status()["state"] == "finished", RECOVER_SECONDS)
        # The script says so before its processes have ended.
        wait_for("the end of its Job", self._job_is_complete, RECOVER_SECONDS)

    def _job_is_complete(self) -> bool:
        path = f"/apis/batch/v1/namespaces/{self.lab.namespace}/jobs/{run_object('it')}"
        found = self.lab.cluster.api.get(path)["status"].get("conditions", ())
        return any(one["type"] == "Complete" and one["status"] == "True" for one in found)


@pytest.mark.long("two minutes; tests/local/test_script_run.py has the same on one machine")
def test_the_whole_life_of_a_script_on_a_claim(lab: Lab) -> None:
    write_script(lab)
    seen = Seen(lab, lab.shared / "runs")
    lab.headway("run", "--on", "lab", "--nodes", "2")
    seen.wait_for_start(2)
    status = lab.status()
    assert (status["state"], status["is_script"], status["workers"]) == ("running", True, 2)
    said = lab.headway("logs", "--all").stdout
    addresses = {pod["status"]["podIP"] for pod in lab.pods()}
    assert any(f"rank 0 of 2 at {address}" in said for address in addresses)

    pods = {pod["metadata"]["name"] for pod in lab.pods()}
    os.kill(processes(lab)[0], signal.SIGKILL)
    seen.wait_for_start(2, 2)
    assert {pod["metadata"]["name"] for pod in lab.pods()} == pods, "pods stay"

    before = seen.notes("saved of 2")  # of the one that had a second, when the other was lost
    lab.headway("scale", "--nodes", "3")
    seen.wait_for_start(3)
    assert seen.notes("saved of 2") == before + 2, "rank 0 has taken its 12 s"

    lab.headway("stop")
    wait_for("its end", lambda: not lab.pods(), 2 * RECOVER_SECONDS)
    assert seen.notes("saved of 3") == 3
    assert lab.status()["state"] == "stopped"
    lab.headway("resume")
    seen.wait_for_start(3, 2)
    seen.finish()
    assert seen.notes("done") == 3
    lab.headway("delete", "--on", "lab", "it", "--yes")
    wait_for("nothing to be left", lambda: lab.objects() == [], RECOVER_SECONDS)


LAST_SAVE = """\
import os, time
from pathlib import Path

output = Path(os.environ["HEADWAY_OUTPUT"])
note = f"start of {os.environ['WORLD_SIZE']}"
(output / f"rank-{os.environ['RANK']}-{time.time_ns()}").write_text(note)
while os.environ["RANK"] == "0" and not (output / "finish").exists():
    time.sleep(0.2)
"""


@pytest.mark.long("a minute; tests/local/test_script_worker.py has the same on one machine")
def test_a_node_that_joins_in_the_last_save_does_not_begin_it_again(lab: Lab) -> None:
    """It waits for its place when the script finishes; the Job may delete it before it has one."""
    write_script(lab)
    (lab.folder / "run.yaml").write_text(RUN_FILE.replace("2..3", "1..3"))
    (lab.folder / "train.py").write_text(LAST_SAVE)
    seen = Seen(lab, lab.shared / "runs")
    lab.headway("run", "--on", "lab", "--nodes", "2")
    seen.wait_for_start(2)  # perhaps after one of a pod that was there first
    before = generation_number(lab)
    lab.headway("scale", "--nodes", "3")
    wait_for("the change", lambda: generation_number(lab) > before, 2 * RECOVER_SECONDS)
    seen.finish()
    wait_for("its end", lambda: not any(is_ready(pod) for pod in lab.pods()), RECOVER_SECONDS)
    assert lab.status()["state"] == "finished"
    names = ("started", "finished", "stopped")
    history = RunDirectory(seen.folder).history()
    told = [(one["event"], one.get("workers")) for one in history if one["event"] in names]
    logs = [log.read_text() for log in (seen.folder / "logs").glob("node-*.log")]
    print(told, sum("nothing is left to do" in log for log in logs))
    assert told[-2:] == [("started", 2), ("finished", None)], told


def generation_number(lab: Lab) -> int:
    """By the coordinator's record."""
    kube = KubeClient.from_kubeconfig(None, lab.namespace)
    return KubeRecord(kube, record_object("it"), "it").read().generation.number


@pytest.mark.long("a minute; the bucket is the same for a model")
def test_its_output_is_in_the_bucket_and_its_budget_ends_it(lab: Lab, bucket: Path) -> None:
    write_script(lab)
    seen = Seen(lab, bucket / "runs")
    lab.headway("run", "--on", "lab", "--nodes", "2", "--set", "budget.hours=0.004")
    seen.wait_for_start(2)
    wait_for("the end of its budget", lambda: seen.notes("saved of 2") == 2, 3 * RECOVER_SECONDS)
    wait_for("no pods", lambda: not lab.pods(), RECOVER_SECONDS)
    assert "hours are used up" in lab.headway("status").stdout
    lab.headway("run", "--on", "lab", "--nodes", "2", "--set", "budget.hours=1")
    seen.wait_for_start(2, 2)
    seen.finish()
    lab.headway("delete", "--on", "lab", "it", "--yes")
