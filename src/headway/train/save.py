"""Saving while training goes on: a copy now, the writing in a thread.

The leader's node writes, its ranks in parallel, each its own file. They do not talk to each other
about it: every rank puts a record beside its file when that is whole, and the leader waits for all
records before it writes the manifest. So no loss of another node touches a save, and a save whose
writer dies has never existed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch

from headway import __version__
from headway.clock import Clock, stamp
from headway.errors import RunFailed
from headway.spec.changes import identity_digest
from headway.spec.run import Checkpoint, Keep
from headway.state.checkpoints import (
    ARITHMETIC,
    SAMPLE,
    CheckpointManifest,
    Part,
    clear_failed,
    drop,
    folder_of,
    retire,
    write_manifest,
)
from headway.state.rundir import Journal, RunDirectory, send_logs
from headway.train.copies import VERSION
from headway.train.pieces import pieces_to_write, state_pieces
from headway.train.step import Training
from headway.train.tensors_file import Rows, merged_tensors, write_tensors
from headway.train.world import World

PARTS_SECONDS = 120.0
"""At least so long the other ranks of the node have to finish their files after the leader has."""
PARTS_FACTOR = 4.0
"""Or so many times as long as the leader took for its own, which is about as large: a store that is
slow for one rank is slower still when all of them write."""
FIRST_RETRY_SECONDS = 5.0
SEND_SECONDS = 60.0
LAST_ATTEMPTS = 6
"""At the end of a run a save must succeed; so many attempts, waiting twice as long each time."""


class SaveTimes:
    """When the next save is due. Only the first worker asks; the step tells the others."""

    def __init__(self, checkpoint: Checkpoint, clock: Clock) -> None:
        self.every = checkpoint.every
        self.milestones = checkpoint.keep.every
        self.clock = clock
        self.saved()

    def saved(self) -> None:
        self.last = self.clock.monotonic()
        self.owed = False

    def due(self, step: int) -> bool:
        """Asked for every step. A save that is due while another is being written stays due."""
        if self.every.unit == "steps":
            regular = step % self.every.amount == 0
        else:
            regular = self.clock.monotonic() - self.last >= self.every.amount
        milestone = self.milestones is not None and step % self.milestones.amount == 0
        self.owed = self.owed or regular or milestone
        return self.owed


@dataclass(frozen=True)
class Snapshot:
    """Everything a save writes, as it was at one step."""

    step: int
    committed_in: int
    world: World
    rows: list[Rows]
    facts: dict[str, Any]


class Saver:
    """Of one worker. Only workers of the first node have anything to write."""

    def __init__(
        self, directory: RunDirectory, journal: Journal, clock: Clock, sample: str
    ) -> None:
        """`sample`: what evaluations take of the validation sets."""
        self.sample = sample
        self.directory = directory
        self.journal = journal
        self.clock = clock
        self.thread: Thread | None = None
        # States by name, (step, generation that committed it): a step that was taken back and taken
        # again is another state, and what was saved of it before does not count.
        self.saved: tuple[int, int] | None = None
        """The newest state of which a save succeeded."""
        self.saved_at = clock.monotonic()
        self.tried: tuple[int, int] | None = None
        self.settled_step = -1
        """The newest step that all members are known to hold."""
        self._owed: tuple[Snapshot, Keep] | None = None
        """A save whose step is not settled yet: retention waits for it."""
        self._retiring: Thread | None = None
        self._retires = Lock()
        self.failures = 0
        self.failure = "the first worker could not"
        """Why the newest save failed, where one did."""
        self.sent_at = clock.monotonic()
        self._buffers: dict[str, torch.Tensor] = {}

    def begin(self, world: World) -> None:
        """From now on saves are those of this world; one that is being written is not disturbed."""
        self.world = world

    def settled(self, step: int) -> None:
        """All members hold this step: a checkpoint of it counts, and older ones may go. In a
        thread: training never waits for it."""
        self.settled_step = step
        owed = self._owed
        if owed is not None and owed[0].step <= step:
            self._owed = None
            self._retiring = Thread(target=self._retire, args=owed, name="saver", daemon=True)
            self._retiring.start()

    @property
    def saved_step(self) -> int | None:
        return None if self.saved is None else self.saved[0]

    @property
    def is_busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def retry_is_due(self) -> bool:
        """After a failure: sooner than the next save, and less and less often."""
        waited = self.clock.monotonic() - self.tried_at if self.failures else 0.0
        return self.failures > 0 and waited >= FIRST_RETRY_SECONDS * 2 ** min(self.failures - 1, 6)

    def start(self, training: Training, validation_loss: float | None) -> float:
        """Copies the state and begins to write it; seconds that training was held up."""
        began = self.clock.monotonic()
        self.tried, self.tried_at = (training.step, training.committed_in), began
        if self.world.leads:
            self.wait()
            snapshot = self._snapshot(training, validation_loss)
            keep = training.resolved.run.checkpoint.keep
            self.thread = Thread(
                target=self._write, args=(snapshot, keep), name="saver", daemon=True
            )
            self.thread.start()
        return self.clock.monotonic() - began

    def send_logs(self) -> None:
        """To an object store, every minute, in the thread: training never waits for it."""
        due = self.clock.monotonic() - self.sent_at >= SEND_SECONDS
        if due and not self.directory.store.is_local and not self.is_busy:
            self.sent_at = self.clock.monotonic()
            self.thread = Thread(
                target=send_logs, args=(self.directory,), name="saver", daemon=True
            )
            self.thread.start()

    def wait(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def finish(self, training: Training, validation_loss: float | None) -> None:
        """COLLECTIVE. Training has come to an end or was stopped: its state is in the store when
        this returns, or the run has failed."""
        pause, state = 1.0, (training.step, training.committed_in)
        for attempt in range(1, LAST_ATTEMPTS + 1):
            if self.tried != state or attempt > 1:
                self.start(training, validation_loss)
            self.wait()
            failed = self.world.is_first and self.saved != state
            if not self.world.any(failed):  # COLLECTIVE
                self.settled(training.step)
                if self._retiring is not None:
                    self._retiring.join()
                return
            if attempt < LAST_ATTEMPTS:
                self.clock.sleep(pause)
                pause *= 2
        is_saved = self.saved_step is not None
        newest = f"step {self.saved_step} is saved" if is_saved else "nothing is saved yet"
        raise RunFailed(
            f"step {training.step} could not be saved to {self.directory.location}: {self.failure}",
            f"{newest}; make room or mend the store, then run the same command again",
        )

    def _snapshot(self, training: Training, validation_loss: float | None) -> Snapshot:
        pieces = list(state_pieces(training.model, training.optimizer))
        rows = []
        for piece in pieces_to_write(pieces, self.world):
            buffer = self._buffers.get(piece.name)
            if buffer is None:
                # Kept for all saves: touching fresh memory costs more than copying into it.
                pinned = piece.local.device.type == "cuda"
                buffer = torch.empty(piece.local.shape, dtype=piece.local.dtype, pin_memory=pinned)
                self._buffers[piece.name] = buffer
            buffer.copy_(piece.local, non_blocking=True)
            rows.append(Rows(piece.name, piece.shape, piece.start, buffer))
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)  # SYNC: the copies have arrived
        run = training.resolved.run
        facts = {
            "step": training.step,
            "generation": self.world.generation,
            "run": self.directory.name,
            "headway": __version__,
            "identity": identity_digest(run),
            "data_digest": training.feed.set.digest,
            "position": training.step * training.resolved.global_batch,
            "validation_loss": validation_loss,
            "scalars": {
                "loss_scale": [training.scale.scale, training.scale.good_steps],
                "guard": training.guard.state(),
                SAMPLE: self.sample,
                ARITHMETIC: VERSION,
            },
        }
        return Snapshot(training.step, training.committed_in, self.world, rows, facts)

    def _write(self, snapshot: Snapshot, keep: Keep) -> None:
        began, world = self.clock.monotonic(), snapshot.world
        folder = folder_of(snapshot.step, world.generation)
        mine = f"{folder}/rank-{world.place.local_rank}"
        if world.is_first:
            with suppress(OSError):  # a store that is away shows in the save itself
                clear_failed(self.directory, snapshot.step, world.generation)
        try:
            # A record that an attempt at the same step left behind would vouch for a file that is
            # about to be written again.
            if self.directory.store.size(f"{mine}.json") is not None:
                self.directory.store.remove(f"{mine}.json")
            file = f"rank-{world.place.local_rank}.safetensors"
            part = write_tensors(self.directory.store, folder, file, snapshot.rows)
            record = part.model_dump_json().encode()
            self.directory.store.write(f"{mine}.json", record)
            if not world.is_first:
                return
            self._commit(snapshot, folder, self.clock.monotonic() - began)
        except Exception as error:  # noqa: BLE001 - noted; a save that fails must not end training
            self._make_room(snapshot, mine)
            if world.is_first:
                self._note_failure(snapshot.step, error)
            return
        seconds = round(self.clock.monotonic() - began, 3)
        self.saved = (snapshot.step, snapshot.committed_in)
        self.saved_at = self.clock.monotonic()
        self.failures = 0
        self.journal.note(
            "saved", step=snapshot.step, checkpoint=Path(folder).name, seconds=seconds
        )
        if world.replicas is None or snapshot.step <= self.settled_step:
            self._retire(snapshot, keep)
        else:
            # If the others turn out not to hold this step, it is taken again, and only the older
            # checkpoints count.
            self._owed = (snapshot, keep)

    def _retire(self, snapshot: Snapshot, keep: Keep) -> None:
        settled = max(self.settled_step, snapshot.step)
        # Old ones that cannot be removed now go with the next save.
        with self._retires, suppress(OSError):
            retire(self.directory, keep, snapshot.world.generation, settled)

    def _make_room(self, snapshot: Snapshot, mine: str) -> None:
        """After a failure: what this rank has written goes, and with the leader all of it."""
        if snapshot.world.is_first:
            with suppress(OSError):
                drop(self.directory, snapshot.step, snapshot.world.generation)
            return
        for name in (f"{mine}.json", f"{mine}.safetensors"):
            with suppress(OSError):
                self.directory.store.remove(name)

    def _commit(self, snapshot: Snapshot, folder: str, write_seconds: float) -> None:
        """The manifest, once every rank's file is whole and the ledger is in the store."""
        writers = snapshot.world.place.domain_size
        patience = max(PARTS_SECONDS, PARTS_FACTOR * write_seconds)
        deadline = self.clock.monotonic() + patience
        names = [f"{folder}/rank-{rank}.json" for rank in range(writers)]
        for name in names:
            while self.directory.store.size(name) is None:
                if self.clock.monotonic() > deadline:
                    raise OSError(
                        f"{name} was not written within {patience:.0f} s of the first rank's file"
                    )
                self.clock.sleep(0.05)
        parts = [Part.model_validate_json(self.directory.store.read(name)) for name in names]
        for log in (self.directory.ledger, self.directory.metrics, self.directory.evaluations):
            log.flush()
        manifest = CheckpointManifest(
            **snapshot.facts,
            created=stamp(self.clock.now()),
            tensors=merged_tensors(parts),
            files={part.file: part.stored for part in parts},
        )
        write_manifest(self.directory.store, folder, manifest)

    def _note_failure(self, step: int, error: Exception) -> None:
        self.failures += 1
        self.failure = str(error)
        age = round(self.clock.monotonic() - self.saved_at)
        self.journal.note(
            "save_failed",
            step=step,
            reason=str(error),
            last_good_step=self.saved_step,
            last_good_age_seconds=age,
        )
