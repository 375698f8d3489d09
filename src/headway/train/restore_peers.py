"""Resuming from a snapshot in the memory of the nodes, whatever number of workers made it: their
parts are read like the files of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from headway.clock import stamp
from headway.errors import BadInput
from headway.state.chain import Chain, Link, fenced
from headway.state.checkpoints import (
    CheckpointManifest,
    FoundCheckpoint,
    candidates,
)
from headway.state.run_directory import Journal, RunDirectory
from headway.train.peer_snapshots import PeerSnapshots, part_file
from headway.train.restore import load_or_problem, mismatch
from headway.train.safetensors_file import merged_tensors
from headway.train.snapshot_choice import WholeSnapshot, whole_snapshots
from headway.train.snapshot_meeting import PeerAddresses
from headway.train.snapshot_memory import PartFacts
from headway.train.snapshot_server import PartReader, PartStore
from headway.train.step import Training
from headway.train.world import World


def restore_from_peers(
    training: Training,
    peers: PeerSnapshots,
    directory: RunDirectory,
    chain: Chain,
    world: World,
    journal: Journal,
) -> PartFacts | None:
    """COLLECTIVE. Loads the newest snapshot of which every part has a holder, if it is newer than
    the newest checkpoint. Returns what its leader knew; None: nothing was restored. For each one
    that cannot be loaded an event records why."""
    addresses, held = peers.meet(world)  # COLLECTIVE
    for snapshot in _chosen_by_leader(whole_snapshots(held), directory, chain, world):
        found = _facts_or_problem(snapshot, peers, addresses)
        problem = found if isinstance(found, str) else None
        if world.any(problem is not None):  # COLLECTIVE
            problem = problem or "another worker cannot read it"
        else:
            assert not isinstance(found, str)
            problem = _load(training, peers, addresses, snapshot, found, world)
            if problem is None:
                peers.resumed_from(snapshot.name)
                return found[0]
        training.optimizer.state.clear()
        if world.is_leader:
            journal.note(
                "passed_over", checkpoint=f"peers of step {snapshot.name[0]}", reason=problem
            )
    return None


def _chosen_by_leader(
    whole: list[WholeSnapshot], directory: RunDirectory, chain: Chain, world: World
) -> Iterator[WholeSnapshot]:
    """COLLECTIVE. Those that count, newest first. All know of the same ones; which are fenced by a
    later generation, or older than a checkpoint, only the leader asks the store."""
    numbers: Iterator[int] = iter(())
    if world.is_leader and whole:
        numbers = _numbers_that_count(whole, directory, chain.own(world.generation))
    while True:
        number = next(numbers, None)
        (chosen,) = world.control_all_reduce([0 if number is None else number + 1])  # COLLECTIVE
        if not chosen:
            return
        yield whole[chosen - 1]


def _numbers_that_count(
    whole: list[WholeSnapshot], directory: RunDirectory, link: Link
) -> Iterator[int]:
    good = (f.step for f, one in candidates(directory, link) if isinstance(one, CheckpointManifest))
    newest = next(good, -1)
    for number, snapshot in enumerate(whole):
        if snapshot.name[0] > newest and not fenced(snapshot.name, link.beginnings):
            yield number


def _facts_or_problem(
    snapshot: WholeSnapshot, peers: PeerSnapshots, addresses: PeerAddresses
) -> list[PartFacts] | str:
    """Of all parts."""
    found = []
    for part, holder in enumerate(snapshot.holders):
        file = peers.find(snapshot.name, part)
        if file is not None and file.facts is not None:
            found.append(file.facts)
            continue
        address = addresses.addresses[holder]
        assert address is not None, "it holds nothing that could be chosen"
        reader = PartReader(address, addresses.token)
        try:
            found.append(reader.facts(snapshot.name, part))
        except OSError as error:
            return f"part {part} cannot be read from rank {holder}: {error}"
        finally:
            reader.close()
    return found


def _load(
    training: Training,
    peers: PeerSnapshots,
    addresses: PeerAddresses,
    snapshot: WholeSnapshot,
    found: list[PartFacts],
    world: World,
) -> str | None:
    """COLLECTIVE. Loads the snapshot, or returns what is wrong with it."""
    holders = tuple(addresses.addresses[rank] or ("", 0) for rank in snapshot.holders)
    store = PartStore(snapshot.name, peers.find, holders, addresses.token)
    manifest = _manifest(found)
    problem = mismatch(manifest, training)
    if problem is not None:
        return problem  # the same on all
    found_one = FoundCheckpoint(*snapshot.name)
    problem = load_or_problem(training, store, found_one, manifest, world)  # COLLECTIVE
    if problem is not None:
        peers.damaged.add(snapshot.name)
    return problem


def _manifest(found: list[PartFacts]) -> CheckpointManifest:
    parts = [one.rank_manifest() for one in found]
    if [part.file for part in parts] != [part_file(number) for number in range(len(parts))]:
        raise BadInput("the parts of a snapshot are not those of its ranks")
    return CheckpointManifest(
        **found[0].facts,
        created=stamp(found[0].saved_at or 0.0),
        tensors=merged_tensors(parts),
        files={part.file: part.stored for part in parts},
    )
