"""Real worker processes for tests: forked from a server that has imported torch once.

Importing torch and transformers takes 15 s of a core for each process. A fork server pays that
once, so a test of five workers costs a second instead of a minute. The processes, the groups they
form over gloo and the files they write are real.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.clock import SystemClock
from headway.launch.hardware import this_machine
from headway.spec.load import load_run
from headway.spec.resolve import Resolved, resolve
from headway.state.run_directory import Journal, RunDirectory
from support.chains import LAUNCH, launched

DEADLINE_SECONDS = 300.0
TEN_STEPS = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 448}}
data: {train: unused, sequence_length: 16}
batch: {global: 4, micro: 2}
train_for: 10 steps
schedule: {type: constant, warmup: 0 steps}
precision: fp32
threads: 1
track: []
checkpoint: {every: 5 steps}
"""
"""Of a run that saves at steps 5 and 10."""

PROCESSES = multiprocessing.get_context("forkserver")
"""One server of processes for all tests, since Python keeps only one."""
PROCESSES.set_forkserver_preload(
    [
        "support.little",
        "headway.train.trial",
        "torch.profiler",
        "torch.utils.tensorboard",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.bert.modeling_bert",
        "transformers.models.llama.modeling_llama",
        "transformers.models.auto.modeling_auto",
        "s3fs",
    ]
)


def resolved_run(
    folder: Path, sets: Mapping[str, str | Path], nodes: int = 1, overrides: list[str] | None = None
) -> Resolved:
    """The run file in `folder` for this machine; `sets` are prepared, `train` among them."""
    loaded = load_run(folder, overrides)
    others = {name: path for name, path in sets.items() if name != "train"}
    return resolve(
        loaded,
        this_machine(),
        nodes=nodes,
        parameters=None,
        train_set=sets["train"],
        validation_sets=others,
    )


def train(resolved: Resolved, seconds: float = DEADLINE_SECONDS) -> RunDirectory:
    """Trains to the end with real workers; fails with the first worker's traceback."""
    workers = Workers(resolved)
    workers.wait(seconds=seconds)
    return workers.directory


def in_worker_process(work: Callable[[Any], None]) -> Any:
    """What `work` puts into the queue that it is given, in a process of its own. Fails with its
    traceback."""
    answers, failures = PROCESSES.Queue(), PROCESSES.Queue()
    process = PROCESSES.Process(target=_do, args=(work, answers, failures), daemon=True)
    process.start()
    try:
        failure = failures.get(timeout=DEADLINE_SECONDS)
        assert failure is None, failure
        return answers.get(timeout=DEADLINE_SECONDS)
    finally:
        process.kill()
        process.join(timeout=10)


class Workers:
    """The workers of one start of a run."""

    def __init__(self, resolved: Resolved) -> None:
        self.directory = RunDirectory.create(resolved.run_directory, SystemClock())
        self.directory.write_spec(resolved)
        self.scratch = tempfile.TemporaryDirectory()
        self.queue = PROCESSES.Queue()
        generation = launched(self.directory)
        journal = Journal(self.directory.launcher, SystemClock())
        journal.note("launched", generation=generation, workers=resolved.num_workers)
        store = f"{self.scratch.name}/store"
        # The fork server keeps the environment it was started with.
        environment = {k: v for k, v in os.environ.items() if k.startswith(("AWS_", "XDG_"))}
        self.processes = [
            PROCESSES.Process(
                target=_work,
                args=(rank, self.directory.location, store, generation, environment, self.queue),
                daemon=True,
            )
            for rank in range(resolved.num_workers)
        ]
        for process in self.processes:
            process.start()

    def wait(self, expect: int = 0, seconds: float = DEADLINE_SECONDS) -> None:
        """Until all have ended with the exit code `expect`."""
        try:
            answers = [self.queue.get(timeout=seconds) for _ in self.processes]
            for process in self.processes:
                process.join(timeout=10)
        finally:
            self.kill()
        wrong = [answer for answer in answers if answer[1] != expect]
        assert not wrong, "\n".join(f"worker {rank}: {code} {text}" for rank, code, text in wrong)

    def signal(self, number: int) -> None:
        for process in self.processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    def kill(self) -> None:
        """As a machine that loses power: all at once, without a word."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join(timeout=10)
        self.scratch.cleanup()


def _do(work: Callable[[Any], None], answers: Any, failures: Any) -> None:
    try:
        work(answers)
        failures.put(None)
    except BaseException:  # noqa: BLE001 - whatever it is, the test must show it
        failures.put(traceback.format_exc())


def _work(
    rank: int,
    directory: str,
    store: str,
    generation: int,
    environment: dict[str, str],
    queue: Any,
) -> None:
    os.environ.update(environment, GLOO_SOCKET_IFNAME="lo")
    try:
        import torch

        from headway.train.loop import train as train_here
        from headway.train.stop_request import StopRequest
        from headway.train.worker_run import open_run
        from headway.train.world import OneWorld, WorldShape, form_world

        resolved = RunDirectory.open(directory).read_spec()
        torch.set_num_threads(resolved.threads)
        world = form_world(
            rank=rank,
            shape=WorldShape(resolved.nodes, resolved.ranks_per_node, resolved.copy_nodes),
            device=torch.device(resolved.device),
            store=Path(store),
            generation=generation,
        )
        stop = StopRequest()
        stop.listen()
        run = open_run(
            resolved,
            world.placement,
            worker_number=rank,
            launch=LAUNCH,
            stop=stop,
            clock=SystemClock(),
        )
        worlds = OneWorld(world)
        code = train_here(run, worlds)
        worlds.close("done")
        queue.put((rank, int(code), ""))
    except BaseException:  # noqa: BLE001 - whatever it is, the test must show it
        queue.put((rank, 1, traceback.format_exc()))
