"""headway check: is the run file valid, and what will the run be?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import JsonOption, RunFileArgument, SetOption
from headway.cli.output import print_json, short_count
from headway.cli.preflight import parameters_of, steps_of, warn_of_run_file

if TYPE_CHECKING:
    from headway.spec.load import Loaded
    from headway.spec.run_file import RunFile


def check(
    run_file: RunFileArgument = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="TARGET",
            help="Check for this target of targets.yaml. Default: this machine.",
        ),
    ] = None,
    set_: SetOption = None,
    code: Annotated[
        bool,
        typer.Option(
            "--code", help="Also run one tiny batch through your own functions, on the CPU."
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Validate a run file, summarise the run, and refuse what its devices cannot run.

    Writes nothing, needs no torch and, with --on, asks no cluster."""
    from headway.spec.load import load_run, load_targets
    from headway.spec.resolve import require_complete, run_directory

    loaded = load_run(run_file, set_)
    if not loaded.is_preset:
        require_complete(loaded)
        run_directory(loaded)
    targets = load_targets(loaded.folder)
    warn_of_run_file(loaded)
    facts = describe(loaded.run)
    if code:
        facts["code"] = _check_code(loaded)
    if json_:
        print_json(facts)
    else:
        for key, value in facts.items():
            print(f"{key.replace('_', ' '):<18}{value}")
    if on is not None:
        from headway.cli.target_render import require_fit_on
        from headway.spec.load import load_target

        require_fit_on(loaded, load_target(on, loaded.folder))
    elif not loaded.is_preset:
        _require_here(loaded, list(targets))


def _require_here(loaded: Loaded, targets: list[str]) -> None:
    from headway.cli.device_check import require_named_devices, require_this_machine
    from headway.errors import BadInput
    from headway.launch.hardware import this_machine

    require_named_devices(loaded)
    try:
        require_this_machine(loaded, this_machine(), nodes=1)
    except BadInput as error:
        # It may be meant for a target.
        if targets:
            error.hint = f"to check it for a target: headway check --on {targets[0]}"
        raise


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
        count = -(-batch // micro)
        facts["batch"] = (
            f"{batch} sequences of {length} tokens = {short_count(batch * length)} tokens a step, "
            f"in {count} {'micro-batch' if count == 1 else 'micro-batches'} of {micro}"
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
    from headway.cli.run_sets import job_of
    from headway.data.prepare.try_transform import try_transform

    data = loaded.run.data
    sets = [*filter(None, [data.train]), *data.validation.values()]
    for source in [*sets, *(one for each in sets for one in (each.mixture or {}).values())]:
        if source.transform is not None:
            yield try_transform(job_of(source, loaded, tokenizer_of=""))
