"""The run directory: everything a run writes, in files that are readable while it is running.

    run.json            format version, name, creation time, what it was forked from
    spec.json           the resolved run
    plan.json           what was planned at the newest start, if anything could be
    chain/              0000/000001.json, ...: who trains it, and which checkpoints count
    owner.json          the launcher's sign of life
    summary.json        of the beginning of the logs, for a status; made of them at each save
    launcher.jsonl      events of the launcher: launched, failed, stopped
    events.jsonl        events of training: started, evaluated, saved, skipped, ...
    metrics.jsonl       one line per committed step
    evaluations.jsonl   one line per validation set and evaluation
    samples.jsonl       one line per prompt and evaluation, if evaluation.prompts is set
    activations.jsonl   one line per block and measurement, if watch.activations is set
    ledger.jsonl        which samples each step consumed
    checkpoints/        step-00000300.g000001/, complete once it has a manifest
    model/, tokenizer/  config and tokenizer, to use the weights elsewhere
    logs/, tensorboard/ output of workers, files for TensorBoard
    output/             of a script: what it saves
    work/, scratch/     of a script, by node: its working folder, and files that outlive restarts
    members/            members of the run, written by its coordinator
    code/, packages/    lists of the user's code and of its packages, one for each that was used
    output/             what a script saves, at the address that it knows as $HEADWAY_OUTPUT
    work/, scratch/     of a script on this machine: copies of the code, $HEADWAY_SCRATCH
    lock                held while the run is running
    wanted-nodes        number of nodes that `headway scale` has requested
    wanted-stop         the start that `headway stop` ends, if another launcher has begun it

In an object store the .jsonl files are folders of numbered segments, and files that only this
machine needs (lock, wanted-nodes, logs, tensorboard) are in a folder of the user's cache.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Any

import xxhash
from pydantic import ValidationError

from headway import __version__
from headway.clock import Clock, stamp
from headway.errors import BadInput, NotFound, StillRunning
from headway.spec.resolve import Resolved
from headway.state.event_order import in_order
from headway.state.record_log import Log, SegmentLog, open_log
from headway.state.rewinds import Record, apply_rewinds
from headway.state.store import Store, is_refusal

FORMAT_VERSION = 1
LOCK_ATTEMPTS, LOCK_PAUSE_SECONDS = 5, 0.05
SEND_SECONDS, MOST_SEND_SECONDS = 5.0, 60.0
"""Delay until events are uploaded, in batches; longer while the store is unavailable."""
RECORD = "run.json"
SPEC = "spec.json"
MODEL = "model"
"""Only of a model in the HF format; one of the user's own has no such folder."""
OUTPUT = "output"
"""Of a script: its own, never touched by Headway."""
WANTED_NODES = "wanted-nodes"
WANTED_STOP = "wanted-stop"
GIVEN_SPEC = "HEADWAY_SPEC"


class StoreUnreachable(BadInput):
    """Of a run directory: it did not answer, and may do so later."""


class RunDirectory:
    def __init__(self, location: str | Path) -> None:
        self.store = Store(location)
        self.local = self.store.path() if self.store.is_local else _cache_folder(self.store.root)
        self.launcher = open_log(self.store, self.local, "launcher")
        self.events = open_log(self.store, self.local, "events")
        self.metrics = open_log(self.store, self.local, "metrics")
        self.evaluations = open_log(self.store, self.local, "evaluations")
        self.samples = open_log(self.store, self.local, "samples")
        self.activations = open_log(self.store, self.local, "activations")
        self.ledger = open_log(self.store, self.local, "ledger")
        self.tensorboard = self.local / "tensorboard"

    @property
    def location(self) -> str:
        return self.store.root

    @property
    def name(self) -> str:
        return self.store.root.rsplit("/", 1)[-1]

    @property
    def as_typed(self) -> str:
        """How commands name it: by its name in a local folder, else by its location."""
        return self.name if self.store.is_local else self.location

    def free_name(self) -> str:
        """Name for another run beside this one: `NAME-2`, or the next that is free."""
        beside = self.location.rsplit("/", 1)[0]
        names = (f"{self.name[:36]}-{number}" for number in itertools.count(2))
        return next(name for name in names if not RunDirectory.exists(f"{beside}/{name}"))

    @classmethod
    def exists(cls, location: str | Path) -> bool:
        with _reaching(location):
            return Store(location).size(RECORD) is not None

    @classmethod
    def open(cls, location: str | Path) -> RunDirectory:
        """An existing run; raises if there is none, or if its format is unknown."""
        directory = cls(location)
        where = directory.store.location(RECORD)
        try:
            with _reaching(location):
                record = json.loads(directory.store.read(RECORD))
        except FileNotFoundError:
            raise NotFound(f"no run at {location}", "headway list") from None
        except ValueError as error:
            raise BadInput(f"{where} is damaged: {error}") from None
        if not isinstance(record, dict):
            raise BadInput(f"{where} is damaged: not a mapping")
        if record.get("version") != FORMAT_VERSION:
            raise BadInput(
                f"{location} has run directory version {record.get('version')}, but this Headway "
                f"reads version {FORMAT_VERSION}",
                "use the version of Headway that created the run",
            )
        return directory

    @classmethod
    def create(cls, location: str | Path, clock: Clock, **facts: Any) -> RunDirectory:
        """The run at `location`, created if it does not exist."""
        directory = cls(location)
        record = {
            "version": FORMAT_VERSION,
            "name": directory.name,
            "created": stamp(clock.now()),
            "headway": __version__,
            **facts,
        }
        try:
            _create_record(directory.store, (json.dumps(record, indent=2) + "\n").encode())
        except OSError as error:
            raise BadInput(
                f"{location} cannot be written: {error}",
                "check that the disk or bucket exists and that you may write to it",
            ) from None
        return cls.open(location)

    def record(self) -> Record:
        found: Record = json.loads(self.store.read(RECORD))
        return found

    def write_spec(self, resolved: Resolved) -> None:
        self.store.write(SPEC, spec_text(resolved).encode())

    def read_spec(self) -> Resolved:
        try:
            with _reaching(self.location):
                return Resolved.model_validate_json(self.store.read(SPEC))
        except FileNotFoundError:
            raise NotFound(f"run {self.name} was never started", "headway run") from None
        except ValidationError as error:
            raise BadInput(f"{self.store.location(SPEC)} is damaged: {error}") from None

    def has_spec(self) -> bool:
        return self.store.size(SPEC) is not None

    def history(self) -> list[Record]:
        """Events of launcher and training, in order."""
        return in_order(self.launcher.read()[0], self.events.read()[0])

    def steps(self) -> list[Record]:
        """Metrics of every committed step, each once."""
        return apply_rewinds(self.metrics.read()[0])

    def log(self, node: int, local_rank: int) -> Path:
        return self.local / "logs" / f"node-{node}.rank-{local_rank}.log"

    def logs(self) -> list[Path]:
        return sorted((self.local / "logs").glob("node-*.rank-*.log"))

    def logs_of(self, node: int) -> list[Path]:
        return sorted((self.local / "logs").glob(f"node-{node}.rank-*.log"))

    def fetch_logs(self) -> None:
        """Downloads what workers on other machines printed, as far as it is in the store."""
        if not self.store.is_local:
            for name in self.store.names("logs"):
                path = self.local / "logs" / Path(name).name  # wherever a key may point
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.store.read(name))

    def here(self) -> RunDirectory:
        """The same run, from its files on this machine, without requests to a remote store."""
        return self if self.store.is_local else RunDirectory(self.local)

    def want_nodes(self, nodes: int) -> None:
        """Requests a number of nodes from the launcher, which checks several times a second."""
        wanted = self.local / WANTED_NODES
        new = wanted.with_suffix(".new")
        new.write_text(str(nodes))
        new.replace(wanted)

    def wanted_nodes(self) -> int | None:
        try:
            return int((self.local / WANTED_NODES).read_text())
        except FileNotFoundError:
            return None

    def forget_wanted_nodes(self) -> None:
        (self.local / WANTED_NODES).unlink(missing_ok=True)

    def want_stop(self, launch: str) -> None:
        """Requests that a start save and end; its rank 0 looks, on whatever machine."""
        self.store.write(WANTED_STOP, launch.encode())

    def is_stop_wanted(self, launch: str) -> bool:
        """False while the store cannot be reached."""
        try:
            return self.store.read(WANTED_STOP).decode() == launch
        except OSError:
            return False

    def forget_wanted_stop(self) -> None:
        """A later start may have the same name."""
        with suppress(OSError):
            self.store.remove(WANTED_STOP)

    @contextmanager
    def held(self) -> Iterator[int]:
        """Holds the lock of the run, as a file descriptor that workers inherit: the kernel releases
        it when the last of these processes has ended."""
        self.local.mkdir(parents=True, exist_ok=True)
        with (self.local / "lock").open("a+") as file:
            if not _locked(file):
                raise StillRunning(
                    f"run {self.name} is already running", f"headway status {self.name}"
                )
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield file.fileno()

    def is_running(self) -> bool:
        """Whether a process on this machine holds the lock of the run."""
        try:
            import fcntl
        except ImportError:  # Windows, where nothing trains
            return False
        try:
            with (self.local / "lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def launcher_pid(self) -> int | None:
        """Process id of the launcher that holds the lock."""
        if not self.is_running():
            return None
        return int((self.local / "lock").read_text() or 0) or None


def spec_text(resolved: Resolved) -> str:
    return resolved.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n"


def _create_record(store: Store, content: bytes) -> None:
    """Whoever makes the directory also proves that the store refuses to make a file twice: all that
    keeps two starts of a run apart rests on that."""
    if store.create(RECORD, content) and store.create(RECORD, content + b"\n"):
        store.remove(RECORD)
        raise BadInput(
            f"{store.root} cannot be used: its storage ignores If-None-Match and overwrites what "
            "was to be created, so two starts of a run could not be told apart",
            "use storage with conditional writes (If-None-Match), or a file system",
        )


def given_spec() -> Resolved | None:
    """Return the run as this process's launcher gave it: in a pod from the ConfigMap, else from a
    file in the launcher's scratch folder. Not from the storage: others can write there, and must
    not decide what runs here. None outside of workers."""
    path = os.environ.get(GIVEN_SPEC)
    return None if path is None else Resolved.model_validate_json(Path(path).read_bytes())


def worker_spec() -> Resolved:
    """Return the run that this worker belongs to."""
    resolved = given_spec()
    assert resolved is not None, f"{GIVEN_SPEC} names the file of the launcher"
    return resolved


def is_in_pod() -> bool:
    return "HEADWAY_POD_UID" in os.environ


class Journal:
    """Writes events with their time; one writer. A thread uploads them to an object store within
    seconds, also from a worker that does not lead or that is stuck."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self.log = log
        self.clock = clock
        self.generation: int | None = None
        """Of whoever notes: a launcher's first one, or a leader's own."""
        self._lock = Lock()
        self._is_owed = self._is_sending = False

    def note(self, event: str, **facts: Any) -> None:
        begun = {} if self.generation is None else {"generation": self.generation}
        self.log.append({"time": stamp(self.clock.now()), "event": event, **begun, **facts})
        if isinstance(self.log, SegmentLog):
            with self._lock:
                self._is_owed = True
                if not self._is_sending:
                    self._is_sending = True
                    Thread(target=self._send, name="journal", daemon=True).start()

    def close(self) -> None:
        """Uploads what is left, without retries: exiting does not wait for an unavailable store."""
        with suppress(OSError):
            self.log.flush()

    def _send(self) -> None:
        pause = SEND_SECONDS
        while self._owes():
            self.clock.sleep(pause)
            try:
                self._is_owed = False  # before the flush: an event noted meanwhile may miss it
                self.log.flush()
            except OSError:
                self._is_owed, pause = True, min(2 * pause, MOST_SEND_SECONDS)

    def _owes(self) -> bool:
        with self._lock:
            self._is_sending = self._is_owed
            return self._is_owed


def _locked(file: IO[str]) -> bool:
    """Whether the lock was acquired. Retried: `is_running` holds it for a moment."""
    import fcntl

    for _ in range(LOCK_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(LOCK_PAUSE_SECONDS)
    return False


def send_logs(directory: RunDirectory) -> None:
    """At the end of a generation, flushes all logs of its leader to the store."""
    for log in (
        directory.events,
        directory.metrics,
        directory.evaluations,
        directory.samples,
        directory.activations,
        directory.ledger,
    ):
        with suppress(OSError):  # what cannot be uploaded stays in the local file
            log.flush()


@contextmanager
def _reaching(location: str | Path) -> Iterator[None]:
    """Turns errors of the first access (credentials, wrong address) into BadInput; what may pass
    into StoreUnreachable."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if "://" not in str(location):
            raise BadInput(f"{location} cannot be read: {error}") from None
        kind = BadInput if is_refusal(error) else StoreUnreachable
        raise kind(
            f"{location} cannot be read: {error}",
            "check its address, your credentials and the endpoint",
        ) from None


def _cache_folder(root: str) -> Path:
    """Local folder of a run in an object store."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = xxhash.xxh3_64_hexdigest(root.encode())
    return cache / "headway" / f"{root.rsplit('/', 1)[-1]}-{digest[:12]}"
