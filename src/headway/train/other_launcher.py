"""The start of a worker by any launcher but Headway's: torchrun, srun, an operator, Ray.

    torchrun --nnodes=2 --nproc-per-node=8 -m headway.train run.yaml [--set KEY=VALUE ...]

The contract with the launcher: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, with ranks numbered node by node; it restarts all workers when one has failed. The exit
code is 0 only if nothing is left to do: the run has finished, or `headway stop` has ended it.

The first worker of each node has the run file resolved there, by a process of its own while it
imports torch. Rank 0 goes first: it takes the run over in its chain, and tells the others. All of
that is under a name that no other start has, for the launcher's store outlives its workers.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headway.clock import Clock, stamp
from headway.errors import (
    BadInput,
    Exit,
    HeadwayError,
    NotFound,
    PeerLost,
    StillRunning,
    Stopped,
    without_hint,
)
from headway.spec.resolve import Resolved
from headway.spec.run_identity import identity_digest
from headway.state.chain import Chain
from headway.state.heartbeat import SignsOfLife, owner, wait_until_alone
from headway.state.run_directory import Journal, RunDirectory
from headway.state.trusted_code import trust_code
from headway.train.outages import reached
from headway.train.start import Start
from headway.train.stop_request import StopRequest
from headway.train.worker_log import log_line
from headway.worker_environment import DEFAULTS, allocator_defaults, with_packages

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
MEET_SECONDS = 180.0
"""Longest wait for the launcher's store."""
SIGN_SECONDS = 0.5
SILENT_SECONDS = 120.0
"""Without a sign of life of a worker that others wait for."""
SAY_SECONDS = 60.0
LOOK_SECONDS = 0.1
SHARED_SECONDS = 90.0
"""For another machine's files to become visible here, if they ever do."""
LOCK_SECONDS = 60.0
"""For the workers of a start before to have ended on this machine."""
FAILED_SECONDS = 2.0
"""For a worker that was lost to have said that it has failed."""
STOP_LOOK_SECONDS, FAR_STOP_LOOK_SECONDS = 1.0, 10.0
"""Between two looks for the request of `headway stop`."""


class Done(HeadwayError):
    """Nothing is left to train, which was said."""

    exit_code = Exit.DONE


class Refused(HeadwayError):
    """The run cannot begin, for a reason that another process has printed."""

    def __init__(self, words: str, exit_code: int) -> None:
        super().__init__(words)
        self.exit_code = Exit(exit_code)


@dataclass(frozen=True)
class Given:
    """The place of this worker, as its launcher says, and the arguments."""

    rank: int
    num_workers: int
    local_rank: int
    local_workers: int
    run_file: str
    overrides: tuple[str, ...]

    @property
    def node(self) -> int:
        return self.rank // self.local_workers

    @property
    def nodes(self) -> int:
        return self.num_workers // self.local_workers

    @classmethod
    def read(cls, arguments: list[str]) -> Given:
        parser = argparse.ArgumentParser("python -m headway.train")
        parser.add_argument("run_file", nargs="?", default="run.yaml")
        parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
        asked = parser.parse_args(arguments)
        if missing := [name for name in VARIABLES if name not in os.environ]:
            raise BadInput(
                f"{', '.join(missing)} not set: python -m headway.train is started by a launcher",
                f"torchrun --standalone --nproc-per-node=1 -m headway.train {asked.run_file}; or "
                f"headway run {asked.run_file}",
            )
        rank, size, local_rank, local_size = (int(os.environ[name]) for name in VARIABLES[:4])
        if size % local_size or rank % local_size != local_rank:
            raise BadInput(
                f"worker {rank} of {size} is worker {local_rank} of {local_size} on its machine: "
                "Headway needs the same number on each, numbered machine by machine",
                "give each machine the same --nproc-per-node",
            )
        return cls(rank, size, local_rank, local_size, asked.run_file, tuple(asked.set))


def started_by_other(
    arguments: list[str], clock: Clock, stop: StopRequest, held: ExitStack
) -> Start:
    """COLLECTIVE. The start of this worker, and its environment as our own launcher makes it.
    `held` is closed when the worker ends."""
    given = Given.read(arguments)
    for name, value in (DEFAULTS | allocator_defaults("cuda")).items():
        os.environ.setdefault(name, value)
    start = OtherLauncher(given, clock, stop, held).start()
    packages = start.resolved.packages
    if packages is not None:
        sys.path.insert(0, packages)
        os.environ |= with_packages(packages, os.environ)
    return start


class OtherLauncher:
    def __init__(self, given: Given, clock: Clock, stop: StopRequest, held: ExitStack) -> None:
        self.given = given
        self._clock, self._stop, self._held = clock, stop, held
        self._journal: Journal | None = None
        """Only of rank 0: what a launcher of ours notes of a run."""
        self._resolving = self._resolve("begins") if given.rank == 0 else None

    def start(self) -> Start:
        """COLLECTIVE. Needs torch."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        from headway.train.collectives import forming_group

        given = self.given
        with forming_group():
            is_hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            store = self._connected(given.rank == 0 and not is_hosted)
            if given.rank == 0:
                name = uuid4().hex
                store.set("headway/leader", name)
            else:
                name = self._leader(store)
            meeting = PrefixStore(f"headway/{name}", store)
            if given.local_rank == 0:
                self._show_life(f"headway/{name}")
            if given.rank == 0:
                begun = self._posted(meeting, lambda: self._begin(store))
            else:
                begun = self._read(meeting, 0, "rank 0 to resolve the run file and its data")
            text = begun["spec"]
            if given.node > 0:
                if given.local_rank == 0:
                    text = self._posted(meeting, lambda: self._join(begun))["spec"]
                else:
                    what = "the first worker of this machine to resolve the run file and its data"
                    text = self._read(meeting, given.node, what)["spec"]
            meeting.add("begun", 1)
        return Start(
            resolved=Resolved.model_validate_json(text),
            rank=given.rank,
            device=given.local_rank,
            launch=begun["launch"],
            generation=begun["generation"],
            store=PrefixStore("group", meeting),
            note_failure=lambda words: self._note_failure(meeting, words),
        )

    # The launcher's store

    def _connected(self, is_master: bool = False) -> Store:
        from datetime import timedelta

        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        return TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            self.given.num_workers,
            is_master,
            timedelta(seconds=MEET_SECONDS),
            wait_for_workers=False,
        )

    def _show_life(self, meeting: str) -> None:
        """Until all workers have begun: another one may look late. Over a connection of its own:
        one that waits for a key takes no other request."""
        over = Event()

        def show() -> None:
            with suppress(RuntimeError):  # the launcher's store is gone
                store = self._connected()
                while store.add(f"{meeting}/begun", 0) < self.given.num_workers:
                    store.add(f"{meeting}/alive/{self.given.node}", 1)
                    if over.wait(SIGN_SECONDS):
                        return

        Thread(target=show, name="headway-alive", daemon=True).start()
        self._held.callback(over.set)

    def _leader(self, store: Store) -> str:
        """The name of this start: of a rank 0 that has shown since we look that it lives. The one
        in the store may be of a start before."""
        name, first = "", 0
        waiting = _Waiting(self, "rank 0 to start")
        while True:
            newest = store.get("headway/leader").decode() if store.check(["headway/leader"]) else ""
            if newest:
                signs = store.add(f"headway/{newest}/alive/0", 0)
                if newest == name and signs != first:
                    return name
                if newest != name:
                    name, first = newest, signs
            waiting.look(None)

    def _posted(self, meeting: Store, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what `make` does, and tell it to all, or that it failed."""
        node = self.given.node
        try:
            facts = make()
        except HeadwayError as error:
            words = f"{socket.gethostname()}: {error.message}"
            meeting.set(f"start/{node}", json.dumps({"code": error.exit_code, "words": words}))
            raise
        meeting.set(f"start/{node}", json.dumps(facts))
        return facts

    def _read(self, meeting: Store, node: int, what: str) -> dict[str, Any]:
        waiting = _Waiting(self, what)
        while not meeting.check([f"start/{node}"]):
            waiting.look(meeting.add(f"alive/{node}", 0))
        found: dict[str, Any] = json.loads(meeting.get(f"start/{node}"))
        if "code" in found:
            raise Refused(found["words"], found["code"])
        return found

    # Resolving the run file

    def _resolve(self, part: str) -> _Resolving:
        given = self.given
        folder = Path(self._held.enter_context(tempfile.TemporaryDirectory(prefix="headway-")))
        numbers = map(str, (given.nodes, given.local_workers))
        command = [*numbers, part, given.run_file, *given.overrides]
        return _Resolving(folder / "spec.json", command, self._clock, self._stop)

    def _begin(self, store: Store) -> dict[str, Any]:
        """Take the run over, as rank 0, and return what the others have to know."""
        assert self._resolving is not None
        text = self._resolving.result()
        resolved = Resolved.model_validate_json(text)
        directory = _opened(resolved, self._clock, self._stop)
        launch = _name_of_job() or store.compare_set("headway/launch", "", uuid4().hex).decode()
        generation = self._take(directory, resolved, launch)
        self._follow_stop(directory, launch)
        return {"spec": text, "launch": launch, "generation": generation}

    def _take(self, directory: RunDirectory, resolved: Resolved, launch: str) -> int:
        """The run is this launch's from now on. Returns the number of its next generation."""
        deadline = self._clock.monotonic() + LOCK_SECONDS
        while True:
            try:
                self._held.enter_context(directory.held())
                break
            except StillRunning:
                if self._clock.monotonic() > deadline:
                    raise
                self._clock.sleep(LOOK_SECONDS)
        wait_until_alone(directory, self._clock, launch, log_line)
        chain = Chain(directory, launch)
        before = chain.last()
        generation = chain.start(stamp(self._clock.now())).begun + 1
        self._held.enter_context(SignsOfLife(directory, launch, self._clock))
        directory.write_spec(resolved)
        trust_code(resolved)
        self._journal = journal = Journal(directory.launcher, self._clock)
        journal.generation = generation
        is_again = before is not None and before.launch == launch
        journal.note(
            "restarted" if is_again else "launched",
            nodes=resolved.nodes,
            workers=resolved.num_workers,
            device=resolved.device,
            mode=resolved.mode,
            launcher=_launcher_name(),
            code_digest=resolved.code_digest,
        )
        with suppress(OSError):
            directory.launcher.flush()
        return generation

    def _join(self, begun: dict[str, Any]) -> dict[str, Any]:
        """Resolve the run file, as the first worker of another node, and return the result."""
        leads = Resolved.model_validate_json(begun["spec"])
        _require_shared(leads, begun["launch"], self._clock, self._stop)
        text = self._resolve("joins").result()
        resolved = Resolved.model_validate_json(text)
        if identity_digest(resolved.run) != identity_digest(leads.run):
            raise BadInput(
                f"{self.given.run_file} is another run here than on rank 0's machine",
                "give all machines the same run file",
            )
        return {"spec": text}

    # While it trains

    def _note_failure(self, meeting: Store, words: str | None) -> None:
        """Records why the run has failed, whoever found out. `words` is None after a loss: then
        the lost worker may have said it."""
        with suppress(RuntimeError):  # the launcher's store is gone
            if words is not None:
                facts = {"rank": self.given.rank, "words": words}
                meeting.set("failed", json.dumps(facts))
            if self._journal is None:
                return
            deadline = self._clock.monotonic() + FAILED_SECONDS
            while not meeting.check(["failed"]):
                if self._clock.monotonic() > deadline:
                    return
                self._clock.sleep(LOOK_SECONDS)
            found = json.loads(meeting.get("failed"))
            message, hint = without_hint(found["words"])
            node, local_rank = divmod(found["rank"], self.given.local_workers)
            place = {"rank": found["rank"], "node": node, "local_rank": local_rank}
            self._journal.note(
                "failed", **place, how="failed", words=message, message=message, hint=hint
            )
            self._journal.close()

    def _follow_stop(self, directory: RunDirectory, launch: str) -> None:
        is_local = directory.store.is_local
        seconds = STOP_LOOK_SECONDS if is_local else FAR_STOP_LOOK_SECONDS

        def look() -> None:
            while not directory.is_stop_wanted(launch):
                self._clock.sleep(seconds)
            log_line("asked to stop by headway stop")
            self._stop.ask_for_good()
            self._held.callback(directory.forget_wanted_stop)

        Thread(target=look, name="headway-stop", daemon=True).start()


class _Waiting:
    """A wait for another worker: says for what, and ends when that shows no life."""

    def __init__(self, launcher: OtherLauncher, what: str) -> None:
        self._clock, self._stop, self._what = launcher._clock, launcher._stop, what
        self._began = self._said = self._heard = self._clock.monotonic()
        self._signs: int | None = None
        self._pause = LOOK_SECONDS * (1 + launcher.given.num_workers / 64)

    def look(self, signs: int | None) -> None:
        """`signs`: number of signs of life so far."""
        now = self._clock.monotonic()
        if signs != self._signs:
            self._signs, self._heard = signs, now
        if self._stop.asked:
            raise Stopped(f"stopped while waiting for {self._what}")
        if now - self._heard > SILENT_SECONDS:
            raise PeerLost(f"waited {now - self._began:.0f} s for {self._what}")
        if now - self._said > SAY_SECONDS:
            self._said = now
            log_line(f"waiting for {self._what}: {now - self._began:.0f} s")
        self._clock.sleep(self._pause)


class _Resolving:
    """The process that resolves the run file."""

    def __init__(self, into: Path, arguments: list[str], clock: Clock, stop: StopRequest) -> None:
        self._into, self._clock, self._stop = into, clock, stop
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headway.cli.for_launcher", str(into), *arguments],
            stdin=subprocess.PIPE,  # that it reads the end of when this process has ended
        )

    def result(self) -> str:
        while not self._into.exists():
            code = self._process.poll()
            if code == 0 and not self._into.exists():
                raise Done("nothing is left to train")
            if code is not None and code != 0:
                known = code in set(Exit)
                raise Refused("the run cannot begin", code if known else Exit.RUN_FAILED)
            if self._stop.asked:
                self._process.kill()
                raise Stopped("stopped before it began to train")
            self._clock.sleep(LOOK_SECONDS)
        return self._into.read_text()


def _opened(resolved: Resolved, clock: Clock, stop: StopRequest) -> RunDirectory:
    return reached(lambda: RunDirectory.open(resolved.run_directory), clock, lambda: stop.asked)


def _require_shared(resolved: Resolved, launch: str, clock: Clock, stop: StopRequest) -> None:
    """Raise unless this machine sees that rank 0 has just taken the run."""
    deadline = clock.monotonic() + SHARED_SECONDS
    while True:
        with suppress(BadInput, NotFound):
            found = owner(_opened(resolved, clock, stop))
            if found is not None and found.launch == launch:
                return
        if stop.asked:
            raise Stopped("stopped before it began to train")
        if clock.monotonic() > deadline:
            raise BadInput(
                f"{resolved.run_directory} on {socket.gethostname()} is not the folder that rank 0 "
                f"has there: nothing of this start is visible after {SHARED_SECONDS:.0f} s",
                "storage: a folder that all machines mount, or an address such as s3://bucket/runs",
            )
        clock.sleep(1.0)


def _name_of_job() -> str | None:
    """The launcher's name for all starts of these workers, on whatever machine rank 0 is."""
    names = (os.environ.get(name, "none") for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"))
    return next((name for name in names if name != "none"), None)


def _launcher_name() -> str:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    return "slurm" if "SLURM_JOB_ID" in os.environ else "another launcher"
