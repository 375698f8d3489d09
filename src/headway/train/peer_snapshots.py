"""Snapshots of the state in the memory of the nodes, every few steps: each rank keeps its own part
and that of a rank on another node.

After an agreed step a thread of every rank copies its part into memory that outlives it, while the
next step is computed, which changes nothing of it until its update: that waits for the copy. Then
the thread completes the part and reads the neighbour's. The next snapshot is taken only when all
are done with the one before, as the control all-reduce of the step tells: so there is always a
complete one. Restoring is in restore_peers.py. docs/decisions.md has the reasons under "Snapshots
in a neighbour's memory".
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from headway.clock import Clock
from headway.errors import HeadwayError
from headway.state.checkpoints import RankManifest
from headway.state.ledger import follows
from headway.state.run_directory import Journal
from headway.state.stored_file import BLOCK_BYTES, BlockDigests, StoredFile
from headway.train.device import beside_training
from headway.train.host_copies import HostCopies
from headway.train.recorder import Recorder
from headway.train.safetensors_file import FileLayout, TensorRows, layout_of
from headway.train.save import CheckpointSaver
from headway.train.snapshot_choice import HeldPart, Name, neighbour
from headway.train.snapshot_meeting import PeerAddresses, exchange_addresses, exchange_held
from headway.train.snapshot_memory import NoRoom, PartFacts, PartFile, SnapshotMemory
from headway.train.snapshot_server import (
    PartMissing,
    PartReader,
    SnapshotServer,
    reachable_host,
    yield_to_training,
)
from headway.train.state_tensors import state_tensors, tensors_to_write
from headway.train.step import Agreed, Training
from headway.train.world import World

NO_MEMORY = "this node has no folder in memory: /dev/shm cannot be used"
MOST_FAILURES = 3
"""In a row, after which no more snapshots are taken in this generation."""
PART_SECONDS = 600.0
"""Wait for the neighbour to complete its part, which it does when its cores have nothing else to
do. The loss of a node ends the wait sooner: all restart."""
LOOK_SECONDS = 0.02
READING_SHARE = 0.5
"""Of the time, at most, in which the neighbour's part is read: the rest of the network and of a
core is for training."""


class PeerSnapshots:
    """Those of one worker."""

    def __init__(
        self,
        every: int,
        memory: SnapshotMemory | None,
        ranks_per_node: int,
        journal: Journal,
        clock: Clock,
    ) -> None:
        """`memory`: None if this node has none; then there are none on the others, either."""
        self._memory = memory
        self.is_off = False
        self.has_resumed = False
        """Whether the run has resumed from one."""
        self._every = every
        self._ranks_per_node = ranks_per_node
        self._journal, self._clock = journal, clock
        self._needed: Name | None = None
        """The newest snapshot that is complete everywhere: not to be overwritten."""
        self._pending: Name | None = None
        """The one that is being completed."""
        self._last_step: int | None = None
        """Step of the newest one of this generation."""
        self._lag = 1
        """Steps that were taken before the newest one was complete everywhere."""
        self._said_late = False
        self._num_failures = 0
        self._failure: str | None = None
        self._thread: Thread | None = None
        self._peers: PeerAddresses | None = None
        self._server: SnapshotServer | None = None
        self._world: World | None = None
        self._mapped: dict[Path, torch.Tensor] = {}
        self.damaged: set[Name] = set()
        """Those of which some was loaded before the rest was found to be unreadable."""
        self._host_copies = HostCopies()
        self._copied = Event()
        """The copy of the state is complete: the state may change."""
        self._has_hook = False

    # Meeting the others

    def meet(self, world: World) -> tuple[PeerAddresses, list[list[HeldPart]]]:
        """COLLECTIVE. Serves what this node holds. Returns how to reach the others, and what each
        of them holds, by rank."""
        self._world = world
        self._server = server = self._serve()
        address = None if server is None else server.address
        self._peers = peers = exchange_addresses(world, address)  # COLLECTIVE
        held = []
        if server is not None and self._memory is not None:
            server.token = peers.token
            held = self._memory.held()
        return peers, exchange_held(world, held)  # COLLECTIVE

    def _serve(self) -> SnapshotServer | None:
        if self._memory is None:
            self._failure = NO_MEMORY
            return None
        try:
            host = reachable_host(os.environ.get("HEADWAY_COORDINATOR"))
            return SnapshotServer(host, self._memory.find)
        except (OSError, ValueError, HeadwayError) as error:
            why = error.message if isinstance(error, HeadwayError) else error
            self._failure = f"the others cannot reach this node: {why}"
            return None

    def find(self, name: Name, part: int) -> PartFile | None:
        """In the memory of this node."""
        return None if self._memory is None else self._memory.find(name, part)

    def resumed_from(self, name: Name) -> None:
        """All have that snapshot: it is needed until the next is complete."""
        self._needed = name
        self.has_resumed = True

    def forget_damaged(self) -> None:
        """No process meets them again."""
        if self._memory is not None:
            for file in self._memory.complete_parts():
                if file.name in self.damaged:
                    file.clear()

    # At each step

    @property
    def is_done(self) -> bool:
        is_busy = self._thread is not None and self._thread.is_alive()
        return not (self.is_off or is_busy or self._peers is None)

    def wait(self) -> None:
        """Until this worker is done with the newest one."""
        if self._thread is not None:
            self._thread.join()

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def after_step(
        self, training: Training, agreed: Agreed, saver: CheckpointSaver, recorder: Recorder
    ) -> None:
        """Takes a snapshot, if one is due: the same decision on all."""
        if not agreed.snapshot_done or self.is_off:
            return
        self._end_pending(training.step, agreed.snapshot_failed)
        # Also before a planned change: if its checkpoint cannot be saved, training continues.
        if self.is_off or not self._is_due(training.step) or agreed.stop:
            return
        self._last_step = training.step
        self._pending = (training.step, training.committed_in)
        recorder.settle()
        self._start(training, saver, recorder)

    def _is_due(self, step: int) -> bool:
        """So early that no more than `every` steps are lost, if a node is lost just before this one
        is complete, as long as that takes no more than half of them. The first one at once: after a
        loss some parts have a single holder."""
        if self._last_step is None:
            return True
        return step - self._last_step >= max(1, self._every - self._lag)

    def _end_pending(self, step: int, failed: bool) -> None:
        if self._pending is not None and not failed:
            self._num_failures = 0
            self._needed, self._lag = self._pending, step - self._pending[0]
            if 2 * self._lag > self._every and not self._said_late and self._rank == 0:
                self._said_late = True
                self._journal.note("snapshots_late", step=step, lag=self._lag, every=self._every)
        elif failed:
            self._num_failures += 1
            if self._failure is not None:
                self._journal.note(
                    "snapshot_failed", step=step, rank=self._rank, reason=self._failure
                )
                self._failure = None
            if self._num_failures >= MOST_FAILURES:
                self.is_off = True
                self._mapped.clear()
                if self._memory is not None:
                    self._memory.remove_all_but(self._needed)
                if self._rank == 0:
                    self._journal.note("snapshots_off", step=step, failures=self._num_failures)
        self._pending = None

    @property
    def _rank(self) -> int:
        assert self._world is not None
        return self._world.rank

    def _start(self, training: Training, saver: CheckpointSaver, recorder: Recorder) -> None:
        """Starts the thread that makes the snapshot."""
        world = self._world
        assert world is not None
        assert self._pending is not None
        if self._memory is None:
            self._failure = NO_MEMORY
            return
        own = self._memory.replaceable("own", self._needed)
        try:
            layout, copies = self._copies(training, world, own)
        except (NoRoom, OSError) as error:
            self._fail(self._pending, str(error))
            return
        records: list[list[dict[str, Any]]] = []
        if world.is_leader:
            saved = saver.saved
            last = None if saved is None else {"step": saved[0], "generation": saved[1]}
            records = [
                [line for line in lines if follows(line, last)] for lines in recorder.kept_records()
            ]
        age = self._clock.monotonic() - saver.saved_at

        def facts(stored: StoredFile) -> PartFacts:
            manifest = RankManifest(file=part_file(world.rank), stored=stored, tensors=tensors)
            return PartFacts(
                name=name,
                part=world.rank,
                num_parts=world.num_workers,
                manifest=manifest.model_dump_json(),
                facts=state,
                saved=saver.saved,
                saved_at=self._clock.now() - age,
                records=records,
            )

        name, tensors = self._pending, layout.tensors
        state = saver.facts(training, None)
        self._copied.clear()
        if not self._has_hook:
            training.optimizer.register_step_pre_hook(lambda *_: self._wait_for_copy())
            self._has_hook = True
        self._thread = Thread(
            target=self._complete,
            args=(own, copies, facts, name),
            name="headway-snapshot",
            daemon=True,
        )
        self._thread.start()

    def _fail(self, name: Name, reason: str) -> None:
        self._failure = reason
        if self._server is not None:
            self._server.failed = name

    def _wait_for_copy(self) -> None:
        """SYNC. Without a deadline, as nothing but memory is waited for."""
        self._copied.wait()

    def _copies(
        self, training: Training, world: World, own: PartFile
    ) -> tuple[FileLayout, list[tuple[torch.Tensor, torch.Tensor]]]:
        """What is to be copied, and where. Buffers are copied at once: a forward pass may change
        them."""
        tensors = tensors_to_write(list(state_tensors(training.model, training.optimizer)), world)
        rows = [TensorRows(one.name, one.shape, one.start, one.local) for one in tensors]
        layout = layout_of(part_file(world.rank), rows)
        content = self._memory_of(own, layout.size)
        content[: len(layout.beginning)] = torch.frombuffer(
            bytearray(layout.beginning), dtype=torch.uint8
        )
        at = len(layout.beginning)
        named = training.model.named_buffers(remove_duplicate=False)
        buffers = {f"model/{name}" for name, _ in named}
        copies = []
        for row in rows:
            place = content[at : at + row.tensor.nbytes]
            if row.name in buffers:
                self._host_copies.start(row.tensor, place)
            else:
                copies.append((row.tensor, place))
            at += row.tensor.nbytes
        self._host_copies.finish()  # SYNC
        return layout, copies

    def _memory_of(self, file: PartFile, num_bytes: int) -> torch.Tensor:
        """The file as a tensor of bytes. Mapped once: touching pages again costs as much as copying
        into them."""
        mapped = self._mapped.get(file.path)
        if mapped is None or len(mapped) != num_bytes:
            self._mapped.pop(file.path, None)
            assert self._memory is not None
            copies = self._ranks_per_node * num_bytes  # each rank's part of a checkpoint
            file.resize(num_bytes, self._memory.memory, copies)
            mapped = torch.frombuffer(file.mapped(), dtype=torch.uint8)
            self._mapped[file.path] = mapped
        return mapped

    # The thread

    def _complete(
        self, own: PartFile, copies: list[tuple[torch.Tensor, torch.Tensor]], facts: Any, name: Name
    ) -> None:
        yield_to_training()
        try:
            self._copy(copies)
            digests = BlockDigests(BLOCK_BYTES)
            content = memoryview(self._mapped[own.path].numpy().data)
            for at in range(0, len(content), BLOCK_BYTES):
                digests.update(content[at : at + BLOCK_BYTES])
            own.complete(facts(digests.stored()))
            self._keep_neighbours(name)
        except (NoRoom, OSError) as error:
            self._fail(name, str(error))
        except Exception as error:  # noqa: BLE001 - recorded; without words it would count as complete
            self._fail(name, f"{type(error).__name__}: {error}")

    def _copy(self, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        assert self._world is not None
        try:
            with beside_training(self._world.device):
                for source, place in copies:
                    self._host_copies.start(source, place)
                self._host_copies.finish()  # SYNC
        finally:
            self._copied.set()

    def _keep_neighbours(self, name: Name) -> None:
        assert self._peers is not None
        assert self._world is not None
        assert self._memory is not None
        part = neighbour(self._world.rank, self._world.num_workers, self._ranks_per_node)
        address = self._peers.addresses[part]
        if part == self._world.rank:
            return
        if address is None:
            raise OSError(f"rank {part} cannot be reached")
        reader = PartReader(address, self._peers.token)
        try:
            found = self._facts_of(reader, name, part)
            stored = found.rank_manifest().stored
            kept = self._memory.replaceable("kept", self._needed)
            content = memoryview(self._memory_of(kept, stored.size).numpy().data)
            _read_part(reader, found, content, self._clock)
            kept.complete(found)
        finally:
            reader.close()

    def _facts_of(self, reader: PartReader, name: Name, part: int) -> PartFacts:
        deadline = self._clock.monotonic() + PART_SECONDS
        while True:
            try:
                return reader.facts(name, part)
            except PartMissing:
                if self._clock.monotonic() > deadline:
                    raise
            self._clock.sleep(LOOK_SECONDS)


def part_file(part: int) -> str:
    return f"rank-{part}.safetensors"


def _read_part(reader: PartReader, found: PartFacts, content: memoryview, clock: Clock) -> None:
    stored = found.rank_manifest().stored
    for number, digest in enumerate(stored.blocks):
        began = clock.monotonic()
        start = number * stored.block_bytes
        block = content[start : start + stored.block_bytes]
        count = reader.read_into(found.name, found.part, start, [block])
        digests = BlockDigests(stored.block_bytes)
        digests.update(block[:count])
        if digests.stored().blocks != (digest,):
            raise OSError(f"part {found.part} of step {found.name[0]} arrived damaged")
        clock.sleep((clock.monotonic() - began) * (1 / READING_SHARE - 1))


def given_memory() -> SnapshotMemory | None:
    """By the launcher: memory that outlives this process."""
    folder = os.environ.get("HEADWAY_SNAPSHOTS")
    try:
        return None if folder is None else SnapshotMemory(Path(folder))
    except OSError:
        return None
