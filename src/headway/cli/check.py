"""headway check: is the run file valid, and what will the run be?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from itertools import starmap
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from headway.cli.options import JsonOption, RunFileArgument, SetOption
from headway.cli.output import print_json, short_count
from headway.cli.preflight import steps_of, warn_of_run_file
from headway.errors import BadInput, HeadwayError, SpecError

if TYPE_CHECKING:
    from headway.preflight.preflight import Preflight
    from headway.spec.load import Loaded
    from headway.spec.run_file import RunFile


HOLDS = (
    "a process per device with torchrun's variables; restarts on the nodes that are left when one "
    "is lost; logs, status, scale, stop, resume, budget"
)
DOES_NOT_HOLD = (
    "exact batches, ledger, export, generate, fork: the script saves to $HEADWAY_OUTPUT, and "
    "resumes from there itself"
)
"""What Headway does, and does not do, for a script."""
START = "torchrun --nnodes=NODES --nproc-per-node=DEVICES -m headway.train RUN_FILE"
LACKS = (
    "survivors that continue (elastic: live), a budget, headway scale and new machines for lost "
    "ones: a loss restarts all workers from the newest checkpoint, on the machines that your "
    "launcher has"
)
"""A run that another launcher starts does without these."""
OF_SOME_RUNS = {
    "teacher": ("objective", "teacher"),
    "stream": ("data", "train", "stream"),
    "resources": ("resources",),
    "memory": ("memory",),
    "watch": ("watch",),
    "budget": ("budget",),
    "secrets": ("secrets",),
}
"""Facts that are shown as they are written, where they are."""


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
    launcher: Annotated[
        bool,
        typer.Option(
            "--launcher",
            help="Check for a start by another launcher (torchrun), and say what that lacks.",
        ),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Validate a run file, summarise the run, and refuse what headway run would refuse.

    Writes nothing and needs no torch. Asks no cluster, unless --on names a context of your
    kubeconfig without a target: says which target headway run would add. Exits with 4 if the run
    does not fit or costs too much."""
    from headway.spec.load import load_run

    loaded = load_run(run_file, set_)
    if launcher:
        from headway.cli.for_launcher import as_launched
        from headway.launch.hardware import this_machine

        if on is not None:
            raise BadInput("--launcher is about this machine", "leave out --on")
        machine = this_machine()
        loaded = as_launched(loaded, max(1, machine.cuda_devices), machine)
    if on is not None:
        from headway.cli.new_target import named_target
        from headway.cli.target_render import require_complete_target

        target = named_target(on, loaded.folder)
        on = target.name
        require_complete_target(loaded, target)
    found, facts = examined(loaded, is_here=on is None, code=code, on=on)
    if "checkpoints" in facts and loaded.run.checkpoint.every == "auto":
        facts["checkpoints"] |= _auto_interval_facts(loaded, on)
    if launcher and not found.problems:
        facts |= {"launcher": START, "not_with_it": LACKS}
    refusal = None if found.problems else refusal_of(loaded, on)
    if json_:
        problems = [_problem_facts(problem) for problem in found.problems or _parts(refusal)]
        print_json({**facts, "problems": problems, "unchecked": found.unchecked})
    found.raise_problems()
    if not json_:
        rows = [*in_words(facts).items(), *(("not_checked", note) for note in found.unchecked)]
        for key, value in rows:
            print(f"{key.replace('_', ' '):<18}{value}")
    if refusal is not None:
        raise refusal


def examined(
    loaded: Loaded, is_here: bool, code: bool, on: str | None = None
) -> tuple[Preflight, dict[str, Any]]:
    """All problems that were found, and if there are none what the run will be. `code`: by running
    the user's own functions as well. `on`: the target that it is planned for."""
    from headway.preflight.preflight import preflight
    from headway.spec.load import load_targets
    from headway.spec.resolve import require_complete, run_directory

    if not loaded.is_preset:
        require_complete(loaded)
        run_directory(loaded)
    load_targets(loaded.folder)
    warn_of_run_file(loaded)
    found = preflight(loaded, is_here)
    facts = {} if found.problems else run_facts(loaded)
    if not found.problems and not (loaded.is_preset and on is None):
        facts |= _planned_facts(loaded, on, facts)
    if code and loaded.run.command is not None:
        raise BadInput(
            "--code runs functions of your own, and a run with `command` has none",
            "headway run starts the script",
        )
    if code and not found.problems:
        facts["code"] = _check_code(loaded)
    return found, facts


def _auto_interval_facts(loaded: Loaded, on: str | None) -> dict[str, Any]:
    """Nothing where the devices cannot run it, which `require_startable` says, or in a preset."""
    from headway.cli.model_shape import known_parameters, known_workload
    from headway.cli.new_target import named_target
    from headway.cli.target_render import resolved_for
    from headway.launch.hardware import this_machine
    from headway.plan.checkpoint_every import auto_interval
    from headway.spec.quantities import Interval
    from headway.spec.resolve import resolve

    parameters = known_parameters(loaded, known_workload(loaded))
    interruptions = None
    try:
        if on is not None:
            found = named_target(on, loaded.folder)
            resolved, interruptions = resolved_for(loaded, found), found.target.interruptions
        else:
            sets: dict[str, Any] = {"train_set": "", "validation_sets": {}}
            resolved = resolve(loaded, this_machine(), nodes=1, parameters=parameters, **sets)
    except HeadwayError:
        return {}
    chosen = auto_interval(resolved, parameters, interruptions)
    interval = Interval(round(chosen.value), "seconds")
    return {"auto": str(interval), "auto_because": chosen.reason}


def refusal_of(loaded: Loaded, on: str | None) -> HeadwayError | None:
    """Return the error with which `run` would refuse this machine, a target or the plan, or
    None."""
    try:
        require_startable(loaded, on)
    except HeadwayError as refusal:
        return refusal
    return None


def require_startable(loaded: Loaded, on: str | None, anyway: bool = False) -> None:
    """Raises what `run` would, as far as nothing has to be asked, prepared or read in a store."""
    from headway.cli.new_target import named_target
    from headway.cli.plan.gate import require_planned
    from headway.cli.target_render import require_fit_on
    from headway.spec.load import load_targets

    if on is not None:
        require_fit_on(loaded, named_target(on, loaded.folder))
    elif not loaded.is_preset:
        _require_here(loaded, list(load_targets(loaded.folder)))
    if on is not None or not loaded.is_preset:
        has_begun = on is None and _has_begun(loaded)
        require_planned(loaded, on, None, anyway, lambda: has_begun)


def _has_begun(loaded: Loaded) -> bool:
    from headway.spec.resolve import run_directory
    from headway.state.run_directory import RunDirectory

    location = run_directory(loaded)
    return "://" not in location and RunDirectory.exists(location)


def _parts(refusal: HeadwayError | None) -> list[HeadwayError]:
    if refusal is None:
        return []
    return [refusal, *(refusal.others if isinstance(refusal, SpecError) else ())]


def _planned_facts(loaded: Loaded, on: str | None, facts: dict[str, Any]) -> dict[str, Any]:
    """The plan in a line, and the micro-batch that a first start would take."""
    from headway.cli.plan.gate import plan_for, plan_line

    plan = plan_for(loaded, on, None)
    if plan is None:
        return {}
    planned: dict[str, Any] = {}
    if (way := plan.fleets[0].way) is not None and "batch" in facts:
        planned["batch"] = facts["batch"] | {"micro": way.workload.micro}
    if (line := plan_line(plan)) is not None:
        planned["plan"] = line
    return planned


def _problem_facts(problem: HeadwayError) -> dict[str, Any]:
    file = line = column = None
    message = problem.message
    if isinstance(problem, SpecError):
        (file, line, column), message = problem.position, problem.problem
    return {
        "file": file,
        "line": line,
        "column": column,
        "problem": message,
        "hint": problem.hint,
    }


def _require_here(loaded: Loaded, targets: list[str]) -> None:
    from headway.cli.device_check import require_named_devices, require_this_machine
    from headway.launch.hardware import this_machine
    from headway.spec.resolve import require_whole_copies

    require_named_devices(loaded)
    try:
        require_whole_copies(loaded, 1)
        require_this_machine(loaded, this_machine(), nodes=1)
    except BadInput as error:
        # It may be meant for a target.
        if targets:
            error.hint = f"to check it for a target: headway check --on {targets[0]}"
        raise


def run_facts(loaded: Loaded) -> dict[str, Any]:
    """What the run will be, as data. Numbers that only the data determines are null."""
    from headway.cli.epoch_samples import uses_of_members
    from headway.cli.model_shape import known_parameters, known_workload
    from headway.plan.memory_need import state_bytes
    from headway.spec.resolve import choose_micro

    run = loaded.run
    if run.command is not None:
        return _script_facts(loaded)
    parameters = known_parameters(loaded, known_workload(loaded))
    facts: dict[str, Any] = {"name": run.name or loaded.folder.name}
    if run.model is not None:
        facts["model"] = {
            "origin": run.model.from_ or run.model.type or run.model.call,
            "parameters": parameters,
            "state_bytes": parameters and state_bytes(parameters, run.precision),
        }
    facts["objective"] = run.objective.type or run.objective.call
    if run.batch is not None:
        sequences = run.batch.global_.sequences(run.data.sequence_length)
        facts["batch"] = {
            "sequences": sequences,
            "sequence_length": run.data.sequence_length,
            "micro": choose_micro(run, sequences),
        }
    facts["train_for"] = {
        "amount": run.train_for.amount,
        "unit": run.train_for.unit,
        "steps": steps_of(run),
    }
    if uses := uses_of_members(loaded):
        facts["mixture"] = {name: asdict(use) for name, use in uses.items()}
    facts["optimizer"] = {
        "type": run.optimizer.type,
        "lr": run.optimizer.lr,
        "schedule": run.schedule.type,
    }
    facts["precision"] = run.precision
    facts["checkpoints"] = _checkpoint_facts(run, parameters)
    return facts | _facts_as_written(run)


def _facts_as_written(run: RunFile) -> dict[str, Any]:
    written = run.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    found = {}
    for name, path in OF_SOME_RUNS.items():
        value: Any = written
        for key in path:
            value = value.get(key) if value else None
        if value:
            found[name] = value
    return found


def _checkpoint_facts(run: RunFile, parameters: int | None) -> dict[str, Any]:
    """At most as many as that are kept, once the run has ended."""
    from headway.plan.memory_need import CHECKPOINT_BYTES

    keep, steps = run.checkpoint.keep, steps_of(run)
    milestones = None if keep.every is None or steps is None else keep.every.num_due(steps)
    kept = None
    if keep.every is None or milestones is not None:
        best = keep.best if run.data.validation else 0
        kept = (milestones or 0) + keep.last + best
        kept = kept if steps is None else min(kept, steps)
    size = parameters and parameters * CHECKPOINT_BYTES
    return {
        "every": "auto" if run.checkpoint.every == "auto" else run.checkpoint.every.written(),
        "keep_every": keep.every and keep.every.written(),
        "milestones": milestones,
        "kept": kept,
        "bytes_of_each": size,
        "bytes": kept and size and kept * size,
    }


def _script_facts(loaded: Loaded) -> dict[str, Any]:
    run = loaded.run
    assert run.code is not None
    return {
        "name": run.name or loaded.folder.name,
        "command": run.command,
        "code": str(loaded.folder / run.code.path),
        "holds": HOLDS,
        "does_not_hold": DOES_NOT_HOLD,
    }


def in_words(facts: dict[str, Any]) -> dict[str, str]:
    """The same for reading."""
    from headway.memory_limits import byte_size
    from headway.spec.quantities import Length

    words = {key: str(value) for key, value in facts.items() if key != "name"}
    for key in OF_SOME_RUNS.keys() & facts.keys():
        words[key] = yaml.safe_dump(facts[key], default_flow_style=True, width=1000).splitlines()[0]
    if "command" in facts:
        return {**words, "command": shlex.join(facts["command"])}
    if "model" in facts:
        model = facts["model"]
        size = ""
        if model["parameters"]:
            state = byte_size(model["state_bytes"])
            size = f", {short_count(model['parameters'])} parameters, {state} of state"
        words["model"] = f"{model['origin']}{size}"
    if "batch" in facts:
        sequences, length, micro = facts["batch"].values()
        count = -(-sequences // micro)
        words["batch"] = (
            f"{sequences} sequences of {length} tokens = {short_count(sequences * length)} tokens "
            f"a step, in {count} {'micro-batch' if count == 1 else 'micro-batches'} of {micro}"
        )
    amount, unit, steps = facts["train_for"].values()
    words["train_for"] = str(Length(amount, unit))
    if unit == "tokens" and steps is not None:
        words["train_for"] += f" = {steps} steps"
    if "mixture" in facts:
        words["mixture"] = "; ".join(starmap(_use_in_words, facts["mixture"].items()))
    words["checkpoints"] = _checkpoints_in_words(**facts["checkpoints"])
    if (because := facts["checkpoints"].get("auto_because")) is not None:
        words["save_interval"] = because
    optimizer = facts["optimizer"]
    words["optimizer"] = f"{optimizer['type']}, lr {optimizer['lr']:g}, {optimizer['schedule']}"
    return words


def _use_in_words(name: str, use: dict[str, float | None]) -> str:
    share, epochs = use["share"], use["epochs"]
    words = name if share is None else f"{name} {share:.1%}"
    return words if epochs is None else f"{words}, read {epochs:.3g} times"


def _checkpoints_in_words(
    every: str | list[str],
    keep_every: str | list[str] | None,
    milestones: int | None,
    kept: int | None,
    bytes_of_each: int | None,
    bytes: int | None,
    auto: str | None = None,
    auto_because: str | None = None,
) -> str:
    from headway.memory_limits import byte_size

    words = f"every {_interval_in_words(every)}"
    if every == "auto":
        words = f"every {auto} (auto)" if auto is not None else "auto"
    if kept is not None:
        words += f"; at most {kept} are kept" if kept > 1 else "; 1 is kept"
    if milestones:
        assert keep_every is not None
        words += f", {milestones} of them for good (every {_interval_in_words(keep_every)})"
    elif kept is None and keep_every is not None:
        words += f"; those every {_interval_in_words(keep_every)} are kept for good"
    if bytes_of_each is not None:
        words += f"; {byte_size(bytes_of_each)} each"
        words += f", {byte_size(bytes)} in all" if bytes is not None and kept != 1 else ""
    return words


def _interval_in_words(written: str | list[str]) -> str:
    return written if isinstance(written, str) else ", ".join(written)


def _check_code(loaded: Loaded) -> str:
    from headway.cli.run_packages import installed_packages
    from headway.errors import needs_train
    from headway.launch.packages import python_here
    from headway.preflight.vocabulary import vocabulary_size
    from headway.spec.resolve import run_directory

    try:
        from headway.train.check_code import check_code
    except ImportError as error:
        raise needs_train("headway check --code", error) from None
    found = installed_packages(loaded, python_here, run_directory(loaded))
    checked = check_code(
        loaded.run, loaded.folder, found.site if found else None, vocabulary_size(loaded)
    )
    return "; ".join(filter(None, [checked, *_transforms(loaded)]))


def _transforms(loaded: Loaded) -> Iterator[str]:
    from headway.cli.run_sets import job_of
    from headway.data.prepare.try_transform import try_transform
    from headway.spec.run_sources import run_sources

    for _, source in run_sources(loaded.run):
        if source.transform is not None:
            yield try_transform(job_of(source, loaded, tokenizer_of=""))
