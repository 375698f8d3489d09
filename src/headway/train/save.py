"""Asynchronous checkpoints: the state is copied, and written in a thread while training continues.

Ranks write in parallel, each its own file: all of them where any loss ends the world, else those of
the leader's domain, so that the loss of another one does not affect a save. They do not communicate
about it: every rank writes a record beside its file when that is complete, and the leader waits for
all records before it writes the manifest. A save whose writer dies does not count.
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
from headway.errors import HeadwayError, RunFailed
from headway.spec.run_file import KeepConfig
from headway.spec.run_identity import identity_digest
from headway.spec.stepped_interval import SteppedInterval
from headway.state.chain import Chain, KeptCheckpoint, Replaced, TakenOver
from headway.state.checkpoints import (
    SAMPLE,
    CheckpointManifest,
    RankManifest,
    clean_up,
    clear_failed,
    drop,
    folder_of,
    retained,
    write_manifest,
)
from headway.state.run_directory import Journal, RunDirectory, send_logs
from headway.state.run_history import summarize
from headway.state.store import NUM_REQUESTS, in_parallel, is_refusal
from headway.train.host_copies import HostCopies
from headway.train.safetensors_file import TensorRows, merged_tensors, write_tensors
from headway.train.state_tensors import rows_to_write, state_tensors
from headway.train.step import Training
from headway.train.world import World

PARTS_SECONDS = 120.0
"""Time that the other writers have, at least, to finish their files after the leader. Network file
systems show a file of another machine up to a minute late."""
PARTS_FACTOR = 4.0
"""Or this multiple of the leader's own time for a file about as large: a store that is slow for one
rank is slower still when all of them write."""
FIRST_RETRY_SECONDS = 5.0
SEND_SECONDS = 60.0
ROUND_SECONDS = 30.0
"""Between two collectives while a save is waited for: far less than the timeout of one."""
LAST_ATTEMPTS = 6
"""Attempts to save at the end of a run, where a save must succeed; each waits twice as long."""
REFUSED_SECONDS = 3600.0
"""Time for which the store may refuse every save before the run fails. A refusal does not pass by
itself, but somebody who was alerted can restore rights or a mount."""
UNSAVED_SECONDS = 12 * 3600.0
"""Time from a save that is due to one that succeeds, before the run fails: an outage over night.
To fail loses all steps since the newest checkpoint, to train on puts ever more steps at risk."""


class SaveSchedule:
    """When the next save is due. Only the leader asks; the step tells the others."""

    def __init__(
        self, every: SteppedInterval, milestones: SteppedInterval | None, clock: Clock
    ) -> None:
        """`milestones`: of checkpoints that are kept for good."""
        self.every = every
        self.milestones = milestones
        self.clock = clock
        self.saved()

    def saved(self) -> None:
        self.last = self.clock.monotonic()
        self.owed = False

    def due(self, step: int) -> bool:
        """Asked for every step. A save that is due while another is being written stays due."""
        regular = self.every.is_due(step, self.clock.monotonic() - self.last)
        milestone = self.milestones is not None and self.milestones.is_due(step)
        self.owed = self.owed or regular or milestone
        return self.owed


@dataclass(frozen=True)
class Snapshot:
    """Everything that a save writes, at one step."""

    step: int
    committed_in: int
    world: World
    rows: list[TensorRows]
    copies: HostCopies
    """What fills the rows, in the thread that writes them."""
    facts: dict[str, Any]


class CheckpointSaver:
    """The saver of one worker."""

    def __init__(
        self, directory: RunDirectory, chain: Chain, journal: Journal, clock: Clock, sample: str
    ) -> None:
        """`sample`: description of the sequences that evaluations use."""
        self.chain = chain
        self.sample = sample
        self.directory = directory
        self.journal = journal
        self.clock = clock
        self.thread: Thread | None = None
        # States by name, (step, generation that committed it): a step that was rewound and computed
        # again is another state, and an earlier save of it does not count.
        self.saved: tuple[int, int] | None = None
        """The newest state of which a save succeeded."""
        self.saved_at = clock.monotonic()
        self.tried: tuple[int, int] | None = None
        self.settled_step = -1
        """The newest step that all members are known to hold."""
        self._owed: tuple[Snapshot, KeepConfig] | None = None
        """A save whose step is not settled yet: older checkpoints are kept until then."""
        self._retiring: Thread | None = None
        self._retires = Lock()
        self._deposed: TakenOver | Replaced | None = None
        """Why nothing that this worker saves counts any more."""
        self.failures = 0
        self.failure = "the leader could not write it"
        """Why the newest save failed, if it did."""
        self.tried_at = clock.monotonic()
        self._unsaved_since: float | None = None
        """Time at which the first save was due since the newest one that succeeded."""
        self._refused_since: float | None = None
        """Time since which the store has refused every save."""
        self._gave_up: str | None = None
        """How long saves had failed when the newest one failed, if that is too long. Not asked
        while one is being written: it may succeed."""
        self.sent_at = clock.monotonic()
        self._buffers: dict[str, torch.Tensor] = {}

    def begin(self, world: World) -> None:
        """From now on saves are those of this world; one that is being written is not disturbed."""
        self.world = world
        self._deposed = None
        if not world.is_leader:  # another worker saves, and knows for how long it could not
            self._unsaved_since = self._refused_since = self._gave_up = None

    def require_owner(self) -> None:
        """Raise what a save has found: somebody else trains the run now."""
        if self._deposed is not None:
            raise self._deposed

    def require_saves(self, is_due: bool) -> None:
        """Raise RunFailed on the leader once saves have failed for too long. `is_due`: a save is
        due, even if the one before it has not ended."""
        now = self.clock.monotonic()
        if is_due and self.world.is_leader and self._unsaved_since is None:
            self._unsaved_since = now
        gave_up = self._gave_up
        if gave_up is None and now - self.tried_at >= UNSAVED_SECONDS:  # a save may hang
            gave_up = self._unsaved_too_long()
        if gave_up is not None:
            reason = self.failure if self.failures else "the newest save has not ended"
            raise RunFailed(f"{gave_up}: {reason}", self._hint())

    def _unsaved_too_long(self) -> str | None:
        now, location = self.clock.monotonic(), self.directory.location
        refused, unsaved = self._refused_since, self._unsaved_since
        if refused is not None and now - refused >= REFUSED_SECONDS:
            return f"{location} has refused every save for {REFUSED_SECONDS / 3600:.0f} h"
        if unsaved is not None and now - unsaved >= UNSAVED_SECONDS:
            return f"nothing could be saved to {location} for {UNSAVED_SECONDS / 3600:.0f} h"
        return None

    def _hint(self) -> str:
        is_saved = self.saved_step is not None
        newest = f"step {self.saved_step} is saved" if is_saved else "nothing is saved yet"
        return f"{newest}; free space or fix the store, then run the same command to resume"

    def settled(self, step: int) -> None:
        """All members have this step: a checkpoint of it counts, and older ones may be removed. In
        a thread: training never waits for it."""
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
        """After a failure: sooner than the next save, with exponential backoff."""
        waited = self.clock.monotonic() - self.tried_at if self.failures else 0.0
        return self.failures > 0 and waited >= FIRST_RETRY_SECONDS * 2 ** min(self.failures - 1, 6)

    def start(self, training: Training, validation_loss: float | None) -> float:
        """Starts to copy the state and to write it. Returns the seconds that training was
        blocked."""
        began = self.clock.monotonic()
        self.tried, self.tried_at = (training.step, training.committed_in), began
        if self.world.writes_checkpoints:
            self.wait()
            snapshot = self._snapshot(training, validation_loss)
            keep = training.resolved.run.checkpoint.keep
            self.thread = Thread(
                target=self._write, args=(snapshot, keep), name="saver", daemon=True
            )
            self.thread.start()
        return self.clock.monotonic() - began

    def send_logs(self) -> None:
        """Uploads the logs to an object store, every minute, in a thread: training never waits."""
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

    def _wait_for_all(self) -> None:
        """COLLECTIVE. Waits until no worker writes any more, in rounds: a collective that took as
        long as a large save would run into its timeout."""
        while True:
            if self.thread is not None:
                self.thread.join(ROUND_SECONDS)
            if not self.world.any(self.is_busy):  # COLLECTIVE
                return

    def finish(self, training: Training, validation_loss: float | None) -> None:
        """COLLECTIVE. At the end of training or after a stop: saves the state, and returns once it
        is in the store. Raises RunFailed if it cannot be saved."""
        pause = 1.0
        for attempt in range(1, LAST_ATTEMPTS + 1):
            if self.save_now(training, validation_loss):
                return
            if attempt < LAST_ATTEMPTS:
                self.clock.sleep(pause)
                pause *= 2
        raise RunFailed(
            f"step {training.step} could not be saved to {self.directory.location}: {self.failure}",
            self._hint(),
        )

    def save_now(self, training: Training, validation_loss: float | None) -> bool:
        """COLLECTIVE. Whether the state is in the store, now that this returns. The same on all."""
        state = (training.step, training.committed_in)
        self._wait_for_all()  # COLLECTIVE
        if self.tried != state:
            self.start(training, validation_loss)
        self._wait_for_all()  # COLLECTIVE
        self.require_owner()
        failed = self.world.is_leader and self.saved != state
        if self.world.any(failed):  # COLLECTIVE
            self.tried = None
            return False
        self.settled(training.step)
        if self._retiring is not None:
            self._retiring.join()
        return True

    def _snapshot(self, training: Training, validation_loss: float | None) -> Snapshot:
        tensors = list(state_tensors(training.model, training.optimizer))
        rows = []
        for tensor in rows_to_write(tensors, self.world):
            buffer = self._buffers.get(tensor.name)
            if buffer is None:
                # Reused by all saves: touching fresh memory costs more than copying into it.
                buffer = torch.empty(tensor.local.shape, dtype=tensor.local.dtype)
                self._buffers[tensor.name] = buffer
            training.saved_copies.add(tensor.local, buffer)
            rows.append(TensorRows(tensor.name, tensor.shape, tensor.start, buffer))
        return Snapshot(
            step=training.step,
            committed_in=training.committed_in,
            world=self.world,
            rows=rows,
            copies=training.saved_copies,
            facts=self._facts(training, validation_loss),
        )

    def _facts(self, training: Training, validation_loss: float | None) -> dict[str, Any]:
        """What a manifest says of the state besides its tensors."""
        run = training.resolved.run
        return {
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
            },
        }

    def _write(self, snapshot: Snapshot, keep: KeepConfig) -> None:
        began, world = self.clock.monotonic(), snapshot.world
        folder = folder_of(snapshot.step, world.generation)
        mine = f"{folder}/rank-{world.rank}"
        is_complete = False
        try:
            snapshot.copies.run()  # first: the next step may wait for it
            if world.is_leader:
                with suppress(OSError):  # an unreachable store fails the save itself
                    clear_failed(self.directory, snapshot.step, world.generation)
            # A record of an earlier attempt at the same step would vouch for a file that is about
            # to be overwritten.
            if self.directory.store.size(f"{mine}.json") is not None:
                self.directory.store.remove(f"{mine}.json")
            file = f"rank-{world.rank}.safetensors"
            part = write_tensors(self.directory.store, folder, file, snapshot.rows)
            record = part.model_dump_json().encode()
            self.directory.store.write(f"{mine}.json", record)
            if not world.is_leader:
                return
            kept = self._commit(snapshot, folder, self.clock.monotonic() - began)
            is_complete = True
            self._record(snapshot, keep, kept)
        except (TakenOver, Replaced) as error:
            self._deposed = error
            self._make_room(snapshot, mine)
            return
        except Exception as error:  # noqa: BLE001 - recorded; a save that fails must not end training
            if not is_complete:  # else it may count: the answer that it does can have been lost
                self._make_room(snapshot, mine)
            if world.is_leader:
                self._note_failure(snapshot.step, error)
            return
        seconds = round(self.clock.monotonic() - began, 3)
        self.saved = (snapshot.step, snapshot.committed_in)
        self.saved_at = self.clock.monotonic()
        self.failures = 0
        self._unsaved_since = self._refused_since = self._gave_up = None
        self.journal.note(
            "saved", step=snapshot.step, checkpoint=Path(folder).name, seconds=seconds
        )
        if world.replicas is None or snapshot.step <= self.settled_step:
            self._retire(snapshot, keep)
        else:
            # If the others turn out not to have this step, it is computed again, and only the older
            # checkpoints count.
            self._owed = (snapshot, keep)
        with suppress(OSError):  # readers then begin at an older one
            summarize(self.directory)

    def _retire(self, snapshot: Snapshot, keep: KeepConfig) -> None:
        settled = max(self.settled_step, snapshot.step)
        # Old ones that cannot be removed now go with the next save.
        with self._retires, suppress(OSError, TakenOver, Replaced):
            generation, now = snapshot.world.generation, stamp(self.clock.now())
            link = self.chain.save(generation, now, lambda keeps: retained(keeps, keep, settled))
            clean_up(self.directory, link, generation)

    def _record(self, snapshot: Snapshot, keep: KeepConfig, kept: KeptCheckpoint) -> None:
        """From here on the checkpoint counts, and what it replaces does not."""
        settled = self.settled_step
        if snapshot.world.replicas is None:
            settled = max(settled, snapshot.step)

        def chosen(keeps: tuple[KeptCheckpoint, ...]) -> tuple[KeptCheckpoint, ...]:
            others = [one for one in keeps if one.name != kept.name]
            return retained((*others, kept), keep, settled)

        with self._retires:
            generation, now = snapshot.world.generation, stamp(self.clock.now())
            self.chain.save(generation, now, chosen)

    def _make_room(self, snapshot: Snapshot, mine: str) -> None:
        """After a failure: removes what this rank has written; the leader removes all of it."""
        if snapshot.world.is_leader:
            with suppress(OSError):
                drop(self.directory, snapshot.step, snapshot.world.generation)
            return
        for name in (f"{mine}.json", f"{mine}.safetensors"):
            with suppress(OSError):
                self.directory.store.remove(name)

    def _commit(self, snapshot: Snapshot, folder: str, write_seconds: float) -> KeptCheckpoint:
        """Writes the manifest, once every rank's file is complete and the ledger is in the
        store."""
        patience = max(PARTS_SECONDS, PARTS_FACTOR * write_seconds)
        deadline = self.clock.monotonic() + patience
        names = [f"{folder}/rank-{rank}.json" for rank in range(snapshot.world.num_writers)]
        store, missing = self.directory.store, names
        while True:
            there = set(store.children(folder))  # one request, however many have written
            missing = [name for name in missing if name not in there]
            if not missing:
                break
            if self.clock.monotonic() > deadline:
                others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise OSError(
                    f"{missing[0]}{others} not written within {patience:.0f} s of the first "
                    "rank's file"
                )
            self.clock.sleep(0.05 if store.is_local else 0.5)
        read = in_parallel(store.read, names, NUM_REQUESTS)
        parts = [RankManifest.model_validate_json(content) for content in read]
        for log in (self.directory.ledger, self.directory.metrics, self.directory.evaluations):
            log.flush()
        manifest = CheckpointManifest(
            **snapshot.facts,
            created=stamp(self.clock.now()),
            tensors=merged_tensors(parts),
            files={part.file: part.stored for part in parts},
        )
        return write_manifest(self.directory.store, folder, manifest)

    def _note_failure(self, step: int, error: Exception) -> None:
        self.failures += 1
        self.failure = str(error)
        if not (
            isinstance(error, HeadwayError) or (isinstance(error, OSError) and is_refusal(error))
        ):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = self.clock.monotonic()
        self._gave_up = self._unsaved_too_long()
        age = round(self.clock.monotonic() - self.saved_at)
        self.journal.note(
            "save_failed",
            step=step,
            reason=str(error),
            last_good_step=self.saved_step,
            last_good_age_seconds=age,
        )
