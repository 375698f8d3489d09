"""headway run: train from the run file, here or on a target."""

from __future__ import annotations

import importlib.util
import os
import signal
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.options import RunFileArgument, SetOption
from headway.cli.output import hint, say

if TYPE_CHECKING:
    from headway.cli.sets import Sets
    from headway.errors import Exit
    from headway.spec.load import Loaded
    from headway.spec.resolve import Resolved
    from headway.state.rundir import RunDirectory

Output = Literal["yaml", "json"]


def run(
    run_file: RunFileArgument = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="Play so many nodes on this machine. Left out: 1, or what headway scale asked for "
            "last. With --on: so many there, else as resources.nodes says.",
            min=1,
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="TARGET", help="Run there: a target of targets.yaml."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="With --on: print the objects to be made, and make none."),
    ] = False,
    output: Annotated[
        Output | None, typer.Option("--output", "-o", help="With --dry-run. Left out: yaml.")
    ] = None,
    set_: SetOption = None,
    extend: Annotated[
        bool,
        typer.Option("--extend", help="Allow a train_for longer than the run was started with."),
    ] = False,
) -> None:
    """Train here, or on a target. Prepares the data if needed; the same command goes on.

    Here Ctrl-C saves. With --on it is waited for until it trains; Ctrl-C leaves it as it is."""
    from headway.errors import BadInput
    from headway.spec.load import load_run
    from headway.spec.resolve import require_complete

    loaded = load_run(run_file, set_)
    require_complete(loaded)
    if dry_run:
        from headway.cli.on_target import show_on

        show_on(loaded, on, nodes, output)
        return
    if output is not None:
        raise BadInput("--output goes with --dry-run")
    if on is not None:
        from headway.cli.launching import launch_on

        launch_on(loaded, on, nodes, extend)
        return
    start(loaded, nodes, extend)


def start(
    loaded: Loaded,
    nodes: int | None,
    extend: bool,
    location: str | None = None,
    else_nodes: int = 1,
) -> None:
    """Prepares, resolves and trains; leaves with the run's exit code. `location` is the run
    directory, where it is another than the run file says. Without `nodes` there are as many as
    `headway scale` asked for last, `else_nodes` if it never did."""
    from headway.cli.check import (
        parameters_of,
        warn_of_later_keys,
        warn_of_long_warmup,
    )
    from headway.cli.sets import sets_of
    from headway.cli.starting_again import require_same_run
    from headway.cli.target_run import note_started_on
    from headway.clock import SystemClock
    from headway.errors import Stopped
    from headway.launch.machine import this_machine
    from headway.spec.resolve import devices_of, resolve, run_directory
    from headway.state.rundir import RunDirectory

    require_training_extra(loaded)
    require_secrets(loaded)
    warn_of_later_keys(loaded)
    warn_of_long_warmup(loaded)
    location = location or run_directory(loaded)
    if RunDirectory.exists(location) and RunDirectory.open(location).has_spec():
        before = RunDirectory.open(location)
        require_same_run(before, loaded.run, extend)
        if is_finished(before) and not extend:
            say(f"run {before.name} has finished already: {location}")
            hint("--extend with a longer train_for goes on; another name starts anew")
            return
    if nodes is None:
        nodes = nodes_left_by_scale(RunDirectory(location)) or else_nodes
    # Both raise, before data is prepared for hours.
    devices_of(loaded, this_machine(), nodes)
    parameters = parameters_of(loaded.run)
    with ExitStack() as background:
        try:
            sets = sets_of(loaded, background)
            require_fitting_sets(loaded, sets)
        except KeyboardInterrupt:
            raise Stopped("stopped while preparing data", "the same command goes on") from None
        resolved = resolve(
            loaded,
            this_machine(),
            nodes=nodes,
            parameters=parameters,
            train_set=sets.train,
            validation_sets=sets.validation,
        ).model_copy(update={"run_directory": location})
        directory = RunDirectory.create(location, SystemClock())
        note_started_on(loaded.folder, resolved.name, None)
        code = _train(resolved, directory)
    raise typer.Exit(int(code))


def nodes_left_by_scale(directory: RunDirectory) -> int | None:
    wanted = directory.wanted_nodes()
    if wanted is not None:
        say(f"{wanted} node{'s' if wanted > 1 else ''}, as headway scale left it")
    return wanted


def _train(resolved: Resolved, directory: RunDirectory) -> Exit:
    from headway.cli.progress import RunProgress
    from headway.clock import SystemClock
    from headway.errors import Exit
    from headway.launch.local import LocalRun
    from headway.state.checkpoints import steps_saved

    progress = RunProgress(directory, SystemClock())
    local = LocalRun(resolved, directory, SystemClock())

    def stop(*_: object) -> None:
        first = local.stop_asked_at is None
        local.ask_to_stop()
        progress.line.above("saving, then stopping (again: stop at once)" if first else "stopping")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = local.run(progress.show)
    finally:
        progress.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if code == Exit.STOPPED:
        saved = steps_saved(directory)
        newest = f"saved up to step {saved[-1]}" if saved else "nothing is saved yet"
        say(f"stopped; {newest}: {directory.location}")
        hint("the same command goes on from here")
    else:
        say(f"finished: {directory.location}")
        export = f"headway export {directory.as_typed}"
        masked = resolved.run.objective.type == "masked"
        generate = f'headway generate {directory.as_typed} --prompt "Once"'
        hint(export if masked else f"{generate}, {export}")
    return code


def require_training_extra(loaded: Loaded) -> None:
    from headway.errors import BadInput, needs_train

    if "wandb" in loaded.run.track and importlib.util.find_spec("wandb") is None:
        raise BadInput("track: wandb needs the wandb extra", "pip install 'headway[wandb]'")
    for module in ("torch", "transformers", "tokenizers", "numpy", "safetensors"):
        if importlib.util.find_spec(module) is None:
            raise needs_train("headway run", ImportError(module, name=module))


def require_secrets(loaded: Loaded) -> None:
    from headway.errors import SpecError

    missing = [name for name in loaded.run.secrets if not os.environ.get(name)]
    if missing:
        raise SpecError(
            f"secrets: {', '.join(missing)} not set in the environment",
            str(loaded.located.mark(("secrets",))),
            f"export {missing[0]}=...",
        )


def is_finished(directory: RunDirectory) -> bool:
    from headway.clock import SystemClock
    from headway.state.status import read_status

    return read_status(directory, SystemClock().now()).state == "finished"


def require_fitting_sets(loaded: Loaded, sets: Sets) -> None:
    """What workers would find out too, but only after their imports."""
    from headway.cli.streaming import wait_for_first_samples
    from headway.data.reading.fit import require_fit
    from headway.data.reading.sets import open_set

    for location in (sets.train, *sets.validation.values()):
        objective, length = loaded.run.objective.type, loaded.run.data.sequence_length
        with closing(open_set(location)) as samples:
            wait_for_first_samples(samples, length)
            require_fit(samples, objective, length)
