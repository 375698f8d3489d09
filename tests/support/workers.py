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
from pathlib import Path
from typing import Any

from headway.clock import SystemClock
from headway.launch.machine import this_machine
from headway.spec.load import load_run
from headway.spec.resolve import Resolved, resolve
from headway.state.rundir import RunDirectory

DEADLINE_SECONDS = 120.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "headway.train.loop",
        "torch.utils.tensorboard",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.bert.modeling_bert",
        "transformers.models.llama.modeling_llama",
        "transformers.models.auto.modeling_auto",
    ]
)


def resolved_run(
    folder: Path, sets: dict[str, Path], nodes: int = 1, overrides: list[str] | None = None
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


def train(resolved: Resolved) -> RunDirectory:
    """Trains to the end with real workers; fails with the first worker's traceback."""
    directory = RunDirectory.create(Path(resolved.run_directory), SystemClock())
    directory.write_spec(resolved)
    with tempfile.TemporaryDirectory() as scratch:
        queue = _context.Queue()
        processes = [
            _context.Process(
                target=_work,
                args=(rank, str(directory.path), f"{scratch}/store", queue),
                daemon=True,
            )
            for rank in range(resolved.num_workers)
        ]
        for process in processes:
            process.start()
        try:
            answers = [queue.get(timeout=DEADLINE_SECONDS) for _ in processes]
            for process in processes:
                process.join(timeout=10)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
    failures = [answer for answer in answers if answer[1] != 0]
    assert not failures, "\n".join(f"worker {rank}: {text}" for rank, _, text in failures)
    return directory


def _work(rank: int, directory: str, store: str, queue: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        import torch

        from headway.train.loop import train as train_here
        from headway.train.preempt import StopRequest
        from headway.train.world import form_world, leave_world

        resolved = RunDirectory.open(Path(directory)).read_spec()
        torch.set_num_threads(resolved.threads)
        world = form_world(
            rank,
            resolved.nodes,
            resolved.ranks_per_node,
            resolved.device,
            resolved.sharded,
            Path(store),
        )
        code = train_here(resolved, world, StopRequest(), SystemClock())
        leave_world(world)
        queue.put((rank, int(code), ""))
    except BaseException:  # noqa: BLE001 - whatever it is, the test must show it
        queue.put((rank, 1, traceback.format_exc()))
