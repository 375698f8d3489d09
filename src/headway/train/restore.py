"""Going on from the newest good checkpoint, whatever number of workers wrote it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headway.errors import BadInput
from headway.spec.changes import identity_digest
from headway.state.checkpoints import (
    CheckpointManifest,
    Found,
    StoredTensor,
    candidates,
    content_is_right,
    counts,
)
from headway.state.rundir import Journal, RunDirectory
from headway.train.pieces import piece_of, tied_names
from headway.train.step import Training
from headway.train.tensors_file import TORCH_DTYPES, fill_rows
from headway.train.world import World


def restore_newest(
    training: Training, directory: RunDirectory, world: World, journal: Journal
) -> CheckpointManifest | None:
    """COLLECTIVE. Brings training to the newest good checkpoint and returns it; None where nothing
    was ever saved. What was wrong with newer ones is noted, one event each."""
    unusable = []
    for found, manifest in candidates(directory):
        problem = manifest if isinstance(manifest, str) else _other_run(manifest, training)
        if problem is None:
            assert isinstance(manifest, CheckpointManifest)
            problem = _content_problem(found, manifest, directory, world)
        if problem is None:
            assert isinstance(manifest, CheckpointManifest)
            load_state(training, directory, found, manifest)
            return manifest
        if world.is_first:
            journal.note("passed_over", checkpoint=found.folder.split("/")[-1], reason=problem)
        if counts(found, directory):
            unusable.append(f"{found.folder}: {problem}")
    if unusable:
        # Beginning anew would let go of them: that is for a person to decide.
        raise BadInput(
            f"run {directory.name} has no checkpoint it can go on from:\n  "
            + "\n  ".join(unusable),
            "mend what is wrong, or begin a run with another name",
        )
    return None


def _other_run(manifest: CheckpointManifest, training: Training) -> str | None:
    """Why this checkpoint belongs to another run than the one that wants to go on."""
    if manifest.identity != identity_digest(training.resolved.run):
        return "it was written with other settings"
    # What a fork begins with (generation 0) may go on with other data: that is what forks are for.
    if manifest.generation > 0 and manifest.data_digest != training.feed.set.digest:
        return (
            f"it was trained on other data ({manifest.data_digest[:12]}) than "
            f"{training.feed.set.location} holds"
        )
    return None


def _content_problem(
    found: Found, manifest: CheckpointManifest, directory: RunDirectory, world: World
) -> str | None:
    """COLLECTIVE. Each worker reads its share of the files; all learn which one is wrong."""
    names = sorted(manifest.files)
    wrong = torch.zeros(len(names), dtype=torch.int64, device=world.device)
    for index in range(world.rank, len(names), world.num_workers):
        name = names[index]
        try:
            right = content_is_right(directory.store, found.folder, name, manifest.files[name])
        except OSError:
            if not directory.store.is_local:
                raise  # the store fails, which says nothing about the file: no step is given up
            right = False
        wrong[index] = int(not right)
    world.add_up(wrong)  # COLLECTIVE
    bad = [name for name, flag in zip(names, wrong.tolist(), strict=True) if flag]  # SYNC
    return f"{bad[0]} does not have the content that was written" if bad else None


def load_state(
    training: Training, directory: RunDirectory, found: Found, manifest: CheckpointManifest
) -> None:
    """Weights, optimizer and scalars of a checkpoint that was found good."""
    load_weights(training.model, directory, found, manifest)
    _load_optimizer(training, directory, found, manifest)
    training.scale.scale, training.scale.good_steps = manifest.scalars["loss_scale"]
    training.guard.restore(manifest.scalars["guard"])
    training.step, training.committed_in = manifest.step, manifest.generation


@torch.no_grad()
def load_weights(
    model: nn.Module, directory: RunDirectory, found: Found, manifest: CheckpointManifest
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
    training: Training, directory: RunDirectory, found: Found, manifest: CheckpointManifest
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
                    stored.shape, dtype=TORCH_DTYPES[stored.dtype], device=parameter.device
                )
            )
            _fill(f"optimizer/{name}/{key}", tensor, stored, directory, found)
            training.optimizer.state[parameter][key] = tensor


def _fill(
    name: str, tensor: Any, stored: StoredTensor, directory: RunDirectory, found: Found
) -> None:
    piece = piece_of(name, tensor)
    if tuple(stored.shape) != piece.shape:
        raise BadInput(
            f"checkpoint {found.folder}: {name} has shape {tuple(stored.shape)}, the model wants "
            f"{piece.shape}"
        )
    fill_rows(piece.local, piece.start, stored, directory.store, found.folder)
