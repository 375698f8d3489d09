"""headway check: is the run file right, and what does it come to?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import JsonOption, RunFileArgument, SetOption
from headway.cli.output import hint, print_json, short_count, warn

if TYPE_CHECKING:
    from headway.spec.load import Loaded
    from headway.spec.run import RunFile


def check(
    run_file: RunFileArgument = None,
    set_: SetOption = None,
    code: Annotated[
        bool,
        typer.Option("--code", help="Also run one tiny batch through your own functions, on CPU."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Check a run file and say what it comes to. Writes nothing and needs no torch."""
    from headway.spec.load import load_run, load_targets
    from headway.spec.resolve import require_complete, run_directory

    loaded = load_run(run_file, set_)
    if not loaded.is_preset:
        require_complete(loaded)
        run_directory(loaded)
    load_targets(loaded.folder)
    warn_of_later_keys(loaded)
    warn_of_long_warmup(loaded)
    facts = describe(loaded.run)
    if code:
        facts["code"] = _check_code(loaded)
    if json_:
        print_json(facts)
        return
    for key, value in facts.items():
        print(f"{key.replace('_', ' '):<18}{value}")


def warn_of_later_keys(loaded: Loaded) -> None:
    """Keys that are written down but that nothing acts on yet."""
    from headway.spec.load import PRESET
    from headway.spec.names import later_keys
    from headway.spec.run import RunFile

    for key in later_keys(RunFile):
        path = tuple(key.split("."))
        if path in loaded.located.keys:
            mark = loaded.located.mark(path)
            if not mark.file.endswith(PRESET):
                warn(f"{mark}: {key} is accepted, but this version does not act on it yet")


def warn_of_long_warmup(loaded: Loaded) -> None:
    """A preset's warm-up in steps outlasts a short trial. Allowed, as trials are; but not unsaid:
    the learning rate never reaches its peak."""
    total, warmup = steps_of(loaded.run), loaded.run.schedule.warmup
    if total is not None and warmup.unit == "steps" and warmup.amount >= total:
        warn(
            f"{loaded.located.mark(('schedule', 'warmup'))}: schedule.warmup is {warmup.amount} "
            f"steps and the whole run has {total}: the learning rate never reaches its peak"
        )
        hint("--set schedule.warmup=5%")


def steps_of(run: RunFile) -> int | None:
    """Length of the run where the run file alone tells it: epochs need the data."""
    from headway.plan.length import num_steps

    if run.train_for.unit == "epochs" or run.batch is None:
        return None
    length = run.data.sequence_length
    batch = run.batch.global_.sequences(length)
    return num_steps(run.train_for.unit, run.train_for.amount, batch, length, None)


def parameters_of(run: RunFile) -> int | None:
    """Size of the model where the run file alone tells it. Raises if it is no size at all."""
    from headway.plan.size import model_size

    if run.model is None or run.model.type is None:
        return None
    size = model_size(run.model.type, run.model.config)
    return size.parameters if size and "vocab_size" in run.model.config else None


def describe(run: RunFile) -> dict[str, Any]:
    from headway.spec.resolve import choose_micro

    facts: dict[str, Any] = {}
    parameters = parameters_of(run)
    if run.model is not None:
        origin = run.model.from_ or run.model.type or run.model.call
        size = f", {short_count(parameters)} parameters" if parameters else ""
        facts["model"] = f"{origin}{size}"
    facts["objective"] = run.objective.type or run.objective.call
    if run.batch is not None:
        length = run.data.sequence_length
        batch = run.batch.global_.sequences(length)
        micro = choose_micro(run, batch)
        num_slices = -(-batch // micro)
        facts["batch"] = (
            f"{batch} sequences of {length} tokens = {short_count(batch * length)} tokens a step, "
            f"in {num_slices} {'slice' if num_slices == 1 else 'slices'} of {micro}"
        )
    facts["train_for"] = str(run.train_for)
    if run.train_for.unit == "tokens" and run.batch is not None:
        facts["train_for"] += f" = {steps_of(run)} steps"
    facts["optimizer"] = f"{run.optimizer.type}, lr {run.optimizer.lr:g}, {run.schedule.type}"
    facts["precision"] = run.precision
    return facts


def _check_code(loaded: Loaded) -> str:
    from headway.errors import needs_train

    try:
        from headway.train.check_code import check_code
    except ImportError as error:
        raise needs_train("headway check --code", error) from None
    return "; ".join(filter(None, [check_code(loaded.run, loaded.folder), *_transforms(loaded)]))


def _transforms(loaded: Loaded) -> Iterator[str]:
    from headway.cli.sets import job_of
    from headway.data.making.try_out import try_transform

    data = loaded.run.data
    sets = [*filter(None, [data.train]), *data.validation.values()]
    for source in [*sets, *(one for each in sets for one in (each.mixture or {}).values())]:
        if source.transform is not None:
            yield try_transform(job_of(source, loaded, tokenizer_of=""))
