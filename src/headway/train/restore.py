"""Resuming from the newest good checkpoint, whatever number of workers wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from headway.errors import BadInput, PeerLost
from headway.spec.run_identity import identity_digest
from headway.state.checkpoints import (
    CheckpointManifest,
    FoundCheckpoint,
    StoredTensor,
    candidates,
    content_is_right,
    counts,
)
from headway.state.run_directory import Journal, RunDirectory
from headway.train.optim import counter_device
from headway.train.safetensors_file import TORCH_DTYPES, fill_rows
from headway.train.state_tensors import state_tensor_of, tied_names
from headway.train.step import Training
from headway.train.world import World


@contextmanager
def outage_restarts(directory: RunDirectory, all_restart: bool) -> Iterator[None]:
    """Where all workers restart together, a remote store that fails for a moment is a loss like any
    other: the launcher counts it, and the next start retries."""
    try:
        yield
    except OSError as error:
        is_permanent = isinstance(error, PermissionError | FileNotFoundError)
        if not all_restart or directory.store.is_local or is_permanent:
            raise
        raise PeerLost(f"the store cannot be reached: {error}") from error


def restore_newest(
    training: Training, directory: RunDirectory, world: World, journal: Journal
) -> CheckpointManifest | None:
    """COLLECTIVE. Loads the newest good checkpoint into `training` and returns it; None if nothing
    was ever saved. For each newer one an event records what is wrong with it."""
    unusable = []
    for found, manifest, is_counted in _proposed_by_leader(directory, world):
        problem = manifest if isinstance(manifest, str) else _mismatch(manifest, training)
        if world.any(problem is not None) and problem is None:  # COLLECTIVE
            problem = "another worker cannot read it"
        if problem is None:
            assert isinstance(manifest, CheckpointManifest)
            problem = _content_problem(found, manifest, directory, world)
        if problem is None:
            assert isinstance(manifest, CheckpointManifest)
            load_state(training, directory, found, manifest)
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
    directory: RunDirectory, world: World
) -> Iterator[tuple[FoundCheckpoint, CheckpointManifest | str, bool]]:
    """COLLECTIVE. The leader's candidates, newest first, and whether each counts. A save may become
    complete, or an old one be removed, while workers list them: each for itself could decide
    differently."""
    listed = candidates(directory) if world.is_leader else iter(())
    while True:
        found, manifest = next(listed, (None, ""))
        proposal = [0, 0, 0, 0]
        if found is not None:
            proposal = [1, found.step, found.generation, int(counts(found, directory))]
        exists, step, generation, is_counted = world.control_all_reduce(proposal)  # COLLECTIVE
        if not exists:
            return
        if found is None:
            found = FoundCheckpoint(step, generation)
            same = (one for seen, one in candidates(directory, step) if seen.folder == found.folder)
            manifest = next(same, "it is gone")
        yield found, manifest, bool(is_counted)


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


def _content_problem(
    found: FoundCheckpoint, manifest: CheckpointManifest, directory: RunDirectory, world: World
) -> str | None:
    """COLLECTIVE. Each worker verifies its share of the files; all get the result."""
    names = sorted(manifest.files)
    wrong = torch.zeros(len(names), dtype=torch.int64, device=world.device)
    for index in range(world.rank, len(names), world.num_workers):
        name = names[index]
        try:
            right = content_is_right(directory.store, found.folder, name, manifest.files[name])
        except OSError:
            if not directory.store.is_local:
                raise  # the store failed, which says nothing about the file
            right = False
        wrong[index] = int(not right)
    world.all_reduce(wrong)  # COLLECTIVE
    bad = [name for name, flag in zip(names, wrong.tolist(), strict=True) if flag]  # SYNC
    return f"{bad[0]} is damaged: wrong digest" if bad else None


def load_state(
    training: Training,
    directory: RunDirectory,
    found: FoundCheckpoint,
    manifest: CheckpointManifest,
) -> None:
    """Loads weights, optimizer and scalars of a verified checkpoint."""
    load_weights(training.model, directory, found, manifest)
    _load_optimizer(training, directory, found, manifest)
    training.scale.scale, training.scale.good_steps = manifest.scalars["loss_scale"]
    training.guard.restore(manifest.scalars["guard"])
    training.step, training.committed_in = manifest.step, manifest.generation


@torch.no_grad()
def load_weights(
    model: nn.Module, directory: RunDirectory, found: FoundCheckpoint, manifest: CheckpointManifest
) -> None:
    tied = tied_names(model)
    wanted = {f"model/{n}": t for n, t in model.state_dict().items() if n not in tied}
    stored = {name for name in manifest.tensors if name.startswith("model/")}
    if set(wanted) != stored:
        odd = sorted(set(wanted) ^ stored)
        raise BadInput(
            f"checkpoint {found.folder} does not fit the model: they disagree on "
            f"{', '.join(odd[:3])}{' and more' if len(odd) > 3 else ''}"
        )
    for name, tensor in wanted.items():
        _fill(name, tensor, manifest.tensors[name], directory, found)


@torch.no_grad()
def _load_optimizer(
    training: Training,
    directory: RunDirectory,
    found: FoundCheckpoint,
    manifest: CheckpointManifest,
) -> None:
    kept: dict[str, dict[str, StoredTensor]] = {}
    for name, stored in manifest.tensors.items():
        if name.startswith("optimizer/"):
            of, _, key = name.removeprefix("optimizer/").rpartition("/")
            kept.setdefault(of, {})[key] = stored
    for name, parameter in training.model.named_parameters():
        for key, stored in kept.get(name, {}).items():
            shaped_alike = tuple(stored.shape) == tuple(parameter.shape)
            tensor: Any = (
                torch.zeros_like(parameter)
                if shaped_alike
                else torch.zeros(
                    stored.shape,
                    dtype=TORCH_DTYPES[stored.dtype],
                    device=counter_device(training.optimizer, parameter),
                )
            )
            _fill(f"optimizer/{name}/{key}", tensor, stored, directory, found)
            training.optimizer.state[parameter][key] = tensor


def _fill(
    name: str, tensor: Any, stored: StoredTensor, directory: RunDirectory, found: FoundCheckpoint
) -> None:
    held = state_tensor_of(name, tensor)
    if tuple(stored.shape) != held.shape:
        raise BadInput(
            f"checkpoint {found.folder}: {name} has shape {tuple(stored.shape)}, the model wants "
            f"{held.shape}"
        )
    fill_rows(held.local, held.start, stored, directory.store, found.folder)
