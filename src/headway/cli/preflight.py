"""What `run` and `check` refuse or warn of, from the run file alone and before any preparation."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

from headway.cli.output import hint, say, warn
from headway.errors import BadInput, needs_train
from headway.spec.tested_versions import TESTED, install_hint

if TYPE_CHECKING:
    from headway.spec.load import Loaded
    from headway.spec.resolve import Resolved
    from headway.spec.run_file import RunFile


def warn_of_run_file(loaded: Loaded) -> None:
    _warn_of_long_warmup(loaded)


def say_auto_interval(resolved: Resolved) -> None:
    if resolved.checkpoint_every is not None:
        say(f"checkpoints every {resolved.checkpoint_every} (auto: headway check says why)")


def warn_of_budget(loaded: Loaded) -> None:
    """On this machine nobody pays by the hour, and nothing keeps a budget."""
    from headway.spec.located_yaml import PRESET

    for name in sorted(loaded.run.budget.model_fields_set):
        mark = loaded.located.mark(("budget", name))
        if getattr(loaded.run.budget, name) is not None and not mark.file.endswith(PRESET):
            warn(f"{mark}: budget.{name} is kept on a target; here the run does not stop at it")


def require_trainable_here(loaded: Loaded) -> None:
    """Raises if this machine lacks packages that the run needs. What a script imports is known to
    itself alone."""
    if loaded.run.command is not None:
        return
    if "wandb" in loaded.run.track and importlib.util.find_spec("wandb") is None:
        raise BadInput("track: wandb needs the wandb extra", "pip install 'headway[wandb]'")
    require_train_extra("headway run")


def require_train_extra(command: str) -> None:
    """Raises if packages of the extra `train` are missing, or too old."""
    for module in ("torch", "transformers", "tokenizers", "numpy", "safetensors"):
        if importlib.util.find_spec(module) is None:
            raise needs_train(command, ImportError(module, name=module))
    require_tested_versions(metadata.version)


def require_tested_versions(installed: Callable[[str], str]) -> None:
    """Raises for a library that is older than all versions that are tested, warns of a newer one.
    `installed` returns the version of a package."""
    from headway.kube.bootstrap import satisfies

    for name, asked in TESTED.items():
        have, (lowest, _) = installed(name), asked.split(",")
        if not satisfies(have, lowest):
            problem = f"{name} {have} is too old: Headway needs {name}{lowest}"
            raise BadInput(problem, install_hint(name))
        if not satisfies(have, asked):
            warn(f"{name} {have} is newer than those that Headway is tested with: {name}{asked}")
            hint(install_hint(name))


def steps_of(run: RunFile) -> int | None:
    """Number of steps. None if it depends on the data, as for epochs."""
    from headway.plan.train_length import num_steps

    if run.train_for.unit == "epochs" or run.batch is None:
        return None
    length = run.data.sequence_length
    batch = run.batch.global_.sequences(length)
    return num_steps(run.train_for.unit, run.train_for.amount, batch, length, None)


def parameters_of(run: RunFile, vocabulary: int | None = None) -> int | None:
    """Number of parameters. None if the run file and `vocabulary`, the tokenizer's size if it is
    known, do not determine it. Raises if the model's config is not a valid size."""
    from headway.plan.model_size import model_size, padded_vocabulary

    if run.model is None or run.model.type is None:
        return None
    config = run.model.config
    if "vocab_size" not in config:
        if vocabulary is None:
            return None
        config = {**config, "vocab_size": padded_vocabulary(vocabulary)}
    size = model_size(run.model.type, config)
    return size.parameters if size else None


def _warn_of_long_warmup(loaded: Loaded) -> None:
    """The warm-up of a preset may be longer than a short trial. That is allowed, with a warning."""
    total, warmup = steps_of(loaded.run), loaded.run.schedule.warmup
    if total is not None and warmup.unit == "steps" and warmup.amount >= total:
        warn(
            f"{loaded.located.mark(('schedule', 'warmup'))}: schedule.warmup is {warmup.amount} "
            f"steps and the whole run has {total}: the learning rate never reaches its peak"
        )
        hint("--set schedule.warmup=5%")
