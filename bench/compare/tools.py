"""Three tools that train the same model on NODES workers, to be struck and watched from outside."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.losses import RUN_FILE
from headway.clock import seconds_of
from headway.data.tiny_stories import stories
from support.commands import headway
from support.live import LiveRun

NODES = int(os.environ.get("NODES", "3"))
STOP_SECONDS, COORDINATOR_AWAY_SECONDS = 20.0, 10.0
Lines = list[dict[str, Any]]
"""Of one worker: time, step, world and generation of each step it committed."""


class Strike(NamedTuple):
    at: float
    lost: list[int]
    """Nodes that are no survivors."""
    undo: Callable[[], object] = lambda: None
    undo_seconds: float = 0.0


class Agents:
    """An agent process on every node, which starts its worker again: torchrun for both tools."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder, self.torchrun = folder, str(binaries / "torchrun")
        self.lighthouse = str(binaries / "torchft_lighthouse")
        self.ports = [_free_port() for _ in range(NODES + 1)]
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.complete()

    def commands(self) -> dict[int, list[str]]:
        raise NotImplementedError

    def strike_coordinator(self) -> Strike:
        raise NotImplementedError

    def mark(self) -> str:
        """What only commands of its workers have."""
        return str(Path(__file__).parent)

    def complete(self) -> None:
        for node, command in self.commands().items():
            if node not in self.agents or self.agents[node].poll() is not None:
                variables = {
                    "COMPARE_FOLDER": str(self.folder),
                    "COMPARE_NODE": str(node),
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                    # Else workers of one round may read the addresses of the round before.
                    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                    "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.ports[NODES]}",
                }
                with (self.folder / f"log-{node}").open("ab") as log:
                    self.agents[node] = subprocess.Popen(
                        command, env=os.environ | variables, stdout=log, stderr=log
                    )

    def shrink(self) -> None:
        if all(agent.poll() is None for agent in self.agents.values()):
            self.agents[NODES - 1].terminate()

    def lines(self) -> dict[int, Lines]:
        found: dict[int, Lines] = {node: [] for node in range(NODES)}
        for node, lines in found.items():
            with suppress(FileNotFoundError):
                for line in (self.folder / f"node-{node}.jsonl").read_text().splitlines():
                    with suppress(json.JSONDecodeError):  # half of one, at a kill
                        lines.append(json.loads(line))
        return found

    def has_ended(self, lost: list[int]) -> bool:
        return all(self.agents[node].poll() is not None for node in {*range(NODES)} - {*lost})

    def strike(self, fault: str, chance: random.Random) -> Strike:
        newest = {node: lines[-1] for node, lines in self.lines().items()}
        first = next(node for node in newest if newest[node]["rank"] == 0)
        # Node 0 has torchrun's rendezvous: to lose that is a fault of its own.
        guest = chance.randrange(1, NODES)
        machine = [self.agents[guest].pid, newest[guest]["pid"]]
        match fault:
            case "kill" | "kill first" | "kill two":
                others = [node for node in range(NODES) if node != first]
                others = chance.sample(others, min(2, len(others)))
                nodes = {"kill": others[:1], "kill first": [first]}.get(fault, others)
                at = send(signal.SIGKILL, *(newest[node]["pid"] for node in nodes))
                return Strike(at, nodes)
            case "machine":
                return Strike(send(signal.SIGKILL, *machine), [guest])
            case "stop":
                at = send(signal.SIGSTOP, *machine)
                return Strike(at, [guest], lambda: send(signal.SIGCONT, *machine), STOP_SECONDS)
            case "leave":
                return Strike(send(signal.SIGTERM, machine[0]), [guest])
            case "join":
                absent = [node for node, one in self.agents.items() if one.poll() is not None]
                self.complete()
                return Strike(time.time(), absent)
        return self.strike_coordinator()

    def end(self) -> None:
        workers = {line["pid"] for lines in self.lines().values() for line in lines}
        for agent in self.agents.values():
            with suppress(psutil.NoSuchProcess):
                workers |= {one.pid for one in psutil.Process(agent.pid).children(recursive=True)}
            agent.kill()
            agent.wait()
        for pid in workers:
            with suppress(psutil.NoSuchProcess):
                if self.mark() in " ".join(psutil.Process(pid).cmdline()):
                    psutil.Process(pid).kill()


class Torchrun(Agents):
    """Three machines, each with an agent; the rendezvous is in the first one's."""

    def worker(self) -> list[str]:
        return [str(Path(__file__).with_name("torchrun_worker.py"))]

    def commands(self) -> dict[int, list[str]]:
        options = (
            *(f"--nnodes=2:{NODES}", "--nproc-per-node=1", "--max-restarts=100"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.ports[0]}"),
            *("--rdzv-id=compare", "--local-addr=127.0.0.1"),
        )
        hosts = {node: f"--rdzv-conf=is_host={int(node == 0)}" for node in range(NODES)}
        worker = self.worker()
        return {node: [self.torchrun, *options, host, *worker] for node, host in hosts.items()}

    def strike_coordinator(self) -> Strike:
        at = send(signal.SIGKILL, self.agents[0].pid, self.lines()[0][-1]["pid"])
        self.agents[0].wait()
        return Strike(at, [0], self.complete, COORDINATOR_AWAY_SECONDS)


class Torchft(Agents):
    """Three replica groups, each under an agent of its own, and a lighthouse as the README's."""

    heartbeat_milliseconds = 5000  # its default
    gloo_seconds = 5  # of its DDP example
    quorum_retries = 0  # its default

    def commands(self) -> dict[int, list[str]]:
        script = str(Path(__file__).with_name("torchft_worker.py"))
        worker = (script, str(self.gloo_seconds), str(self.quorum_retries))
        options = ("--nnodes=1", "--nproc-per-node=1", "--max-restarts=100")
        lighthouse = (
            *(self.lighthouse, "--bind", f"0.0.0.0:{self.ports[NODES]}", "--min_replicas", "1"),
            *("--quorum_tick_ms", "100", "--join_timeout_ms", "10000"),
            *("--heartbeat_timeout_ms", str(self.heartbeat_milliseconds)),
        )
        agents = {
            node: [self.torchrun, *options, f"--master-port={self.ports[node]}", *worker]
            for node in range(NODES)
        }
        return {NODES: list(lighthouse), **agents}

    def strike_coordinator(self) -> Strike:
        at = send(signal.SIGKILL, self.agents[NODES].pid)
        self.agents[NODES].wait()
        return Strike(at, [], self.complete, COORDINATOR_AWAY_SECONDS)


class TorchftTuned(Torchft):
    """With timeouts nearer to the 1.5 s that Headway waits for a silent worker."""

    heartbeat_milliseconds = 1500
    gloo_seconds = 2
    quorum_retries = 10


class Headway:
    """One launcher plays all nodes and starts again what ends: it has no agents to lose."""

    elastic = "live"

    def __init__(self, folder: Path, binaries: Path) -> None:
        (folder / "text.txt").write_text("\n\n".join(stories(400_000, seed=1)))
        run_file = RUN_FILE.replace("200 steps", "10 steps") + f"elastic: {self.elastic}\n"
        (folder / "run.yaml").write_text(run_file)
        self.run = LiveRun(folder, "losses", NODES)

    def complete(self) -> None:
        pass

    def shrink(self) -> None:
        self.run.wait_for_members(NODES)
        headway("scale", "--nodes", str(NODES - 1), folder=self.run.folder)
        self.run.wait_for_members(NODES - 1)

    def lines(self) -> dict[int, Lines]:
        """Written by the leader, once all members have the step."""
        if not (self.run.folder / "runs").exists():
            return {0: []}
        changes = [*self.run.events("started"), *self.run.events("changed")]
        workers = {one["generation"]: one["workers"] for one in changes}
        steps = [one for one in self.run.directory.metrics.read()[0] if "step" in one]
        for one in steps:
            one |= {"time": seconds_of(one["time"]), "world": workers.get(one["generation"])}
        return {0: steps}

    def has_ended(self, lost: list[int]) -> bool:
        return self.run.process.poll() is not None

    def strike(self, fault: str, chance: random.Random) -> Strike:
        if fault == "join":
            at = time.time()
            headway("scale", "--nodes", str(NODES), folder=self.run.folder)
            return Strike(at, [])
        if fault == "coordinator":
            coordinator = self.run.coordinator()
            assert coordinator is not None
            return Strike(send(signal.SIGKILL, coordinator.pid), [])
        workers = self.run.workers()
        first, *others = [workers[node, 0] for node in self.run.members()]
        chosen = chance.choice(others)
        match fault:
            case "stop":
                at = send(signal.SIGSTOP, chosen)
                return Strike(at, [], lambda: send(signal.SIGCONT, chosen), STOP_SECONDS)
            case "leave":
                return Strike(send(signal.SIGTERM, chosen), [])
        killed = {"kill first": [first], "kill two": others}.get(fault, [chosen])
        return Strike(send(signal.SIGKILL, *killed), [])

    def end(self) -> None:
        with self.run:
            if self.run.process.poll() is None:
                self.run.stop()
                self.run.require_exact()


class HeadwayRestart(Headway):
    """All workers end with a lost one, and resume from the newest checkpoint, as torchrun's do."""

    elastic = "restart"


def send(number: signal.Signals, *pids: int) -> float:
    for pid in pids:
        os.kill(pid, number)
    return time.time()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
