"""Export of a trained model: rebuilt from the run directory alone, written in the HF format."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from headway.data.set_format import TOKENIZER
from headway.errors import BadInput
from headway.state.checkpoints import CheckpointManifest, FoundCheckpoint, find_checkpoint
from headway.state.find_run import find_run, split_step
from headway.state.run_directory import MODEL, RunDirectory, is_in_pod
from headway.state.trusted_code import require_trusted_code
from headway.state.user_code import make_importable
from headway.train.export_files import differs_when_saved, write_weights
from headway.train.initial_weights import InitialWeights, NotByParts
from headway.train.models import BuiltModel, Network, meta_model, own_model
from headway.train.restore import load_weights
from headway.train.world import RankPlacement


def describe_model(built: BuiltModel, tokenizer: Path, directory: RunDirectory) -> None:
    """Writes the model's config and the tokenizer to the run directory, so that the model can be
    rebuilt without the data, the hub or the model it started from."""
    files = {f"{TOKENIZER}/{path.name}": path.read_bytes() for path in tokenizer.glob("*")}
    if built.is_transformers:
        config: Any = built.module.config
        files[f"{MODEL}/config.json"] = config.to_json_string(use_diff=False).encode()
    for name, content in files.items():
        directory.store.write(name, content)
    # Files of an earlier start with other settings, of which nothing was saved.
    for name in {*directory.store.names(MODEL), *directory.store.names(TOKENIZER)} - {*files}:
        directory.store.remove(name)


def load_trained(directory: RunDirectory, step: int | None) -> tuple[Any, int]:
    """The model with the weights of a checkpoint, on the CPU, and the checkpoint's step."""
    resolved = directory.read_spec()
    run = resolved.run
    assert run.model is not None
    if run.model.call is not None and is_in_pod():
        raise BadInput(
            f"model.from: run {directory.name} has a model in its own code, and a pod runs only "
            "the code of its own run",
            f"name in model.from the folder that this writes: headway export {directory.name}",
        )
    found, manifest = find_checkpoint(directory, step)
    if run.model.call is not None:
        require_trusted_code(directory, resolved, "generate")
        if resolved.packages is not None and Path(resolved.packages).is_dir():
            make_importable(Path(resolved.packages))
        make_importable(Path(resolved.folder, run.code.path) if run.code else None)
        module = own_model(run.model).module
    else:
        module = _from_config(directory, masked=run.objective.type == "masked")
    load_weights(module, directory, found, manifest)
    return module.eval(), manifest.step


def _from_config(directory: RunDirectory, masked: bool) -> Any:
    kind, config = _config(directory, masked)
    return kind.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def _config(directory: RunDirectory, masked: bool) -> tuple[Any, Any]:
    """The class of a run's model, and its config."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    with files_of(directory, MODEL) as folder:
        config = AutoConfig.from_pretrained(folder)
    return AutoModelForMaskedLM if masked else AutoModelForCausalLM, config


@contextmanager
def files_of(directory: RunDirectory, name: str) -> Iterator[Path]:
    """A small folder of the run directory, as a folder on this machine."""
    with tempfile.TemporaryDirectory() as scratch:
        for file in directory.store.names(name):
            Path(scratch, Path(file).name).write_bytes(directory.store.read(file))
        yield Path(scratch)


@dataclass(frozen=True)
class CheckpointWeights:
    """Fills a model whose tensors have memory but no values, from another run's checkpoint."""

    initial: InitialWeights
    """For the buffers that no checkpoint has."""
    directory: RunDirectory
    found: FoundCheckpoint
    manifest: CheckpointManifest

    def fill_buffers(self, model: nn.Module) -> None:
        self.initial.fill_buffers(model)

    def fill(self, model: nn.Module, placement: RankPlacement) -> None:
        """Each rank by itself."""
        load_weights(model, self.directory, self.found, self.manifest)


def trained_elsewhere(reference: str, folder: Path, seed: int) -> Network:
    """`model: {from: RUN@step}`."""
    name, step = split_step(reference)
    directory = find_run(name, folder)
    run = directory.read_spec().run
    assert run.model is not None
    whole_because = f"{run.model.call} builds it"
    module = _on_meta(directory)
    if module is not None:
        try:
            initial = InitialWeights(module, seed)
            found, manifest = find_checkpoint(directory, step)
            return Network(module, CheckpointWeights(initial, directory, found, manifest))
        except NotByParts as reason:
            whole_because = str(reason)
    return Network(load_trained(directory, step)[0], None, whole_because)


def export(directory: RunDirectory, step: int | None, into: Path | None) -> tuple[int, Path]:
    """Writes the HF format to the folder `into`, or to one named after run and step. Returns the
    step and the folder."""
    if into is not None:
        _require_empty(into)
    found, manifest = find_checkpoint(directory, step)
    if into is None:
        into = Path(f"{directory.name}-step-{found.step}")
        _require_empty(into)
    # Written beside it and renamed: a folder that exists is complete.
    partial = into.with_name(f".{into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    transformers.utils.logging.disable_progress_bar()
    module = _on_meta(directory)
    if module is None or differs_when_saved(module):
        _save_whole(directory, found.step, partial)
    else:
        module.config.use_cache = True
        module.save_pretrained(partial, state_dict={})  # all but the weights
        write_weights(module, directory.store, found, manifest, partial)
    with files_of(directory, TOKENIZER) as tokenizer:
        shutil.copytree(tokenizer, partial, dirs_exist_ok=True)
    if into.exists():
        into.rmdir()
    partial.rename(into)
    return found.step, into


def _on_meta(directory: RunDirectory) -> Any:
    """The run's model without weights; None if it is the user's own."""
    run = directory.read_spec().run
    assert run.model is not None
    if run.model.call is not None:
        return None
    return meta_model(*_config(directory, masked=run.objective.type == "masked"))


def _save_whole(directory: RunDirectory, step: int, into: Path) -> None:
    module, _ = load_trained(directory, step)
    if not hasattr(module, "save_pretrained"):
        raise BadInput(
            f"run {directory.name} has a model in its own code, which has no save_pretrained",
            f"its weights are plain safetensors in {directory.store.location('checkpoints')}",
        )
    if hasattr(module, "config"):
        module.config.use_cache = True
    module.save_pretrained(into)


def _require_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty", "name a new folder")
