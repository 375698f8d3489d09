"""`make bench-scripts`: the four scripts of examples/scripts lose a node, LOSSES=5 times each.

Three nodes of one process each on this machine. Once a script has saved, one node is killed
(SIGKILL), and the script must finish by its own checkpoint. Measured from the kill to the moment
when all processes that run on have been started again, and to the first step that is printed after
it. In turns: Headway; torchrun whose process is killed; torchrun whose agent is killed with it, as
when a machine is lost: it continues with two. SCRIPTS=nano,images and TOOLS=headway choose some.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bench.compare.tools import NODES, Torchrun, send
from support.example_scripts import SCRIPTS, Printed, Script, processes
from support.live import LiveRun

LOSSES, SEED = int(os.environ.get("LOSSES", "5")), int(os.environ.get("SEED", "1"))
TARGET_SECONDS = 10.0
START_SECONDS, DEADLINE_SECONDS = 180.0, 180.0
POLL_SECONDS = 0.05
STEPS_BEFORE = 5
"""Since the first checkpoint."""
Result = dict[str, Any]


class Trial(ABC):
    """A script on NODES nodes."""

    left = NODES
    """Nodes that train after the loss."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.script, self.folder = script, folder
        self.output = folder / "output"

    def processes(self) -> dict[int, float]:
        return processes(str(self.folder))

    @abstractmethod
    def logs(self) -> list[Path]: ...

    @abstractmethod
    def kill_node(self, chance: random.Random) -> float:
        """When it was killed."""

    @abstractmethod
    def exit_code(self) -> int | None:
        """Once it has ended."""

    @abstractmethod
    def end(self) -> None:
        """Of whatever still runs."""


class UnderHeadway(Trial):
    """One launcher plays all nodes, so a node is a script worker and its script."""

    def __init__(self, script: Script, folder: Path) -> None:
        super().__init__(script, folder)
        code = script.make_run(folder, script.short)
        self.run = LiveRun(code, script.name, NODES)
        self.output = code / "runs" / script.name / "output"

    def logs(self) -> list[Path]:
        has_begun = Path(self.run.directory.location).exists()
        return self.run.directory.logs() if has_begun else []

    def kill_node(self, chance: random.Random) -> float:
        worker = psutil.Process(self.run.workers()[chance.randrange(1, NODES), 0])
        return send(signal.SIGKILL, worker.pid, *(one.pid for one in worker.children()))

    def exit_code(self) -> int | None:
        return self.run.process.poll()

    def end(self) -> None:
        with self.run:
            if self.exit_code() is None:
                self.run.process.send_signal(signal.SIGINT)
                self.run.end()


class _Agents(Torchrun):
    """Torchrun's agents with a script in the place of the bench's own worker."""

    def __init__(self, script: Script, folder: Path) -> None:
        train, *arguments = script.arguments(folder / "output", script.short)
        self.command = [str(script.copy_to(folder) / train), *arguments]
        super().__init__(folder, Path(sys.executable).parent)

    def worker(self) -> list[str]:
        return self.command

    def mark(self) -> str:
        return str(self.folder)


class UnderTorchrun(Trial):
    """Its agent starts a killed process again."""

    has_agent_killed = False

    def __init__(self, script: Script, folder: Path) -> None:
        super().__init__(script, folder)
        self.agents = _Agents(script, folder)
        self.survivors = set(range(NODES))

    def logs(self) -> list[Path]:
        return sorted(self.folder.glob("log-*"))

    def kill_node(self, chance: random.Random) -> float:
        node = chance.randrange(1, NODES)  # node 0 has the rendezvous
        agent = self.agents.agents[node].pid
        scripts = [child.pid for child in psutil.Process(agent).children()]
        if self.has_agent_killed:
            self.survivors.remove(node)
        return send(signal.SIGKILL, *([agent] if self.has_agent_killed else []), *scripts)

    def exit_code(self) -> int | None:
        codes = [self.agents.agents[node].poll() for node in self.survivors]
        return None if None in codes else max(abs(code or 0) for code in codes)

    def end(self) -> None:
        self.agents.end()


class UnderTorchrunWithoutAgent(UnderTorchrun):
    """Two of three continue."""

    has_agent_killed = True
    left = NODES - 1


TOOLS: dict[str, type[Trial]] = {
    "headway": UnderHeadway,
    "torchrun": UnderTorchrun,
    "torchrun-without-agent": UnderTorchrunWithoutAgent,
}


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    # As users have it, or the time at which a line is seen is not that of its step.
    os.environ["PYTHONUNBUFFERED"] = "1"
    tools = [tool for tool in TOOLS if tool in os.environ.get("TOOLS", tool).split(",")]
    names = [name for name in SCRIPTS if name in os.environ.get("SCRIPTS", name).split(",")]
    found: dict[str, dict[str, list[Result]]] = {n: {t: [] for t in tools} for n in names}
    for number in range(LOSSES):
        for name in names:
            for tool in tools:
                chance = random.Random(f"{SEED}/{name}/{number}")
                result = one_loss(tool, SCRIPTS[name], chance)
                found[name][tool].append(result)
                say(f"{name}, {tool}, {number + 1}/{LOSSES}: {result}")
    spread = {
        name: {tool: summary(results) for tool, results in by_tool.items()}
        for name, by_tool in found.items()
    }
    ours = [one for name in names for one in found[name].get("headway", [])]
    seconds = [one["started"] for one in ours]
    figure = None if None in seconds or not seconds else round(statistics.median(seconds), 2)
    line = {
        "name": "bench-scripts",
        "figure": figure,
        "target": TARGET_SECONDS,
        "pass": figure is not None
        and figure < TARGET_SECONDS
        and all(one["finished"] for one in ours),
        "spread": spread,
        "versions": {name: version(name) for name in ("torch", "transformers", "accelerate")},
    }
    print(json.dumps(line))
    return 0


def one_loss(tool: str, script: Script, chance: random.Random) -> Result:
    folder = Path(tempfile.mkdtemp(prefix=f"headway-scripts-{script.name}-"))  # its logs are kept
    trial = TOOLS[tool](script, folder)
    try:
        return loss_of(trial, chance)
    except Unexpected as error:
        return {"started": None, "stepped": None, "finished": False, "note": f"{error}: {folder}"}
    finally:
        trial.end()


def loss_of(trial: Trial, chance: random.Random) -> Result:
    printed = Printed(trial.script)
    wait_for_checkpoint(trial, printed)
    time.sleep(chance.random() * 0.3)  # any point of a step
    before = trial.processes()
    at = trial.kill_node(chance)
    started, stepped = next_step(trial, printed, before, at)
    finished = wait_for_end(trial, at)
    return {"started": round(started, 2), "stepped": round(stepped, 2), "finished": finished}


class Unexpected(Exception):
    """It did not come so far that there is something to measure."""


def wait_for_checkpoint(trial: Trial, printed: Printed) -> None:
    """And some steps more."""
    deadline, steps = time.time() + START_SECONDS, 0
    while steps < STEPS_BEFORE:
        require_running(trial, deadline, "no checkpoint")
        has_stepped = printed.has_stepped(trial.logs())
        steps += has_stepped and any(trial.output.glob(trial.script.checkpoints))
        time.sleep(POLL_SECONDS)


def next_step(
    trial: Trial, printed: Printed, before: dict[int, float], at: float
) -> tuple[float, float]:
    """Seconds until the last process was started, and until the first step of all of them. If they
    are started more than once until then, the last time counts."""
    while True:
        require_running(trial, at + DEADLINE_SECONDS, "no step after the loss")
        now = trial.processes()
        has_stepped = printed.has_stepped(trial.logs())
        if has_stepped and len(now) == trial.left and not now.keys() & before.keys():
            return max(now.values()) - at, time.time() - at
        time.sleep(POLL_SECONDS)


def wait_for_end(trial: Trial, at: float) -> bool:
    """Whether it ended as it should, by a checkpoint of its own."""
    while trial.exit_code() is None and time.time() < at + 2 * DEADLINE_SECONDS:
        time.sleep(POLL_SECONDS)
    said = "".join(log.read_text(errors="replace") for log in trial.logs())
    has_model = (trial.output / trial.script.model).exists()
    return trial.exit_code() == 0 and has_model and trial.script.resumed in said


def require_running(trial: Trial, deadline: float, what: str) -> None:
    if trial.exit_code() is not None:
        raise Unexpected(f"{what}: it ended with {trial.exit_code()}")
    if time.time() > deadline:
        raise Unexpected(f"{what} within the deadline")


def summary(results: list[Result]) -> Result:
    """What did not come counts as longer than all that did."""
    figures: Result = {"finished": sum(one["finished"] for one in results)}
    for key in ("started", "stepped"):
        all_ = sorted((one[key] for one in results), key=lambda s: (s is None, s))
        figures[key] = {"median": all_[len(all_) // 2], "all": all_}
    notes = [one["note"] for one in results if "note" in one]
    return figures | ({"notes": notes} if notes else {})


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
