"""`make bench-launchers`: `torchrun --nnodes=1:3` starts a run, three agents on this machine, and
KILLS=10 times a worker or an agent that does not host the rendezvous is killed. Then the same run
under Headway's own launcher, with `elastic: restart` and `live`, and kills of workers.

The ledger has to be exact, and each loss that of an undisturbed run within 1e-5. Recoveries are
seconds from a kill to the first step that is committed after it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.trial import prepare_set
from headway.clock import seconds_of
from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from headway.state.status import newest_event
from support.waiting import wait_for
from support.workers import resolved_run, train

KILLS = int(os.environ.get("KILLS", "10"))
SEED = int(os.environ.get("SEED", "1"))
AGENTS = 3
CALM_STEPS = 30
START_SECONDS = 180.0
AWAY_SECONDS = 3.0
"""Until a killed agent is started again."""
TOLERANCE = 1e-5
RUN_FILE = """\
version: 1
name: NAME
model: {type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 64, n_positions: 32}}
data: {train: set, sequence_length: 32}
batch: {global: 12, micro: 2}
train_for: STEPS steps
schedule: {type: constant, warmup: 0 steps}
precision: fp32
threads: 1
track: []
evaluation: {every: 1000000 steps}
checkpoint: {every: 25 steps}
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="headway-launchers-") as scratch:
        folder = Path(scratch)
        prepare_set(folder, 400_000, 1000)
        found = {"torchrun": _under(Torchrun(folder), KILLS)}
        difference = _largest_difference(folder)
        for elastic in ("restart", "live"):
            found[elastic] = _under(Own(folder, elastic), max(1, KILLS // 2))
    spread = {
        name: {"median": round(statistics.median(seconds), 2), "all": seconds}
        for name, seconds in found.items()
    }
    line = {
        "name": "bench-launchers",
        "figure": difference,
        "target": TOLERANCE,
        "pass": difference <= TOLERANCE,
        "spread": spread,
    }
    print(json.dumps(line))
    return 0


class Torchrun:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _write(folder, "torchrun", 1_000_000)
        self.directory = folder / "runs/torchrun"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.agents = [self._agent(0)]
        wait_for("the rendezvous", self._hosts, START_SECONDS)
        self.agents += [self._agent(number) for number in range(1, AGENTS)]

    def _hosts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _agent(self, number: int) -> subprocess.Popen[bytes]:
        log = (self.folder / f"agent-{number}.log").open("ab")
        conf = f"is_host={int(number == 0)},last_call_timeout=5,keep_alive_interval=1"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{AGENTS}"),
            *("--nproc-per-node=1", "--max-restarts=1000", "--monitor-interval=0.2"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=it"),
            *(f"--rdzv-conf={conf}", "--local-addr=127.0.0.1"),
            *("-m", "headway.train", "torchrun.yaml"),
        ]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Else an agent that joins later waits for an address that nobody sets (torch 2.15).
            env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )

    def kill(self, chance: random.Random) -> str:
        """Returns what was killed."""
        number = chance.randrange(AGENTS)
        if number > 0 and chance.random() < 0.5:
            self.agents[number].kill()
            self.agents[number].wait()
            time.sleep(AWAY_SECONDS)
            self.agents[number] = self._agent(number)
            return f"agent {number}"
        os.kill(_children(self.agents[number].pid)[-1], signal.SIGKILL)
        return f"worker {number}"

    def end(self) -> None:
        _headway(self.folder, "stop", "torchrun")
        for number, agent in enumerate(self.agents):
            assert agent.wait(60) == 0, f"agent {number} ended with {agent.returncode}"

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
                agent.wait(60)


class Own:
    def __init__(self, folder: Path, elastic: str) -> None:
        self.folder, self.elastic = folder, elastic
        _write(folder, elastic, 1_000_000)
        self.directory = folder / "runs" / elastic
        log = (folder / f"{elastic}.log").open("ab")
        command = [*HEADWAY, "run", f"{elastic}.yaml", f"--nodes={AGENTS}"]
        self.launcher = subprocess.Popen(
            [*command, f"--set=elastic={elastic}"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def kill(self, chance: random.Random) -> str:
        number = chance.randrange(AGENTS)
        history = RunDirectory(self.directory).history()
        pids = [e["pid"] for e in history if e["event"] == "worker" and e["node"] == number]
        os.kill(pids[-1], signal.SIGKILL)
        return f"worker {number}"

    def end(self) -> None:
        _headway(self.folder, "stop", self.elastic)
        self.launcher.wait(60)

    def close(self) -> None:
        if self.launcher.poll() is None:
            self.launcher.terminate()
            self.launcher.wait(60)


HEADWAY = (sys.executable, "-m", "headway.cli.main")


def _under(run: Torchrun | Own, kills: int) -> list[float]:
    """Returns the seconds of each recovery."""
    try:
        return _kill_again_and_again(run, kills)
    except BaseException:
        for log in run.folder.glob("*.log"):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
        raise
    finally:
        run.close()


def _kill_again_and_again(run: Torchrun | Own, kills: int) -> list[float]:
    chance, found = random.Random(SEED), []
    for number in range(kills):
        generation = wait_for("calm steps", lambda: _calm_generation(run), START_SECONDS)
        before = time.time()
        what = run.kill(chance)
        after = wait_for(
            f"a step after {what} was killed",
            partial(_first_after, run, generation),
            START_SECONDS,
        )
        found.append(round(after - before, 2))
        print(f"kill {number + 1}: {what}, {found[-1]} s", file=sys.stderr, flush=True)
    wait_for("calm steps", lambda: _calm_generation(run), START_SECONDS)
    run.end()
    verdict = verify_ledger(RunDirectory(run.directory).ledger.read()[0])
    assert verdict.breach is None, verdict
    return found


def _calm_generation(run: Torchrun | Own) -> int | None:
    """The newest generation, once all workers have made some steps in it."""
    if not RunDirectory.exists(run.directory):
        return None
    directory = RunDirectory(run.directory)
    newest = newest_event(directory.history(), "started", "changed")
    if newest is None or newest["workers"] != AGENTS:
        return None
    number: int = newest["generation"]
    steps = [one for one in directory.steps() if one.get("generation") == number]
    return number if len(steps) >= CALM_STEPS else None


def _first_after(run: Torchrun | Own, generation: int) -> float | None:
    """The time of the first step of a later generation."""
    records, _ = RunDirectory(run.directory).metrics.read()
    later = [one for one in records if "step" in one and one["generation"] > generation]
    return seconds_of(later[0]["time"]) if later else None


def _largest_difference(folder: Path) -> float:
    """Of the losses under torchrun from those of one undisturbed worker."""
    losses = [one["loss"] for one in RunDirectory(folder / "runs/torchrun").steps()]
    (folder / "alone").mkdir()
    (folder / "alone/run.yaml").write_text(_text("alone", len(losses)))
    alone = train(resolved_run(folder / "alone", {"train": folder / "set"}), 600.0)
    its = [one["loss"] for one in alone.steps()]
    assert len(its) == len(losses)
    print(f"{len(losses)} steps compared", file=sys.stderr)
    return max(abs(one - other) for one, other in zip(losses, its, strict=True))


def _text(name: str, steps: int) -> str:
    return RUN_FILE.replace("NAME", name).replace("STEPS", str(steps))


def _write(folder: Path, name: str, steps: int) -> None:
    (folder / f"{name}.yaml").write_text(_text(name, steps))


def _headway(folder: Path, *arguments: str) -> None:
    subprocess.run([*HEADWAY, *arguments], cwd=folder, check=True, timeout=120)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


if __name__ == "__main__":
    sys.exit(main())
