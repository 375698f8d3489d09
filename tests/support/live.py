"""A run of several workers as a user starts it, for tests that kill, stop and cut what is in it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from headway.member.coordinator.record import StoreRecord
from headway.member.protocol.generation import Generation
from headway.member.protocol.identity import parse
from headway.state.ledger import verify_ledger
from headway.state.rewinds import step_after
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from support.commands import Started
from support.stolen_time import Deadline
from support.waiting import wait_for

RUN_FILE = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32}}
data:
  train: {sources: [text.txt], tokenizer: {train: {vocab: 400}}}
  sequence_length: 16
batch: {global: 14, micro: 2}
train_for: 100000 steps
precision: fp32
schedule: {type: constant, warmup: 5 steps}
threads: 1
seed: 3
track: []
evaluation: {every: 1000000 steps}
"""
"""A small model, a batch that three workers cannot divide evenly, and no end."""
Found = TypeVar("Found")

START_SECONDS = 120.0


def write_run(folder: Path, text: Path, run_file: str = RUN_FILE) -> Path:
    """What `headway run` needs there: the run file, and the text it trains on."""
    (folder / "text.txt").write_text((text / "train.txt").read_text())
    (folder / "run.yaml").write_text(run_file)
    return folder


class LiveRun(Started):
    """`headway run` in a process of its own, looked at from outside."""

    def __init__(self, folder: Path, name: str, nodes: int, *options: str) -> None:
        super().__init__("run", "--nodes", str(nodes), *options, folder=folder)
        self.folder = folder
        self.directory = RunDirectory(folder / "runs" / name)

    @property
    def step(self) -> int:
        return step_after(self.directory.metrics.last() or {"rewind": 0})

    def workers(self) -> dict[tuple[int, int], int]:
        """(node, local rank) and process id of those that are alive."""
        noted = {
            (event["node"], event["local_rank"]): event["pid"]
            for event in self.directory.launcher.read()[0]
            if event["event"] == "worker"
        }
        location = self.directory.location
        return {place: pid for place, pid in noted.items() if is_alive(pid, location)}

    def coordinator(self) -> psutil.Process | None:
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if "coordinator" in child.cmdline():
                    return child
        return None

    def coordinator_log(self) -> Path | None:
        coordinator = self.coordinator()
        words = [] if coordinator is None else coordinator.cmdline()
        if not words:
            return None
        return Path(words[words.index("--settings") + 1]).with_name("coordinator.log")

    def generation(self) -> Generation:
        """The newest, as its coordinator has written it down."""
        members = Store(self.directory.store.location("members"))
        return StoreRecord(members, self.directory.name).read().generation

    def members(self) -> list[int]:
        """Nodes of the newest generation, the leader first."""
        generation = self.generation()
        nodes = [node_of(domain.workers[0]) for domain in generation.domains]
        return nodes[generation.leader :] + nodes[: generation.leader]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.directory.history() if event["event"] == name]

    def wait_for_step(self, step: int, seconds: float = START_SECONDS) -> None:
        def reached() -> bool:
            assert self.process.poll() is None or self.step >= step, self.end()
            return self.step >= step

        wait_for(f"step {step}", reached, seconds)

    def wait_for_members(self, workers: int, seconds: float = 30.0) -> None:
        def changed() -> bool:
            events = [*self.events("started"), *self.events("changed")]
            newest = max(events, key=lambda event: event["generation"])
            return bool(newest["workers"] == workers)

        wait_for(f"{workers} members", changed, seconds)

    def kill(self, *places: tuple[int, int]) -> None:
        workers = self.workers()
        for place in places:
            os.kill(workers[place], signal.SIGKILL)

    def end(self, seconds: float = 60.0) -> str:
        """What it printed, until its end."""
        self.process.wait(seconds)
        self._reader.join(seconds)
        return self.output

    def stop(self) -> str:
        self.process.send_signal(signal.SIGINT)
        output = self.end()
        assert self.process.returncode == 6, output
        return output

    def require_exact(self) -> None:
        """Every sample once: the ledger, and one line of metrics for each step."""
        verdict = verify_ledger(self.directory.ledger.read()[0])
        assert verdict.breach is None, verdict
        steps = [line["step"] for line in self.directory.steps()]
        assert steps == list(range(1, len(steps) + 1))
        assert verdict.steps == len(steps)

    def losses(self) -> list[float]:
        return [line["loss"] for line in self.directory.steps()]

    def targets(self) -> list[int]:
        return [line["targets"] for line in self.directory.steps()]


class Away:
    """The coordinator is killed; the one that the launcher starts in its place is held up until
    the end, before it can listen."""

    def __init__(self, run: LiveRun) -> None:
        self.run = run
        self.back_at = 0.0
        """When the next one listens, in seconds since 1970."""

    def __enter__(self) -> Away:
        before = self.run.coordinator()
        assert before is not None
        before.kill()
        self._next = soon("another coordinator", lambda: self._other_than(before), 10.0)
        self._next.suspend()
        assert not _listens(self._next), "held up too late"
        return self

    def __exit__(self, *_: object) -> None:
        self._next.resume()
        soon("it to listen", lambda: _listens(self._next), 30.0)
        self.back_at = time.time()

    def _other_than(self, before: psutil.Process) -> psutil.Process | None:
        found = self.run.coordinator()
        return None if found == before else found


def soon(what: str, look: Callable[[], Found | None], seconds: float) -> Found:
    """Like `wait_for`, within milliseconds: it takes part of a core."""
    deadline = Deadline(seconds)
    while not (found := look()):
        assert not deadline.has_passed, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.002)
    return found


def _listens(process: psutil.Process) -> bool:
    connections = process.net_connections("tcp")
    return any(one.status == psutil.CONN_LISTEN for one in connections)


def node_of(worker: str) -> int:
    index = parse(worker).node_index
    assert index is not None, worker
    return index


def is_alive(pid: int, run_directory: str) -> bool:
    """Whether it is a worker of that run, and no other process that has its number now."""
    try:
        process = psutil.Process(pid)
        return run_directory in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def num_sockets(pid: int) -> int:
    """That a process has open."""
    found = 0
    with suppress(FileNotFoundError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed meanwhile
                found += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return found
