"""The examples of other launchers, as small as this machine: run, and disturbed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from bench.compare.environment import ENVIRONMENT
from headway.state.ledger import verify_ledger
from support.commands import headway
from support.launched_run import LaunchedRun
from support.slurm import Slurm, missing_programs
from support.waiting import wait_for

pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(900),
    pytest.mark.long("needs launchers that Headway does not install, or waits for their timeouts"),
]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "launchers"


@pytest.fixture
def run(tmp_path: Path, stream: dict[str, Path]) -> LaunchedRun:
    return LaunchedRun(tmp_path, stream)


def copied(name: str, run: LaunchedRun, changes: Mapping[str, str]) -> Path:
    text = (EXAMPLES / name).read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    copy = run.folder / name
    copy.write_text(text)
    return copy


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    if os.geteuid() != 0 or missing_programs():
        pytest.skip("needs root, and a Slurm: apt-get install slurm-wlm munge")
    (tmp_path / "slurm").mkdir()
    with Slurm(tmp_path / "slurm", nodes=3) as made:
        yield made


ONE_CPU = {"--ntasks-per-node=8": "--ntasks-per-node=1", "#SBATCH --gpus-per-node=8\n": ""}


def wait_for_end(slurm: Slurm, job: str) -> None:
    def has_ended() -> bool:
        return slurm.job(job)["JobState"] in ("COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT")

    wait_for("the job to end", has_ended, 300)


@pytest.mark.parametrize(("lost", "left"), [("n1", "n[2-3]"), ("n2", "n[1,3]")])
def test_slurm_requeues_the_job_of_a_lost_node(
    run: LaunchedRun, slurm: Slurm, lost: str, left: str
) -> None:
    """Two of three nodes train; the power of one is cut, and the job begins again on the others.
    The first has the job's script and rank 0."""
    script = copied("slurm.sbatch", run, ONE_CPU)
    job = slurm.submit(script.name, run.folder)
    wait_for("step 40", lambda: run.step() >= 40, 240)
    assert slurm.job(job)["NodeList"] == "n[1-2]"
    slurm.cut_power(lost)
    wait_for_end(slurm, job)
    facts, words = slurm.job(job), (run.folder / f"slurm-{job}.out").read_text()
    assert (facts["JobState"], facts["NodeList"]) == ("COMPLETED", left), words
    assert facts["Restarts"] == "1", facts
    run.require_finished()


def test_slurm_requeues_the_job_when_its_time_is_up(run: LaunchedRun, slurm: Slurm) -> None:
    """The workers save before that; and a stop that is asked for ends the job."""
    run.go_on()
    times = {"24:00:00": "00:04:00", "TERM@300": "TERM@60"}
    script = copied("slurm.sbatch", run, ONE_CPU | times)
    job = slurm.submit(script.name, run.folder)
    log = run.folder / f"slurm-{job}.out"
    wait_for("the job's second turn", lambda: slurm.job(job)["Restarts"] == "1", 300)
    saved = run.directory.history()[-1]
    assert saved["event"] == "stopped", (saved, log.read_text())
    wait_for("steps in it", lambda: run.step() >= saved["step"] + 20, 240)
    headway("stop", "it", folder=run.folder)
    wait_for_end(slurm, job)
    assert slurm.job(job)["JobState"] == "COMPLETED", log.read_text()
    assert verify_ledger(run.directory.ledger.read()[0]).breach is None


def test_ray_restarts_all_after_a_lost_worker(run: LaunchedRun, tmp_path: Path) -> None:
    """In the environment of bench/compare, beside which Headway's packages are found."""
    python = ENVIRONMENT / "bin/python"
    if not python.exists():
        pytest.skip(f"needs Ray in {ENVIRONMENT}: make bench-compare makes it")
    copied("ray_train.py", run, {"num_workers=16, use_gpu=True": "num_workers=2"})
    log = run.folder / "ray.log"
    places = [str(ROOT / "src"), sysconfig.get_path("purelib")]
    sockets = tempfile.TemporaryDirectory(prefix="ray-")  # a path that is short enough for them
    with sockets as short, log.open("w") as output:
        driver = subprocess.Popen(
            [python, "ray_train.py"],
            cwd=run.folder,
            env={
                **os.environ,
                "PYTHONPATH": ":".join(places),
                "RAY_TMPDIR": short,
                "RAY_AUTH_MODE": "disabled",
                "HOME": str(tmp_path),
            },
            stdout=output,
            stderr=output,
        )
        try:
            wait_for("step 40", lambda: run.step() >= 40 or driver.poll() is not None, 400)
            os.kill(trainers(run.folder)[-1], signal.SIGKILL)
            assert driver.wait(400) == 0, log.read_text()
        finally:
            driver.terminate()
            driver.wait(60)
    events = [event["event"] for event in run.directory.history()]
    assert events.count("launched") == 2, events
    run.require_finished()


def test_torchrun_starts_again_after_the_host_of_its_rendezvous(run: LaunchedRun) -> None:
    """On two machines, which both are this one. The agent that hosts the rendezvous is killed."""
    port = str(free_port())
    script = copied("torchrun.sh", run, {"--nproc-per-node=8": "--nproc-per-node=1", "29400": port})
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["TORCHELASTIC_ERROR_FILE"] = str(run.folder / "error.json")
    machines: list[subprocess.Popen[bytes]] = []
    with (run.folder / "torchrun.log").open("w") as log:
        for _ in range(2):
            machines.append(
                subprocess.Popen(
                    ["sh", script.name, "localhost"],
                    cwd=run.folder,
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
            wait_for("the rendezvous", lambda: is_open(port), 90)
        wait_for("step 40", lambda: run.step() >= 40, 240)
        (agent,) = psutil.Process(machines[0].pid).children()
        agent.kill()
        codes = [machine.wait(400) for machine in machines]
    assert codes == [0, 0], (run.folder / "torchrun.log").read_text()
    run.require_finished()


def is_open(port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def test_skypilot_reads_its_task(tmp_path: Path) -> None:
    """By SkyPilot's own loader."""
    python = os.environ.get("HEADWAY_TEST_SKYPILOT")
    if python is None:
        pytest.skip("needs HEADWAY_TEST_SKYPILOT: the Python of an environment with skypilot")
    shutil.copy(EXAMPLES / "skypilot.yaml", tmp_path)
    asked = subprocess.run([python, "-c", READ_TASK], cwd=tmp_path, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines()[-1] == "2 {'H100': 8} True 100"


READ_TASK = """
import sky
task = sky.Task.from_yaml("skypilot.yaml")
(resources,) = task.resources
restarts = resources.job_recovery["max_restarts_on_errors"]
print(task.num_nodes, resources.accelerators, resources.use_spot, restarts)
"""


def trainers(folder: Path) -> list[int]:
    """Processes that train in this folder."""
    found = psutil.process_iter(["cmdline", "cwd"])
    return [
        one.pid
        for one in found
        if "headway.train" in (one.info["cmdline"] or ()) and one.info["cwd"] == str(folder)
    ]
