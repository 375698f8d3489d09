"""Training state to and from a checkpoint: tensors as safetensors, all else as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from headway import __version__
from headway.clock import Clock, stamp
from headway.errors import BadInput
from headway.state.checkpoints import (
    CheckpointManifest,
    commit,
    describe_files,
    drop_old,
    find_checkpoint,
    partial_folder,
    read_manifest,
    steps_saved,
)
from headway.state.rundir import RunDirectory
from headway.train.step import Training
from headway.train.world import World

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(training: Training, directory: RunDirectory, world: World, clock: Clock) -> Path | None:
    """COLLECTIVE. The first worker writes what all hold together; the others return when it has."""
    weights: Any = get_model_state_dict(training.model, options=WHOLE)
    moments: Any = get_optimizer_state_dict(training.model, training.optimizer, options=WHOLE)
    folder = None
    if world.is_first:
        partial = partial_folder(directory, training.step)
        save_file(_stored_weights(training.model, weights), partial / MODEL_FILE)
        save_file(_flat(moments["state"]), partial / OPTIMIZER_FILE)
        manifest = CheckpointManifest(
            step=training.step,
            run=directory.name,
            created=stamp(clock.now()),
            headway=__version__,
            data_digest=training.feed.set.manifest.digest,
            scalars={
                "loss_scale": [training.scale.scale, training.scale.good_steps],
                "guard": training.guard.state(),
            },
            files=describe_files(partial),
        )
        folder = commit(directory, partial, manifest)
        drop_old(directory, training.resolved.run.checkpoint.keep.last)
    world.wait_for_all()
    return folder


def restore_newest(training: Training, directory: RunDirectory) -> int | None:
    """Brings training to the newest checkpoint; its step, or None where there is none."""
    if not steps_saved(directory):
        return None
    folder = find_checkpoint(directory)
    manifest = read_manifest(folder)
    if manifest.data_digest != training.feed.set.manifest.digest:
        raise BadInput(
            f"checkpoint {folder} was trained on other data ({manifest.data_digest[:12]}) than "
            f"{training.feed.set.folder} holds now",
            "give the run a new name to begin anew on this data",
        )
    load_weights(training.model, folder)
    optimizer_state: Any = {
        "state": _nested(load_file(folder / OPTIMIZER_FILE)),
        "param_groups": _named_groups(training.model, training.optimizer),
    }
    set_optimizer_state_dict(
        training.model,
        training.optimizer,
        optimizer_state,
        options=StateDictOptions(full_state_dict=True),
    )
    training.scale.scale, training.scale.good_steps = manifest.scalars["loss_scale"]
    training.guard.restore(manifest.scalars["guard"])
    training.step = manifest.step
    return manifest.step


def load_weights(model: torch.nn.Module, folder: Path) -> None:
    weights: Any = load_file(folder / MODEL_FILE)
    options = StateDictOptions(full_state_dict=True, strict=False)
    result = set_model_state_dict(model, weights, options=options)
    missing = [name for name in result.missing_keys if name not in _tied_names(model)]
    if missing or result.unexpected_keys:
        raise BadInput(
            f"checkpoint {folder} does not fit the model: "
            f"missing {missing[:3]}, unexpected {result.unexpected_keys[:3]}"
        )


def _tied_names(model: torch.nn.Module) -> set[str]:
    """Names under which a parameter appears again: it is stored once, under its first name."""
    first = {name for name, _ in model.named_parameters()}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return every - first


def _stored_weights(model: torch.nn.Module, weights: dict[str, Any]) -> dict[str, torch.Tensor]:
    tied = _tied_names(model)
    return {name: tensor.contiguous() for name, tensor in weights.items() if name not in tied}


def _flat(state: dict[str, dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {
        f"{parameter}/{key}": value.contiguous()
        for parameter, values in state.items()
        for key, value in values.items()
    }


def _nested(flat: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    state: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in flat.items():
        parameter, _, key = name.rpartition("/")
        state.setdefault(parameter, {})[key] = value
    return state


def _named_groups(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The optimizer's own groups with parameters by name: settings come from the run file."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        {**group, "params": [names[id(parameter)] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
