"""Resuming from the newest good checkpoint, whatever number of workers wrote it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from headway.clock import Clock
from headway.errors import BadInput, PeerLost
from headway.spec.run_identity import identity_digest
from headway.state.chain import FOLDER as CHAIN
from headway.state.chain import Chain, KeptCheckpoint, Link, machine
from headway.state.checkpoints import (
    CheckpointManifest,
    FoundCheckpoint,
    StoredTensor,
    Unusable,
    folder_of,
    found_folders,
    look_at,
    newest_first,
    read_manifest,
)
from headway.state.run_directory import Journal, RunDirectory
from headway.state.store import Store
from headway.state.stored_file import DamagedFile
from headway.train.optim import counter_device
from headway.train.outages import StoreLost
from headway.train.read_rows import SharedRows, WantedRows, read_rows
from headway.train.safetensors_file import TORCH_DTYPES
from headway.train.state_tensors import state_tensor_of, tied_names
from headway.train.step import Training
from headway.train.world import World

VISIBLE_SECONDS = 90.0
"""Time in which files written by another machine become visible here: network file systems keep
names and sizes of a folder for up to a minute."""
LOOK_SECONDS = 0.5

Seen = CheckpointManifest | Unusable


def restore_newest(
    training: Training, directory: RunDirectory, chain: Chain, world: World, journal: Journal
) -> CheckpointManifest | None:
    """COLLECTIVE. Loads the newest good checkpoint into `training` and returns it; None if nothing
    was ever saved. For each newer one an event records what is wrong with it."""
    unusable = []
    for found, seen in _proposed_by_leader(directory, chain, world, journal.clock):
        problem = seen.words if isinstance(seen, Unusable) else _mismatch(seen, training)
        if world.any(problem is not None) and problem is None:  # COLLECTIVE
            problem = "another worker cannot use it"
        if problem is None:
            assert isinstance(seen, CheckpointManifest)
            problem = _load_or_problem(training, directory.store, found, seen, world)
            if problem is None:
                return seen
        if world.is_leader:
            journal.note("passed_over", checkpoint=found.folder.split("/")[-1], reason=problem)
        unusable.append(f"{found.folder}: {problem}")
    if unusable:
        # Starting over would discard them: that is for a person to decide.
        raise BadInput(
            f"run {directory.name} has no usable checkpoint:\n  " + "\n  ".join(unusable),
            "fix what is listed, or start a run with another name: headway run --set name=NEW",
        )
    return None


def _proposed_by_leader(
    directory: RunDirectory, chain: Chain, world: World, clock: Clock
) -> Iterator[tuple[FoundCheckpoint, Seen]]:
    """COLLECTIVE. The checkpoints that count, newest first, as the leader has read them in the
    chain: workers that looked for themselves could decide differently."""
    kept: list[KeptCheckpoint] = []
    if world.is_leader:
        link = chain.own(world.generation)
        kept = newest_first(link.keeps)
        _require_chain(directory, link)
    for number in itertools.count():
        seen: Seen | None = None
        proposal = [0, 0, 0, 0]
        if number < len(kept):
            seen = _seen_by_leader(directory, kept, number, clock)
            proposal = [1, *kept[number].name, int(isinstance(seen, CheckpointManifest))]
        # COLLECTIVE
        exists, step, generation, is_usable = world.control_all_reduce(proposal)
        if not exists:
            return
        found = FoundCheckpoint(step, generation)
        if seen is None:
            seen = Unusable("the leader cannot use it")
            if is_usable:
                seen = _seen_as_by_leader(directory, found, clock)
        yield found, seen


def _seen_by_leader(
    directory: RunDirectory, kept: list[KeptCheckpoint], number: int, clock: Clock
) -> Seen:
    """What was recorded as saved must be found: without it, training would silently go back."""
    one, store = kept[number], directory.store
    seen = _awaited(lambda: look_at(directory, one), clock, _visible_seconds(directory, one))
    if not isinstance(seen, Unusable) or not seen.is_missing:
        return seen
    others = [
        other.step
        for other in kept[number + 1 :]
        if isinstance(look_at(directory, other), CheckpointManifest)
    ]
    new = directory.free_name()
    anew = (
        f"to go on from step {others[0]} as another run: headway fork "
        f"{directory.as_typed}@{others[0]} {new}"
        if others
        else f"to start another run: headway run --set name={new}"
    )
    raise BadInput(
        f"run {directory.name}: step {one.step} was saved, but of "
        f"{store.location(folder_of(*one.name))} {seen.words}",
        f"mount or restore that folder, and run the same command; {anew}",
    )


def _visible_seconds(directory: RunDirectory, kept: KeptCheckpoint) -> float:
    """An object store shows at once what it has."""
    return VISIBLE_SECONDS if directory.store.is_local and kept.by != machine() else 0.0


def _seen_as_by_leader(
    directory: RunDirectory, found: FoundCheckpoint, clock: Clock
) -> CheckpointManifest:
    """The leader has seen it: whoever does not for so long is no use here, and nobody goes back to
    an older one for it."""
    seen = _awaited(
        lambda: read_manifest(directory, found.step, found.generation), clock, VISIBLE_SECONDS
    )
    if isinstance(seen, Unusable):
        raise StoreLost(
            f"the leader sees {directory.store.location(found.folder)}; here {seen.words}, "
            f"{VISIBLE_SECONDS:.0f} s later"
        )
    return seen


def _awaited(look: Callable[[], Seen], clock: Clock, seconds: float) -> Seen:
    deadline = clock.monotonic() + seconds
    while True:
        seen = look()
        if isinstance(seen, CheckpointManifest) or clock.monotonic() >= deadline:
            return seen
        clock.sleep(LOOK_SECONDS)


def _require_chain(directory: RunDirectory, link: Link) -> None:
    """A chain that knows of no generation before this one, where there are checkpoints of some: it
    is not the run's."""
    if link.begun or link.keeps:
        return
    saved = [one for one in found_folders(directory) if one.has_manifest]
    if saved:
        raise BadInput(
            f"run {directory.name}: {directory.store.location(CHAIN)} does not name "
            f"{saved[0].folder}: its files are gone, or another folder is mounted there",
            "mount or restore it, or start a run with another name: headway run --set name=NEW",
        )


def _mismatch(manifest: CheckpointManifest, training: Training) -> str | None:
    """Why the run cannot resume from this checkpoint: it is of other settings or data."""
    if manifest.identity != identity_digest(training.resolved.run):
        return "it was written with different settings"
    # A fork's first checkpoint (generation 0) may continue with other data: forks are for that.
    if manifest.generation > 0 and manifest.data_digest != training.feed.set.digest:
        return (
            f"it was trained on different data ({manifest.data_digest[:12]}) than "
            f"{training.feed.set.location} has"
        )
    return None


def _load_or_problem(
    training: Training,
    store: Store,
    found: FoundCheckpoint,
    manifest: CheckpointManifest,
    world: World,
) -> str | None:
    """COLLECTIVE. Loads the checkpoint, or returns what is wrong with its files: what one worker
    finds, all get."""
    rows = _wanted_rows(training, store, found, manifest, world)
    problem = _damage(_damaged_in_rows(rows), manifest, world)  # COLLECTIVE
    if problem is None:
        _exchange(rows, world)  # COLLECTIVE
        training.scale.scale, training.scale.good_steps = manifest.scalars["loss_scale"]
        training.guard.restore(manifest.scalars["guard"])
        training.step, training.committed_in = manifest.step, manifest.generation
    return problem


def _damage(damaged: set[str], manifest: CheckpointManifest, world: World) -> str | None:
    """COLLECTIVE. The first file that is damaged for any worker, as a message."""
    if not world.any(bool(damaged)):  # COLLECTIVE
        return None
    # One by one: there may be more files than values fit into one exchange.
    bad = [name for name in sorted(manifest.files) if world.any(name in damaged)]  # COLLECTIVE
    return f"{bad[0]} is damaged: wrong digest"


def _wanted_rows(
    training: Training,
    store: Store,
    found: FoundCheckpoint,
    manifest: CheckpointManifest,
    world: World,
) -> SharedRows:
    """Weights and optimizer. Workers that hold the same rows share the reading."""
    wanted = [
        *_wanted_weights(training.model, found, manifest),
        *_wanted_moments(training, found, manifest),
    ]
    group = world.replicas
    rank, num_readers = (0, 1) if group is None else (group.rank, group.size)
    return SharedRows(wanted, manifest.files, store, found.folder, rank, num_readers)


def _damaged_in_rows(rows: SharedRows) -> set[str]:
    """Reads this worker's share. The file of it that is damaged; then the content of the tensors is
    a mixture, which the next checkpoint to be tried replaces completely."""
    try:
        rows.read_share()
    except DamagedFile as error:
        return {error.name}
    return set()


def _exchange(rows: SharedRows, world: World) -> None:
    """COLLECTIVE. All have read their shares: nobody gives away what it has not verified."""
    if world.replicas is None:
        return
    lost = None
    try:
        rows.exchange(world.replicas, world.device)
    except PeerLost as error:
        lost = error
    world.raise_if_any_lost(lost)


def load_weights(
    model: nn.Module, directory: RunDirectory, found: FoundCheckpoint, manifest: CheckpointManifest
) -> None:
    wanted = list(_wanted_weights(model, found, manifest))
    read_rows(wanted, manifest.files, directory.store, found.folder)


def _wanted_weights(
    model: nn.Module, found: FoundCheckpoint, manifest: CheckpointManifest
) -> Iterator[WantedRows]:
    tied = tied_names(model)
    tensors = {f"model/{n}": t for n, t in model.state_dict().items() if n not in tied}
    stored = {name for name in manifest.tensors if name.startswith("model/")}
    if set(tensors) != stored:
        odd = sorted(set(tensors) ^ stored)
        raise BadInput(
            f"checkpoint {found.folder} does not fit the model: they disagree on "
            f"{', '.join(odd[:3])}{' and more' if len(odd) > 3 else ''}"
        )
    for name, tensor in tensors.items():
        yield _wanted(name, tensor, manifest.tensors[name], found)


def _wanted_moments(
    training: Training, found: FoundCheckpoint, manifest: CheckpointManifest
) -> Iterator[WantedRows]:
    """Of tensors that replace all of the optimizer's state."""
    training.optimizer.state.clear()
    kept: dict[str, dict[str, StoredTensor]] = {}
    for name, stored in manifest.tensors.items():
        if name.startswith("optimizer/"):
            of, _, key = name.removeprefix("optimizer/").rpartition("/")
            kept.setdefault(of, {})[key] = stored
    for name, parameter in training.model.named_parameters():
        for key, stored in kept.get(name, {}).items():
            shaped_alike = tuple(stored.shape) == tuple(parameter.shape)
            tensor: Any = (
                torch.empty_like(parameter, requires_grad=False)
                if shaped_alike
                else torch.empty(
                    stored.shape,
                    dtype=TORCH_DTYPES[stored.dtype],
                    device=counter_device(training.optimizer, parameter),
                )
            )
            training.optimizer.state[parameter][key] = tensor
            yield _wanted(f"optimizer/{name}/{key}", tensor, stored, found)


def _wanted(name: str, tensor: Any, stored: StoredTensor, found: FoundCheckpoint) -> WantedRows:
    held = state_tensor_of(name, tensor)
    if tuple(stored.shape) != held.shape:
        raise BadInput(
            f"checkpoint {found.folder}: {name} has shape {tuple(stored.shape)}, the model wants "
            f"{held.shape}"
        )
    return WantedRows(held.local, held.start, stored)
