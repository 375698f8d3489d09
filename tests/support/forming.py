"""Real processes that form gloo groups over the real coordinator, again and again, while some of
them are killed in the middle of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from headway.member.coordinator.rules import Rules
from headway.member.coordinator.settings import CoordinatorSettings, write_settings
from headway.member.protocol.keys import new_key, parse_key
from headway.member.protocol.messages import StoreAnswer, StoreRequest
from headway.member.worker.session import Session
from support.commands import HEADWAY
from support.stolen_time import Deadline, Stopwatch

if TYPE_CHECKING:  # torch is imported once it is a member
    from headway.train.session_store import Group

RUN = "forms"
MEMBERS = 4
STAGES = 3
"""gloo sets its own address and gets all addresses; then it connects."""
CONNECTING_SECONDS = 0.004


@dataclass(frozen=True)
class Outcome:
    """One member's try to form one generation's group, and to use it."""

    member: str
    generation: int
    size: int
    seconds: float
    """Until the group has added something up, or it is known that it will not. These are without
    what the host took meanwhile."""
    form_seconds: float
    """Of it, in `form_group`."""
    drop_seconds: float
    lost_seconds: float
    """To the host, of all of it."""
    error: str
    """Empty: it works."""
    at: float


@dataclass(frozen=True)
class Left:
    """Threads and descriptors of a member."""

    member: str
    num_groups: int
    before: tuple[int, int]
    after: tuple[int, int]


@dataclass
class Result:
    outcomes: list[Outcome] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    kills: int = 0
    recover_seconds: list[float] = field(default_factory=list)
    """From a death to a group of the survivors that works."""


# In a member's process


class DyingSession(Session):
    """Kills or stops its process in the middle of forming a group."""

    dies_at: int | None = None
    dies_by = signal.SIGKILL
    num_asked = 0

    def ask(
        self, generation: int, make: Callable[[int], StoreRequest], seconds: float, what: str
    ) -> StoreAnswer:
        if self.num_asked == self.dies_at:
            os.kill(os.getpid(), self.dies_by)
        answer = super().ask(generation, make, seconds, what)
        self.num_asked += 1
        if self.dies_at == STAGES - 1 and self.num_asked == STAGES - 1:
            wait = random.random() * CONNECTING_SECONDS
            threading.Timer(wait, os.kill, (os.getpid(), self.dies_by)).start()
        return answer


def counts() -> tuple[int, int]:
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


class Member:
    def __init__(self, pipe: Connection, address: str, key: bytes, name: str) -> None:
        self.pipe, self.name = pipe, name
        self.session = DyingSession(address, key, RUN, name)
        self.session.be_ready()
        self.group: Group | None = None
        self.num_groups = 0

    def live(self) -> None:
        self.session.wait_for("the coordinator", lambda view: view.connected, 30.0)
        before = counts()
        while True:
            if self.pipe.poll(0.002):
                match self.pipe.recv():
                    case "end":
                        break
                    case "complain":
                        self.session.complain()
                    case int(stage), signal.Signals() as by:
                        self.session.dies_at, self.session.dies_by = stage, by
            view = self.session.view
            if view.generation.number > view.status.entered:
                self.drop()
                if view.domain is not None:
                    self.go_over()
                elif not view.status.ready:
                    self.session.be_ready()
        self.drop()
        deadline = time.monotonic() + 5.0
        while counts() > before and time.monotonic() < deadline:
            time.sleep(0.05)  # attempts that were given up end by themselves
        self.pipe.send(Left(self.name, self.num_groups, before, counts()))
        self.session.goodbye("the test is over")

    def go_over(self) -> None:
        generation = self.session.enter()
        number = generation.number
        view = self.session.wait_for(
            f"generation {number} to begin",
            lambda view: view.may_form or view.generation.number > number,
            30.0,
        )
        if view.generation.number > number:
            return
        workers = list(generation.workers())
        self.session.num_asked = 0
        whole, watch = Stopwatch(), Stopwatch()
        error, form_seconds = self.form(number, workers)
        seconds, watch = watch.seconds, Stopwatch()
        if error:
            self.drop()
            self.session.complain()
        else:
            self.session.healed()
        drop_seconds = watch.seconds
        self.num_groups += 1
        self.pipe.send(
            Outcome(
                self.name,
                number,
                len(workers),
                seconds,
                form_seconds,
                drop_seconds,
                whole.lost_seconds,
                error,
                time.time(),
            )
        )

    def form(self, number: int, workers: list[str]) -> tuple[str, float]:
        import torch
        import torch.distributed as dist

        from headway.errors import HeadwayError
        from headway.train.session_store import SessionStore, form_group

        watch = Stopwatch()
        store = SessionStore(self.session, number)
        rank = workers.index(self.session.name)
        try:
            self.group = form_group(store, rank, len(workers))
        except HeadwayError as error:
            return f"{type(error).__name__}: {error}", watch.seconds
        form_seconds = watch.seconds
        tensor = torch.tensor([float(rank)])
        work = dist.all_reduce(tensor, group=self.group.process_group, async_op=True)
        assert work is not None
        while not work.is_completed():
            if self.session.view.generation.breaks(number):
                return "broken: the collective was left", form_seconds
            if watch.wall_seconds > 2.0:
                return "late: the collective hangs", form_seconds
            time.sleep(0.001)
        try:
            work.wait()
        except RuntimeError as error:
            return f"lost: {error}", form_seconds
        assert tensor.item() == sum(range(len(workers)))
        return "", form_seconds

    def drop(self) -> None:
        if self.group is not None:
            self.group.drop()
            self.group = None


def member(pipe: Connection, address: str, key: bytes, name: str) -> None:
    Member(pipe, address, key, name).live()


# In the test's process


class Crew:
    """The members, and what they have told."""

    def __init__(self, address: str, key: bytes) -> None:
        self.address, self.key = address, key
        self.context = multiprocessing.get_context("forkserver")
        # Imported once: a member that is killed is replaced in a moment.
        self.context.set_forkserver_preload(["headway.train.session_store", "support.forming"])
        self.members: dict[str, tuple[BaseProcess, Connection]] = {}
        self.result = Result()
        self._num_started = 0

    def start(self) -> None:
        name = f"member-{self._num_started}"
        self._num_started += 1
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=member, args=(theirs, self.address, self.key, name))
        process.start()
        theirs.close()
        self.members[name] = (process, ours)

    def read(self) -> None:
        for name, (process, pipe) in list(self.members.items()):
            try:
                while pipe.poll(0):
                    heard = pipe.recv()
                    if isinstance(heard, Left):
                        self.result.left.append(heard)
                    else:
                        self.result.outcomes.append(heard)
            except (EOFError, ConnectionResetError):
                process.join(10.0)
                pipe.close()
                del self.members[name]

    def wait(self, what: str, look: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = Deadline(seconds)
        while not look():
            recent = self.result.outcomes[-8:]
            assert not deadline.has_passed, f"waited {seconds:g} s for {what}: {recent}"
            time.sleep(0.005)
            self.read()

    def wait_for_group(self, size: int, after: int) -> int:
        """A generation newer than `after` whose group works for all `size` members of it."""
        found: list[int] = []

        def look() -> bool:
            good: dict[int, int] = {}
            for outcome in self.result.outcomes:
                if not outcome.error and outcome.size == size and outcome.generation > after:
                    good[outcome.generation] = good.get(outcome.generation, 0) + 1
            found[:] = [number for number, count in good.items() if count == size]
            return bool(found)

        self.wait(f"a group of {size} after generation {after}", look)
        return max(found)

    def round(self, newest: int, stage: int | None) -> int:
        """The same members form anew; one dies in it, unless `stage` is None."""
        first, *others = self.members  # the first lives through all of it
        victim = random.choice(others)
        if stage is not None:
            self.members[victim][1].send((stage, signal.SIGKILL))
        self.members[first][1].send("complain")
        if stage is None:
            return self.wait_for_group(MEMBERS, newest)
        self.wait(f"{victim} to die", lambda: victim not in self.members)
        died = time.time()
        self.result.kills += 1
        newest = self.wait_for_group(MEMBERS - 1, newest)
        group = [one for one in self.result.outcomes if one.generation == newest]
        self.result.recover_seconds.append(max(one.at for one in group) - died)
        self.start()
        return self.wait_for_group(MEMBERS, newest)

    def stop_one(self, newest: int, stage: int) -> None:
        """The same members form a group again, and one of them hangs in it. The others continue."""
        first, *_, victim = self.members
        self.members[victim][1].send((stage, signal.SIGSTOP))
        self.members[first][1].send("complain")
        self.wait_for_group(MEMBERS - 1, newest)
        process, pipe = self.members.pop(victim)
        process.kill()
        process.join(10.0)
        pipe.close()

    def end(self) -> None:
        for _, pipe in self.members.values():
            pipe.send("end")
        self.wait("all to end", lambda: not self.members)


def form_groups(folder: Path, rounds: int, seed: int) -> Result:
    """In every second round a member dies, each time at another stage."""
    random.seed(seed)
    with crew(folder) as members:
        newest = members.wait_for_group(MEMBERS, 0)
        for number in range(rounds):
            stage = (number // 2) % STAGES if number % 2 else None
            newest = members.round(newest, stage)
        members.end()
    return members.result


@contextmanager
def crew(folder: Path) -> Iterator[Crew]:
    with coordinator(folder, Rules(max_domains=MEMBERS)) as (address, key):
        members = Crew(address, key)
        try:
            for _ in range(MEMBERS):
                members.start()
            yield members
        finally:
            for process, pipe in members.members.values():
                process.kill()
                process.join(10.0)
                pipe.close()


@contextmanager
def coordinator(folder: Path, rules: Rules) -> Iterator[tuple[str, bytes]]:
    key = folder / "key"
    key.write_text(new_key())
    key.chmod(0o600)
    settings = CoordinatorSettings(RUN, str(folder / "record"), str(key), rules)
    write_settings(settings, folder / "settings.json")
    command = [*HEADWAY, "coordinator", "--settings", str(folder / "settings.json")]
    with (folder / "coordinator.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        facts = json.loads(process.stdout.readline())
        yield facts["listen"], parse_key(key.read_text(), str(key))
    finally:
        process.terminate()
        process.wait(10.0)
        process.stdout.close()
