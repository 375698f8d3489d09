"""Two machines that start, kill, resume and delete one run in a bucket at any moment: separate
processes with caches of their own, which take the steps of the product's start and save."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from headway.clock import SystemClock, stamp
from headway.errors import HeadwayError
from headway.state.chain import Chain, Link
from headway.state.checkpoints import CheckpointManifest, look_at
from headway.state.run_directory import RunDirectory
from support.workers import PROCESSES

STEPS = 10
MOST_SECONDS = 0.8
"""For which a machine trains before it is killed, if it is."""


def train(
    location: str, environment: dict[str, str], launch: str, insists: bool, told: Any
) -> None:
    """As a launcher and its worker do; `told` hears what a user would."""
    os.environ.update(environment)
    from headway.state.heartbeat import SignsOfLife, require_alone
    from headway.train.restore import restore_newest
    from support.little import Little

    clock = SystemClock()
    try:
        directory = RunDirectory.create(location, clock)
        with directory.held():
            if not insists:
                require_alone(directory, clock, "insist")
            start = Chain(directory, launch).start(stamp(clock.now()))
            with SignsOfLife(directory, launch, clock):
                little = Little(directory, start.generation, launch=launch)
                found = restore_newest(
                    little.train, directory, little.chain, little.world, little.journal
                )
                step = None if found is None else found.step
                little.chain.begin(start.generation, little.train.step, 1, stamp(clock.now()))
                told.send((launch, "started", step))
                while little.train.step < STEPS:
                    little.advance(1)
                    little.saver.require_owner()
                    little.save()
                    if little.saver.saved_step == little.train.step:
                        told.send((launch, "saved", little.train.step))
                little.saver.finish(little.train, None)
                told.send((launch, "finished", little.train.step))
    except (HeadwayError, OSError) as error:
        told.send((launch, type(error).__name__, str(error)))


def delete(location: str, environment: dict[str, str], told: Any) -> None:
    os.environ.update(environment)
    from headway.state.heartbeat import require_alone
    from headway.state.removal import remove_run

    clock, directory = SystemClock(), RunDirectory(location)
    try:
        if RunDirectory.exists(location):
            require_alone(directory, clock, "wait")
            remove_run(directory, clock)
            told.send(("", "deleted", None))
    except (HeadwayError, OSError) as error:
        told.send(("", type(error).__name__, str(error)))


@dataclass
class Race:
    """One random order; `heard` is all that was told, in the order of each machine."""

    location: str
    folder: Path
    heard: list[tuple[str, str, Any]] = field(default_factory=list)
    _pipes: list[Any] = field(default_factory=list)

    def run(self, seed: int) -> None:
        chance = random.Random(seed)
        machines: dict[int, Any] = {}
        for _ in range(chance.randint(3, 7)):
            number = chance.randint(0, 1)
            # The server of processes has the environment of whoever asked it first.
            environment = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
            environment["XDG_CACHE_HOME"] = str(self.folder / f"machine-{number}")
            running = machines.get(number)
            what = chance.choice(["start", "start", "kill", "delete"])
            if what == "kill" and running is not None:
                running.kill()
                running.join()
            elif what == "delete":
                self._start(delete, environment).join(30)
            elif what == "start" and (running is None or not running.is_alive()):
                insists, launch = chance.random() < 0.7, uuid4().hex
                machines[number] = self._start(train, environment, launch, insists)
                if chance.random() < 0.7:
                    self._hear_of(launch)
            time.sleep(chance.random() * MOST_SECONDS)
        for machine in machines.values():
            machine.join(60)
            assert machine.exitcode is not None, "a machine hangs"
        self._hear()

    def _hear(self) -> None:
        for pipe in self._pipes:
            with suppress(EOFError):
                while pipe.poll():
                    self.heard.append(pipe.recv())

    def _hear_of(self, launch: str) -> None:
        """Until it trains, or has said why it does not."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and all(one[0] != launch for one in self.heard):
            time.sleep(0.02)
            self._hear()

    def _start(self, target: Any, *arguments: Any) -> Any:
        reader, writer = PROCESSES.Pipe(duplex=False)  # its own: a killed one leaves no lock
        self._pipes.append(reader)
        process = PROCESSES.Process(target=target, args=(self.location, *arguments, writer))
        process.start()
        writer.close()
        return process

    def links(self) -> list[Link]:
        directory = RunDirectory(self.location)
        chain, last = Chain(directory), Chain(directory).last()
        return [] if last is None else [chain._read(one) for one in range(1, last.number + 1)]

    def check(self) -> None:
        links = self.links()
        owner = ""
        for link in links:
            if link.kind in ("start", "delete"):
                owner = link.launch
            assert link.launch == owner, f"two writers: {link}"
        directory = RunDirectory(self.location)
        if links and links[-1].kind != "delete":
            for kept in links[-1].keeps:
                seen = look_at(directory, kept)
                assert isinstance(seen, CheckpointManifest), f"{kept} is deleted: {seen}"
        known = {link.launch for link in links}
        for launch, what, step in self.heard:
            if what == "finished" and launch in known:
                own = [kept.step for link in links if link.launch == launch for kept in link.keeps]
                assert own[-1] == step, "finished without its own last checkpoint"
        unknown = {what for _, what, _ in self.heard} - EXPECTED
        assert not unknown, [one for one in self.heard if one[1] in unknown]


# NotFound and Disappeared: of a start while the run is being deleted.
EXPECTED = {"started", "saved", "finished", "deleted", "StillRunning", "NotFound"}
EXPECTED |= {"TakenOver", "Replaced", "Disappeared"}
