"""A small run for a bench: text made here, prepared, and opened in this process, as the one worker
or as one of several."""

from __future__ import annotations

from pathlib import Path

import torch

from headway.clock import SystemClock
from headway.data.making.prepare import Job, prepare
from headway.data.tiny import stories
from headway.data.tokenizer import TokenizerSource
from headway.launch.machine import this_machine
from headway.spec.load import load_run
from headway.spec.resolve import Resolved, resolve
from headway.state.rundir import RunDirectory
from headway.train.loop import advance
from headway.train.preempt import StopRequest
from headway.train.run import WorkerRun, begin, open_run
from headway.train.world import World, form_world
from headway.train.worlds import OneWorld

SET = "set"


def prepare_set(folder: Path, num_bytes: int, vocabulary: int) -> Path:
    """A set of so much text in `folder/set`."""
    (folder / "text.txt").write_text("\n\n".join(stories(num_bytes, seed=1)))
    job = Job(["text.txt"], TokenizerSource(train_vocab=vocabulary), str(folder / SET), folder)
    prepare(job, lambda progress: None, SystemClock())
    return folder / SET


def resolved_trial(folder: Path, *overrides: str, nodes: int = 1) -> Resolved:
    """The run file in `folder` on the set beside it, its directory made and its threads pinned."""
    resolved = resolve(
        load_run(folder, list(overrides)),
        this_machine(),
        nodes=nodes,
        parameters=None,
        train_set=folder / SET,
        validation_sets={},
    )
    torch.set_num_threads(resolved.threads)
    RunDirectory.create(resolved.run_directory, SystemClock()).write_spec(resolved)
    return resolved


class Trial:
    """A run on one worker of `resolved.nodes`, step by step. They meet at the file `store`."""

    def __init__(
        self, resolved: Resolved, generation: int = 1, rank: int = 0, store: Path = Path("unused")
    ) -> None:
        cpu = torch.device("cpu")
        self.world: World = form_world(rank, resolved.nodes, 1, cpu, False, store, generation)
        self._worlds = OneWorld(self.world)
        self.run: WorkerRun = open_run(
            resolved, self.world.place, rank, StopRequest(), SystemClock()
        )
        begin(self.run, self.world, self._worlds)

    def advance(self) -> None:
        advance(self.run, self.world, self._worlds)
