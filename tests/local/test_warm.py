"""A real fork server: its workers train, and begin long before a cold one would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from headway.clock import SystemClock
from headway.spec.resolve import Resolved
from headway.state.run_directory import RunDirectory
from support.chains import launched
from support.stolen_time import Stopwatch
from support.waiting import wait_for
from support.workers import resolved_run

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

RUN_FILE = """\
version: 1
name: {name}
model: {{type: gpt2, config: {{n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32}}}}
data: {{train: unused, sequence_length: 16}}
batch: {{global: 4, micro: 2}}
train_for: {steps} steps
precision: fp32
threads: 1
"""


class Warm:
    """A fork server that knows a run, with the environment the launcher would give it."""

    def __init__(self, folder: Path, location: str, **environment: str) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            **environment,
            "OMP_NUM_THREADS": "1",
            "GOMP_SPINCOUNT": "1000",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        with (folder / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headway.train.fork_server", location],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environment,
                start_new_session=True,
            )
        self.ready_seconds: float = self.answer()["ready"]
        self.workers: list[int] = []

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "errors").read_text()
        found: dict[str, Any] = json.loads(line)
        return found

    def start(self, resolved: Resolved) -> list[int]:
        """All workers of a run; their process ids by rank."""
        assert self.process.stdin is not None
        directory = RunDirectory.create(resolved.run_directory, SystemClock())
        directory.write_spec(resolved)
        generation = launched(directory, launch := uuid4().hex)
        for rank in range(resolved.num_workers):
            environment = {
                **self.environment,
                "HEADWAY_LAUNCH": launch,
                "HEADWAY_SPEC": str(directory.store.path("spec.json")),
                "HEADWAY_RANK": str(rank),
                "HEADWAY_DEVICE": str(rank),
                "HEADWAY_STORE": str(self.folder / f"store-{resolved.name}-{generation}"),
                "HEADWAY_GENERATION": str(generation),
                "HEADWAY_STEPS": str(self.steps_file(rank)),
            }
            command = {
                "start": rank,
                "arguments": [directory.location],
                "environment": environment,
                "log": str(self.log(rank)),
            }
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        pids = [self.answer()["pid"] for _ in range(resolved.num_workers)]
        self.workers += pids
        return pids

    def codes(self, count: int) -> set[int]:
        return {self.answer()["code"] for _ in range(count)}

    def log(self, rank: int) -> Path:
        return self.folder / f"worker-{rank}.log"

    def steps_file(self, rank: int) -> Path:
        return self.folder / f"steps-{rank}"

    def words(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


def run_of(folder: Path, sets: dict[str, Path], name: str, nodes: int, steps: int) -> Resolved:
    (folder / "run.yaml").write_text(RUN_FILE.format(name=name, steps=steps))
    return resolved_run(folder, sets, nodes)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, stream: dict[str, Path]) -> Iterator[Warm]:
    with warmed(tmp_path_factory.mktemp("warm"), stream) as parent:
        yield parent


@contextmanager
def warmed(folder: Path, sets: dict[str, Path], **environment: str) -> Iterator[Warm]:
    resolved = run_of(folder, sets, "known", nodes=1, steps=1)
    directory = RunDirectory.create(resolved.run_directory, SystemClock())
    directory.write_spec(resolved)
    environment["HEADWAY_SPEC"] = str(directory.store.path("spec.json"))
    parent = Warm(folder, resolved.run_directory, **environment)
    try:
        yield parent
    finally:
        parent.process.kill()
        for pid in parent.workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        parent.process.wait()
        for pipe in (parent.process.stdin, parent.process.stdout):
            assert pipe is not None
            pipe.close()


def test_it_has_one_thread_and_prints_no_warnings(warm: Warm) -> None:
    """A thread that is not copied by a fork can hold a lock that is."""
    threads = Path(f"/proc/{warm.process.pid}/task").iterdir()
    assert [(thread / "comm").read_text() for thread in threads] == ["python\n"]
    assert (warm.folder / "errors").read_text() == ""


@pytest.mark.parametrize("nodes", [1, 2])
def test_its_workers_train(warm: Warm, stream: dict[str, Path], nodes: int) -> None:
    resolved = run_of(warm.folder, stream, f"with-{nodes}", nodes, steps=6)
    watch = Stopwatch()
    warm.start(resolved)
    assert warm.codes(nodes) == {0}, warm.words()
    seconds, lost_seconds = watch.seconds, watch.lost_seconds
    directory = RunDirectory.open(resolved.run_directory)
    assert [line["step"] for line in directory.steps()] == list(range(1, 7))
    recorded = [warm.steps_file(rank).read_text().split() for rank in range(nodes)]
    assert recorded == [["0", "6"]] * nodes, "for its launcher"
    # A cold worker imports what the parent did, before anything else.
    assert seconds < warm.ready_seconds / 2
    (started,) = [event for event in directory.history() if event["event"] == "started"]
    assert started["seconds"]["import"] - lost_seconds < 0.5


def test_workers_import_next_to_nothing(tmp_path: Path, stream: dict[str, Path]) -> None:
    """What they need for the first steps is imported before the fork, once for all of them."""
    with warmed(tmp_path, stream, PYTHONPROFILEIMPORTTIME="1") as warm:
        warm.start(run_of(tmp_path, stream, "imports", nodes=2, steps=2))
        assert warm.codes(2) == {0}, warm.words()
    first, second = (imports(warm.log(rank).read_text()) for rank in range(2))
    late = {name: min(first[name], second[name]) for name in first.keys() & second.keys()}
    assert not [name for name in late if name.split(".")[0] in {"headway", "torch", "transformers"}]
    assert not [name for name, seconds in late.items() if seconds > 0.05]


def imports(log: str) -> dict[str, float]:
    """Seconds by module, with what it imports itself. Both workers are slow only if it is."""
    lines = [line.split("|") for line in log.splitlines() if line.startswith("import time:")]
    return {name.strip(): int(microseconds) / 1e6 for _, microseconds, name in lines}


def test_a_worker_is_killed_and_another_continues(warm: Warm, stream: dict[str, Path]) -> None:
    resolved = run_of(warm.folder, stream, "killed", nodes=1, steps=100_000)
    directory = RunDirectory.create(resolved.run_directory, SystemClock())
    (pid,) = warm.start(resolved)
    wait_for("5 steps", lambda: len(directory.steps()) >= 5)
    os.kill(pid, signal.SIGKILL)
    assert warm.codes(1) == {-9}
    (pid,) = warm.start(resolved)
    wait_for("the second start", lambda: started(directory) == 2)
    wait_for("its steps", lambda: len(directory.steps()) >= 5)
    os.kill(pid, signal.SIGTERM)
    assert warm.codes(1) == {6}, warm.words()


def started(directory: RunDirectory) -> int:
    return sum(event["event"] == "started" for event in directory.history())


def test_workers_save_and_stop_when_the_parent_is_killed(
    warm: Warm, stream: dict[str, Path]
) -> None:
    """The last test: the parent is gone after it."""
    resolved = run_of(warm.folder, stream, "orphaned", nodes=2, steps=100_000)
    directory = RunDirectory.create(resolved.run_directory, SystemClock())
    warm.start(resolved)
    wait_for("5 steps", lambda: len(directory.steps()) >= 5)
    warm.process.kill()
    wait_for("the end", lambda: [e for e in directory.history() if e["event"] == "stopped"])
