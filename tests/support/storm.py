"""A storm over a live run: every few seconds something is killed, stopped, sent away or scaled, by
a seed. What must be true of the run afterwards is in stormed.py.

At least one node that certainly has the run's state is always left alone: else the run would go
back to a checkpoint, as it should, and that is another test.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import psutil

from support.commands import headway
from support.live import LiveRun, is_alive
from support.stolen_time import Deadline

Found = TypeVar("Found")

KINDS = (
    "worker",
    "leader",
    "first node",
    "two at once",
    "newcomer",
    "stopped",
    "leader stopped",
    "leaves",
    "coordinator",
    "coordinator stopped",
    "coordinator and worker",
    "scaled",
)
STALL_SECONDS = 60.0
"""Twice what the coordinator gives a worker to come to a generation."""
CALM_SECONDS = 90.0
STOP_SECONDS = 60.0
MOST_KILLS = 2
MORE_STEPS = 30
"""After the storm, with all nodes."""


@dataclass(frozen=True)
class Fault:
    kind: str
    words: str
    time: float
    """Seconds since 1970, like the times of steps."""


@dataclass(frozen=True)
class Due:
    """What follows from a fault later on."""

    at: float
    act: Callable[[], None]


class Storm:
    def __init__(
        self,
        run: LiveRun,
        nodes: int,
        seed: int,
        *,
        ranks: int = 1,
        kinds: Sequence[str] = KINDS,
        pauses: tuple[float, float] = (3.0, 5.0),
        tick_seconds: float = 0.05,
        watch: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        """`ranks`: of a node, which are lost together. `pauses`: seconds between two faults.
        `tick_seconds`: between two looks at the run, each of which takes milliseconds of a core.
        `watch` is called with each of them."""
        self.run, self.nodes, self.ranks = run, nodes, ranks
        self.seed, self.chance = seed, random.Random(seed)
        self.kinds, self.pauses, self.tick_seconds = kinds, pauses, tick_seconds
        self.watch, self.say = watch, say
        self.faults: list[Fault] = []
        self.survived = 0
        """Faults after which steps were committed."""
        self.begun: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        """The most threads and open files of any worker, before and after the storm."""
        self.coordinator: psutil.Process | None = None
        """After the storm."""
        self.finishers: dict[tuple[int, int], int] = {}
        """Workers that were there when it was over, until the end."""
        self.calm_step = 0
        """From which on they took part in every step."""
        self._wanted = nodes
        self._holders: set[int] = set()
        """Nodes that certainly have the run's state."""
        self._stopped: dict[int, list[int]] = {}
        """Nodes that stand still, and their processes."""
        self._doomed: set[int] = set()
        """Processes that have ended or will."""
        self._kills: dict[int, tuple[int, int]] = {}
        """Of a node: the newest step when it was last killed, and how often at that step."""
        self._due: list[Due] = []
        self._num_starts = 0
        self._after_step = 0
        """All nodes are well again when all take part in a step after this one."""
        self._newest_step = 0
        self._stalled_at = Deadline(STALL_SECONDS)

    def blow(self, faults: int) -> None:
        """So many faults, and then until all nodes are well and have taken some steps."""
        self._wait("all nodes to begin", self._is_calm, 120.0)
        self.begun = self._sizes()
        for number, kind in enumerate(self._plan(faults)):
            # Its own for each: how often one had to look for victims does not change the next.
            self.chance = random.Random(f"{self.seed}/{number}")
            self._go_on(self.chance.uniform(*self.pauses))
            self.survived = len(self.faults)
            self._strike(kind)
        self._wait("everything to be undone", lambda: not self._due, CALM_SECONDS)
        self._wait("all nodes to be members again", self._is_calm, CALM_SECONDS)
        self.finishers, self.calm_step = self.run.workers(), self.run.step
        last = self.calm_step + MORE_STEPS
        self._wait(f"step {last}", lambda: self.run.step >= last, 2 * STALL_SECONDS)
        assert self._is_calm(), f"somebody was lost after the storm{self._where()}"
        self.survived = len(self.faults)
        self.ended = self._sizes()
        self.coordinator = self.run.coordinator()

    def finish(self) -> str:
        """Stops the run as Ctrl-C does; what it has printed."""
        self.say("stopping")
        self.run.process.send_signal(signal.SIGINT)
        try:
            return self.run.end(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"waited {STOP_SECONDS:.0f} s for the run to stop") from None

    # Time

    def _plan(self, faults: int) -> list[str]:
        """All kinds about equally often, in any order."""
        plan: list[str] = []
        while len(plan) < faults:
            plan += self.chance.sample(self.kinds, len(self.kinds))
        return plan[:faults]

    def _go_on(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._wait("time to pass", lambda: time.monotonic() >= until, seconds + STALL_SECONDS)

    def _wait(self, what: str, look: Callable[[], Found | None], seconds: float) -> Found:
        deadline = Deadline(seconds)
        while True:
            self._tick()
            if found := look():
                return found
            assert not deadline.has_passed, f"waited {seconds:.0f} s for {what}{self._where()}"
            time.sleep(self.tick_seconds)

    def _tick(self) -> None:
        """What is due is done, and the run is looked at."""
        now = time.monotonic()
        for due in [due for due in self._due if due.at <= now]:
            self._due.remove(due)
            due.act()
        code = self.run.process.poll()
        assert code is None, f"the run ended with code {code}{self._where()}:\n{self.run.end()}"
        step = self.run.step
        if step != self._newest_step:
            self._newest_step, self._stalled_at = step, Deadline(STALL_SECONDS)
        is_stalled = self._newest_step and self._stalled_at.has_passed
        assert not is_stalled, f"no step for {STALL_SECONDS:.0f} s{self._where()}"
        launched = [e for e in self.run.directory.launcher.read()[0] if e["event"] == "worker"]
        for start in launched[self._num_starts :]:
            self._after_step = max(self._after_step, step + 1)
            # The launcher compares steps when it has seen a loss: steps committed between the kill
            # and that moment are none since.
            kills = self._kills.get(start["node"], (0, 0))[1]
            self._kills[start["node"]] = (self.run.step, kills)
        self._num_starts = len(launched)
        self._holders.intersection_update(self.run.members())
        if self._is_calm():
            self._holders = set(range(self.nodes))
        self.watch()

    def _where(self) -> str:
        last = f", after fault {len(self.faults)} ({self.faults[-1].words})" if self.faults else ""
        return f" at step {self.run.step}{last}"

    def _is_calm(self) -> bool:
        """Whether all nodes have taken a step together since the last one was touched."""
        if self._wanted != self.nodes or self._stopped or len(self.run.workers()) != self._all:
            return False
        if any(is_alive(pid, self.run.directory.location) for pid in self._doomed):
            return False
        last = self.run.directory.ledger.last() or {}
        return last.get("members") == self._all and last["step"] > self._after_step

    @property
    def _all(self) -> int:
        return self.nodes * self.ranks

    def _sizes(self) -> dict[str, int]:
        processes = [psutil.Process(pid) for pid in self.run.workers().values()]
        return {
            "threads": max(process.num_threads() for process in processes),
            "files": max(process.num_fds() for process in processes),
        }

    # Faults

    def _strike(self, kind: str) -> None:
        match kind:
            case "worker":
                words = self._kill(*self._choose(1))
            case "leader":
                words = self._kill(*self._choose(1, self._leader))
            case "first node":
                words = self._kill(*self._choose(1, lambda: 0))
            case "two at once":
                words = self._kill(*self._choose(2))
            case "newcomer":
                words = self._kill_newcomer()
            case "stopped":
                words = self._stop(*self._choose(1))
            case "leader stopped":
                words = self._stop(*self._choose(1, self._leader))
            case "leaves":
                words = self._send_away(*self._choose(1))
            case "coordinator":
                words = self._kill_coordinator()
            case "coordinator stopped":
                words = self._stop_coordinator()
            case "coordinator and worker":
                victims = self._choose(1)
                words = f"{self._kill_coordinator()} and {self._kill(*victims)}"
            case "scaled":
                words = self._scale()
            case _:
                raise ValueError(f"no fault is called {kind!r}")
        self.faults.append(Fault(kind, words, time.time()))
        self.say(f"step {self.run.step}: fault {len(self.faults)}, {words}")

    def _choose(self, count: int, one: Callable[[], int] | None = None) -> list[int]:
        """Nodes to strike: any of those that are up, `one` among them; never the last that
        certainly has the run's state."""

        def look() -> list[int]:
            up = self._up()
            nodes = self.chance.sample(sorted(up), len(up))
            if one is not None:
                nodes = [node for node in nodes if node == one()]
            return nodes[:count] if self._may_lose(nodes[:count], count) else []

        return self._wait(f"{count} that may be struck", look, CALM_SECONDS)

    def _leader(self) -> int:
        return self.run.members()[0]

    def _may_lose(self, nodes: list[int], count: int) -> bool:
        return len(nodes) == count and bool(self._holders.difference(nodes, self._stopped))

    def _up(self) -> dict[int, list[int]]:
        """Nodes whose processes are all there, and can be struck."""
        workers, up = self.run.workers(), {}
        for node in range(self._wanted):
            pids = [workers[place] for place in sorted(workers) if place[0] == node]
            step, kills = self._kills.get(node, (0, 0))
            # The third loss of a node without a step in between ends the run, as it should.
            may_be_lost = kills < MOST_KILLS or self.run.step > step
            is_there = len(pids) == self.ranks and not self._doomed.intersection(pids)
            if is_there and may_be_lost and node not in self._stopped:
                up[node] = pids
        return up

    def _some_of(self, pids: list[int]) -> list[int]:
        """A machine, or one process of it."""
        return pids if self.chance.random() < 0.5 else [self.chance.choice(pids)]

    def _touch(self, node: int) -> None:
        self._holders.discard(node)
        self._after_step = max(self._after_step, self.run.step + 1)

    def _kill(self, *nodes: int) -> str:
        up = self._up()
        for node in nodes:
            step, kills = self._kills.get(node, (0, 0))
            self._kills[node] = (self.run.step, kills + 1 if self.run.step <= step else 1)
            self._touch(node)
            self._doomed.update(up[node])  # what is left of a domain is ended
            for pid in self._some_of(up[node]):
                _send(pid, signal.SIGKILL)
        return f"SIGKILL of node {' and '.join(map(str, nodes))}"

    def _kill_newcomer(self) -> str:
        """One that is just coming: while it is built, admitted, or healed."""
        (node,) = self._choose(1)
        self._kill(node)
        self._wait(f"node {node} to be started again", lambda: node in self._up(), CALM_SECONDS)
        age = self.chance.uniform(0.0, 1.5)
        self._go_on(age)
        if node not in self._up():  # lost with another fault meanwhile
            return f"SIGKILL of node {node}"
        return f"{self._kill(node)} that was there for {age:.2f} s"

    def _stop(self, node: int) -> str:
        pids = self._some_of(self._up()[node])
        seconds = self.chance.uniform(2.0, 6.0)
        self._touch(node)
        self._stopped[node] = pids
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        self._due.append(Due(time.monotonic() + seconds, lambda: self._let_go_on(node)))
        return f"SIGSTOP of node {node} for {seconds:.1f} s"

    def _let_go_on(self, node: int) -> None:
        for pid in self._stopped.pop(node):
            _send(pid, signal.SIGCONT)
        self._touch(node)
        self.say(f"step {self.run.step}: node {node} goes on")

    def _send_away(self, node: int) -> str:
        pids = self._up()[node]
        self._touch(node)
        self._doomed.update(pids)
        for pid in self._some_of(pids):
            _send(pid, signal.SIGTERM)
        return f"SIGTERM of node {node}"

    def _kill_coordinator(self) -> str:
        self._wait("a coordinator", self.run.coordinator, 30.0).kill()
        return "SIGKILL of the coordinator"

    def _stop_coordinator(self) -> str:
        coordinator = self._wait("a coordinator", self.run.coordinator, 30.0)
        seconds = self.chance.uniform(1.0, 5.0)
        _send(coordinator.pid, signal.SIGSTOP)
        self._due.append(
            Due(time.monotonic() + seconds, lambda: _send(coordinator.pid, signal.SIGCONT))
        )
        return f"SIGSTOP of the coordinator for {seconds:.1f} s"

    def _scale(self) -> str:
        """Down, and back later."""

        def look() -> int | None:
            fewer = self.chance.randrange(max(1, self.nodes - 2), self.nodes)
            going = list(range(fewer, self.nodes))
            is_back = self._wanted == self.nodes
            return fewer if is_back and self._may_lose(going, len(going)) else None

        fewer = self._wait("nodes that may go", look, CALM_SECONDS)
        for node in range(fewer, self.nodes):
            self._touch(node)
        self._doomed.update(pid for place, pid in self.run.workers().items() if place[0] >= fewer)
        self._want(fewer)
        until = time.monotonic() + self.chance.uniform(0.5, 4.0)
        self._due.append(Due(until, lambda: self._want(self.nodes)))
        return f"scaled to {fewer} nodes"

    def _want(self, nodes: int) -> None:
        if nodes > self._wanted:
            self.say(f"step {self.run.step}: scaled back to {nodes} nodes")
        self._wanted = nodes
        name = self.run.directory.name
        headway("scale", "--nodes", str(nodes), name, folder=self.run.folder, seconds=30)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(pid, number)
