"""Configs of the models that a run file names, from files of this machine; and why a model cannot
be planned if none of them has its shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.epoch_samples import epoch_samples
from headway.cli.preflight import parameters_of
from headway.errors import BadInput, HeadwayError, SpecError
from headway.plan.model_size import COUNTED
from headway.plan.workload import Workload, workload_of
from headway.preflight.hub_cache import in_hub_cache, published_config
from headway.preflight.vocabulary import vocabulary_size

if TYPE_CHECKING:
    from headway.spec.load import Loaded
    from headway.spec.run_file import ModelConfig


@dataclass(frozen=True)
class UnknownShape:
    """A run of which only devices, hours and prices can be planned."""

    problem: str
    hint: str


def read_workload(loaded: Loaded, samples: int | None = None) -> Workload | UnknownShape:
    """Raises if the run file lacks what every run needs. `samples`: of an epoch, if they are known;
    else they are looked up where `train_for` is in epochs."""
    run = loaded.run
    if run.command is not None:
        return UnknownShape(
            f"a script of your own ({' '.join(run.command[:3])}): only it knows its model",
            "headway run starts it; what it takes in a few minutes is what it will take in a month",
        )
    for key in ("model", "batch"):
        if getattr(run, key) is None:
            raise SpecError(f"the run file has no {key}", str(loaded.located.mark(())))
    assert run.model is not None
    saved = _saved_config(run.model, loaded.folder)
    teacher = run.objective.teacher
    taught = _saved_config(teacher, loaded.folder) if teacher is not None else None
    vocabulary = vocabulary_size(loaded)
    if run.train_for.unit == "epochs" and samples is None:
        samples = epoch_samples(loaded)
    found = workload_of(run, vocabulary, saved, taught, samples, loaded.begun)
    if found is None:
        return _why(run.model, saved)
    if teacher is not None and found.teacher is None:
        problem = _why(teacher, taught)
        return UnknownShape(f"objective.teacher: {problem.problem}", problem.hint)
    return found


def known_workload(loaded: Loaded) -> Workload | None:
    """What `run` and `check` decide by, the same as `plan`. None: the shape is not known."""
    if loaded.run.model is None or loaded.run.batch is None:
        return None  # said elsewhere
    with suppress(BadInput):  # so is a config that no model can be built from
        found = read_workload(loaded)
        return found if isinstance(found, Workload) else None
    return None


def known_parameters(loaded: Loaded, workload: Workload | None) -> int | None:
    """Number of the model's parameters, if its shape is known. Raises if its config is not a valid
    size. `workload`: that of `known_workload`, which reads files."""
    if workload is not None:
        return workload.model.size.parameters
    return parameters_of(loaded.run, vocabulary_size(loaded))  # a teacher alone may be unknown


def _why(model: ModelConfig, saved: Mapping[str, Any] | None) -> UnknownShape:
    if model.call is not None:
        return UnknownShape(
            f"model.call: {model.call} is a function of yours: only it knows its model",
            "for an estimate, plan a model of about its shape: --set 'model={type: llama, config: "
            "{hidden_size: 2048, num_hidden_layers: 16}}'",
        )
    if model.from_ is not None and saved is None:
        return UnknownShape(
            f"model.from: the shape of {model.from_} is not on this machine",
            f"to fetch its config alone: hf download {model.from_} config.json",
        )
    type = model.type or (saved or {}).get("model_type")
    if type not in COUNTED:
        return UnknownShape(
            f"model.type: Headway does not count models of type {type}",
            f"it counts {', '.join(COUNTED)}; for an estimate, plan one of about its shape",
        )
    if "vocab_size" not in {**(saved or {}), **model.config}:
        return UnknownShape(
            "model.config: its vocab_size is that of the tokenizer, which is not on this machine",
            "to give it: --set model.config.vocab_size=32000",
        )
    return UnknownShape(
        f"model.config: it has a part that Headway does not count in models of type {type}",
        "for an estimate, leave that part out: --set model.config.KEY=VALUE",
    )


def _saved_config(model: ModelConfig, folder: Path) -> dict[str, Any] | None:
    """Of `model.from`: a folder, a run of this folder, or a model in the cache of the hub."""
    if model.from_ is None:
        return None
    with suppress(OSError, ValueError):
        return _mapping((folder / model.from_ / "config.json").read_text("utf-8"))
    if "@" in model.from_:
        return _config_of_run(model.from_, folder)
    with suppress(OSError, ValueError):
        return _mapping(in_hub_cache(model.from_, model.revision, "config.json").read_text())
    return published_config(model.from_)


def _config_of_run(reference: str, folder: Path) -> dict[str, Any] | None:
    from headway.state.find_run import find_run, split_step
    from headway.state.run_directory import MODEL

    with suppress(HeadwayError, OSError, ValueError):
        directory = find_run(split_step(reference)[0], folder)
        return _mapping(directory.store.read(f"{MODEL}/config.json").decode())
    return None


def _mapping(text: str) -> dict[str, Any] | None:
    found = json.loads(text)
    return found if isinstance(found, dict) else None
