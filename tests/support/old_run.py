"""Run directories of any age, as leaders and launchers write them: many generations, some of which
go back to the newest checkpoint; logs in segments; saves with retention and summaries."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.clock import stamp
from headway.spec.run_file import KeepConfig
from headway.state.chain import Chain
from headway.state.checkpoints import CheckpointManifest, folder_of, write_manifest
from headway.state.record_log import FileLog, SegmentLog
from headway.state.rewinds import Record
from headway.state.run_directory import RunDirectory
from headway.state.run_history import summarize
from support.chains import LAUNCH, recorded

STEP_SECONDS = 0.5
BATCH, LENGTH = 4, 8
LOGS = ("launcher", "events", "metrics", "evaluations", "samples", "activations", "ledger")


def as_in_a_bucket(folder: Path, cache: Path) -> RunDirectory:
    """A run directory in a folder, with the files of an object store: a server of the folder has
    them as objects."""
    directory = RunDirectory(folder)
    for name in LOGS:
        setattr(directory, name, SegmentLog(directory.store, name, FileLog(cache / f"{name}.log")))
    return directory


class Aging:
    def __init__(self, directory: RunDirectory, begin: float = 1_800_000_000.0) -> None:
        self.directory = directory
        self.time = begin
        self.step = self.saved = self.generation = 0
        self.chain = Chain(directory, LAUNCH)
        self.chain.start(stamp(begin))
        self._random = random.Random(1)
        launched = {"nodes": 2, "workers": 2, "mode": "live", "generation": 1}
        self.launcher("launched", **launched)
        for node in range(2):
            self.launcher("worker", node=node, local_rank=0, pid=7, name=f"node-{node}.1/0")

    def launcher(self, event: str, **facts: Any) -> None:
        self.directory.launcher.append({"time": stamp(self.time), "event": event, **facts})

    def event(self, event: str, **facts: Any) -> None:
        self.directory.events.append({"time": stamp(self.time), "event": event, **facts})

    def live(self, generations: int, steps: int, save_every: int = 5) -> None:
        """`save_every`: generations."""
        for _ in range(generations):
            self.begin()
            for _ in range(steps):
                self.commit()
            self.flush()
            if self.generation % save_every == 0:
                self.save()

    def begin(self) -> None:
        """A worker is lost; sometimes the leader as well, with the steps since the last save."""
        self.generation += 1
        if self._random.random() < 0.1:
            self.step = self.saved
        self.time += 0.1  # nobody is lost in the millisecond in which the run has started
        if self.generation > 1:
            self.launcher("lost", node=1, local_rank=0, how="signal 9")
            self.launcher("worker", node=1, local_rank=0, pid=7, name=f"node-1.{self.generation}/0")
        self.time += 0.2
        self.chain.begin(self.generation, self.step, 2, stamp(self.time))
        facts = {"generation": self.generation, "workers": 2}
        if self.generation > 1:
            for log in (self.directory.metrics, self.directory.evaluations, self.directory.ledger):
                log.append({"rewind": self.step, "generation": self.generation})
            reason = "node-1.1/0 is lost"
            self.event(
                "changed", **facts, step=self.step, reason=reason, discarded=True, seconds=0.2
            )
        else:
            seconds = {"import": 1.0, "build": 2.0, "load": 0.0}
            more = {"total_steps": 10**7, "device": "cpu", "evaluate_every": 50}
            self.event("started", **facts, **more, seconds=seconds)
        begun = {"begin": self.generation, "step": self.step, "batch": BATCH, "samples": 100}
        self.directory.ledger.append({**begun, "length": LENGTH, "data": "d", "code": None})

    def commit(self) -> None:
        self.step += 1
        self.time += STEP_SECONDS
        self.directory.metrics.append(self._metrics())
        line = {"step": self.step, "first": (self.step - 1) * BATCH, "count": BATCH}
        line |= {"generation": self.generation, "members": 2, "tokens": BATCH * LENGTH}
        self.directory.ledger.append({**line, "loss": 2.0, "learned": True})
        if self.step % 50 == 0:
            evaluated = {"step": self.step, "set": "held-out", "generation": self.generation}
            self.directory.evaluations.append({**evaluated, "loss": 3.0 - self.step / 1e8})
            self.event("evaluated", step=self.step, seconds=0.1)

    def _metrics(self) -> Record:
        numbers = {"loss": 2.0 + 1 / self.step, "perplexity": 7.4, "lr": 1e-3, "grad_norm": 0.5}
        times = {"seconds": STEP_SECONDS, "data_seconds": 0.01, "tokens_per_second": 64.0}
        skipped = {"skipped": "the loss is nan"} if self.step % 97 == 0 else {}
        facts = {"step": self.step, "time": stamp(self.time), "tokens": self.step * 32}
        return {**facts, "generation": self.generation, **numbers, **times, **skipped}

    def flush(self) -> None:
        for name in LOGS:
            getattr(self.directory, name).flush()

    def save(self, *, summarizes: bool = True) -> None:
        """What a save writes, but for its tensors."""
        manifest = CheckpointManifest(
            step=self.step,
            generation=self.generation,
            run=self.directory.name,
            created=stamp(self.time),
            headway="0.1.0",
            identity="i",
            data_digest="d",
            position=self.step * BATCH,
            validation_loss=None,
            scalars={},
            tensors={},
            files={},
        )
        folder = folder_of(self.step, self.generation)
        kept = write_manifest(self.directory.store, folder, manifest)
        self.saved = self.step
        self.event("saved", step=self.step, checkpoint="step", seconds=0.1)
        with suppress(OSError):  # as the saver does
            recorded(self.chain, kept, KeepConfig(last=2, best=0))
        if summarizes:
            with suppress(OSError):
                summarize(self.directory)
