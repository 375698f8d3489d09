"""Resuming from the newest good checkpoint, whatever number of workers wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from headway.clock import Clock
from headway.errors import BadInput, PeerLost
from headway.spec.run_identity import identity_digest
from headway.state.checkpoints import (
    CheckpointManifest,
    FoundCheckpoint,
    StoredTensor,
    candidates,
    counts,
)
from headway.state.run_directory import Journal, RunDirectory
from headway.state.store import Store
from headway.state.stored_file import DamagedFile, WholeFile, content_is_right
from headway.train.optim import counter_device
from headway.train.read_rows import SharedRows, WantedRows, read_rows
from headway.train.safetensors_file import TORCH_DTYPES
from headway.train.state_tensors import state_tensor_of, tied_names
from headway.train.step import Training
from headway.train.world import World

VISIBLE_SECONDS = 10
"""Time in which files written by another machine become visible here."""
LOOK_SECONDS = 0.5


def restore_newest(
    training: Training, directory: RunDirectory, world: World, journal: Journal
) -> CheckpointManifest | None:
    """COLLECTIVE. Loads the newest good checkpoint into `training` and returns it; None if nothing
    was ever saved. For each newer one an event records what is wrong with it."""
    unusable = []
    for found, manifest, is_counted in _proposed_by_leader(directory, world, journal.clock):
        problem = manifest if isinstance(manifest, str) else mismatch(manifest, training)
        if world.any(problem is not None) and problem is None:  # COLLECTIVE
            problem = "another worker cannot read it"
        if problem is None:
            assert isinstance(manifest, CheckpointManifest)
            problem = load_or_problem(training, directory.store, found, manifest, world)
            if problem is None:
                return manifest
        if world.is_leader:
            journal.note("passed_over", checkpoint=found.folder.split("/")[-1], reason=problem)
        if is_counted:
            unusable.append(f"{found.folder}: {problem}")
    if unusable:
        # Starting over would discard them: that is for a person to decide.
        raise BadInput(
            f"run {directory.name} has no usable checkpoint:\n  " + "\n  ".join(unusable),
            "fix what is listed, or start a run with another name: headway run --set name=NEW",
        )
    return None


def _proposed_by_leader(
    directory: RunDirectory, world: World, clock: Clock
) -> Iterator[tuple[FoundCheckpoint, CheckpointManifest | str, bool]]:
    """COLLECTIVE. The leader's candidates, newest first, and whether each counts. A save may become
    complete, or an old one be removed, while workers list them: each for itself could decide
    differently."""
    listed = candidates(directory) if world.is_leader else iter(())
    while True:
        found, manifest = next(listed, (None, ""))
        proposal = [0, 0, 0, 0, 0]
        if found is not None:
            is_usable = int(isinstance(manifest, CheckpointManifest))
            is_counted = int(counts(found, directory))
            proposal = [1, found.step, found.generation, is_counted, is_usable]
        # COLLECTIVE
        exists, step, generation, is_counted, may_be_used = world.control_all_reduce(proposal)
        if not exists:
            return
        if found is None:
            found = FoundCheckpoint(step, generation)
            manifest = manifest_seen_here(directory, found, clock, VISIBLE_SECONDS * may_be_used)
        yield found, manifest, bool(is_counted)


def manifest_seen_here(
    directory: RunDirectory, found: FoundCheckpoint, clock: Clock, seconds: float
) -> CheckpointManifest | str:
    """The manifest of a checkpoint that the leader has seen, or why it is unusable here. Looks
    again for so long: network file systems keep names and sizes for seconds."""
    deadline = clock.monotonic() + seconds
    while True:
        seen = candidates(directory, found.step)
        manifest = next((one for each, one in seen if each.folder == found.folder), "it is gone")
        if isinstance(manifest, CheckpointManifest) or clock.monotonic() >= deadline:
            return manifest
        clock.sleep(LOOK_SECONDS)


def mismatch(manifest: CheckpointManifest, training: Training) -> str | None:
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


def load_or_problem(
    training: Training,
    store: Store,
    found: FoundCheckpoint,
    manifest: CheckpointManifest,
    world: World,
) -> str | None:
    """COLLECTIVE. Loads the checkpoint, or returns what is wrong with its files: what one worker
    finds, all get."""
    problem = None
    whole = [name for name, file in manifest.files.items() if isinstance(file, WholeFile)]
    if whole:
        # Version 1 has one digest for each file: all of it must be read before any rows are.
        damaged = _damaged_in_share(sorted(whole), store, found, manifest, world)
        problem = _damage(damaged, manifest, world)  # COLLECTIVE
    if problem is None:
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


def _damaged_in_share(
    names: list[str],
    store: Store,
    found: FoundCheckpoint,
    manifest: CheckpointManifest,
    world: World,
) -> set[str]:
    """The damaged ones of the files that this worker reads; together all read each once."""
    folder, files = found.folder, manifest.files
    share = names[world.rank :: world.num_workers]
    return {n for n in share if not content_is_right(store, f"{folder}/{n}", files[n])}


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
        rows.exchange(world.replicas)
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
