"""headway run: train from the run file, here or on a target."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import Output, RunFileArgument, SetOption, TakeOverOption
from headway.cli.output import hint, say

if TYPE_CHECKING:
    from headway.errors import Exit
    from headway.spec.load import Loaded
    from headway.spec.resolve import Hardware, Resolved
    from headway.state.code_folder import CodeFolder
    from headway.state.run_directory import RunDirectory

RESUME_HINT = "run the same command to resume"


def run(
    run_file: RunFileArgument = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="Number of nodes, here simulated on this machine. Default: that of the last "
            "headway scale, else 1; with --on, resources.nodes.",
            min=1,
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="TARGET",
            help="Run on this target of targets.yaml. A context of your kubeconfig that has no "
            "target gets one.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="With --on: print the objects, create none."),
    ] = False,
    output: Annotated[
        Output | None, typer.Option("--output", "-o", help="Format of --dry-run. Default: yaml.")
    ] = None,
    set_: SetOption = None,
    extend: Annotated[
        bool,
        typer.Option("--extend", help="Allow a longer train_for than the run was started with."),
    ] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Start even if headway plan says that it does not fit or costs too much.",
        ),
    ] = False,
    take_over: TakeOverOption = False,
) -> None:
    """Train from a run file, here or on a target. The same command resumes the run.

    Prepares the data if needed. Here, Ctrl-C saves and stops. With --on, waits until the run is
    training; Ctrl-C stops waiting, and the run continues."""
    from headway.errors import BadInput
    from headway.spec.load import load_run
    from headway.spec.resolve import require_complete

    loaded = load_run(run_file, set_)
    require_complete(loaded)
    if dry_run:
        from headway.cli.target_render import show_on

        show_on(loaded, on, nodes, output)
        return
    if output is not None:
        raise BadInput("--output needs --dry-run")
    if on is not None:
        if take_over:
            raise BadInput("--take-over is for a run here; on a target, the newest launch waits")
        from headway.cli.new_target import target_to_run_on
        from headway.cli.target_launch import launch_on

        launch_on(loaded, target_to_run_on(on, loaded.folder), nodes, extend, anyway)
        return
    start(loaded, nodes, extend, anyway=anyway, takes_over=take_over)


def start(
    loaded: Loaded,
    nodes: int | None,
    extend: bool,
    location: str | None = None,
    else_nodes: int = 1,
    anyway: bool = True,
    takes_over: bool = False,
) -> None:
    """Exits with the run's exit code."""
    _, code = train_here(loaded, nodes, extend, location, else_nodes, anyway, takes_over)
    raise typer.Exit(int(code))


def train_here(
    loaded: Loaded,
    nodes: int | None,
    extend: bool,
    location: str | None = None,
    else_nodes: int = 1,
    anyway: bool = True,
    takes_over: bool = False,
) -> tuple[str, Exit]:
    """Prepares, resolves and trains. Returns the run directory and DONE or STOPPED. `location` is
    the run directory, if it is not the one that the run file names. Without `nodes` their number is
    that of the last `headway scale`, else `else_nodes`. `anyway`: also what does not fit by its
    plan. `takes_over`: also what shows elsewhere that it is being trained."""
    from headway.cli.code_changes import script_digest
    from headway.cli.preflight import require_trainable_here, warn_of_budget, warn_of_run_file
    from headway.cli.restart_check import is_left_to_train
    from headway.clock import SystemClock
    from headway.errors import Exit, Stopped
    from headway.launch.hardware import this_machine
    from headway.spec.resolve import run_directory
    from headway.state.code_folder import code_folder
    from headway.state.run_directory import RunDirectory

    require_trainable_here(loaded)
    warn_of_run_file(loaded)
    warn_of_budget(loaded)
    location = location or run_directory(loaded)

    def digest_now() -> str | None:
        return script_digest(loaded, code_folder(loaded.run, loaded.folder))

    if not is_left_to_train(location, loaded.run, extend, digest=digest_now):
        return location, Exit.DONE
    if nodes is None:
        nodes = nodes_left_by_scale(RunDirectory(location)) or else_nodes
    with ExitStack() as background:
        try:
            resolved, code = resolved_here(
                loaded, this_machine(), nodes, location, background, anyway
            )
        except KeyboardInterrupt:
            raise Stopped("stopped while preparing data", RESUME_HINT) from None
        directory = RunDirectory.create(location, SystemClock())
        note_start(loaded, resolved, code)
        return location, _train(resolved, directory, takes_over)


def resolved_here(
    loaded: Loaded,
    machine: Hardware,
    nodes: int,
    location: str,
    background: ExitStack,
    anyway: bool = True,
    is_one_host: bool = True,
) -> tuple[Resolved, CodeFolder | None]:
    """Return the run, resolved for `nodes` nodes of this machine, or for as many machines that
    `machine` stands for together, and its code folder. Its data and packages are there;
    `background` is closed when nobody reads a set any more that is still being prepared."""
    from headway.cli.code_changes import script_digest
    from headway.cli.device_check import require_devices_here, resolved_for
    from headway.cli.hub_pins import spec_before, with_begun, with_hub_commits
    from headway.cli.model_shape import known_parameters, known_workload
    from headway.cli.plan.gate import require_planned
    from headway.cli.preflight import say_auto_interval
    from headway.cli.run_packages import packages_of
    from headway.cli.run_sets import trainable_sets
    from headway.launch.packages import python_here
    from headway.plan.checkpoint_every import with_checkpoint_interval
    from headway.preflight.preflight import preflight
    from headway.spec.resolve import require_whole_copies
    from headway.state.code_folder import code_folder
    from headway.state.run_directory import RunDirectory

    before = spec_before(location)
    loaded = with_begun(loaded, before)
    # These raise, if at all, before data is prepared for hours.
    preflight(loaded).raise_problems()
    require_whole_copies(loaded, nodes)
    require_devices_here(loaded, machine, nodes)
    # A run that has begun did fit.
    require_planned(loaded, None, nodes, anyway or RunDirectory.exists(location))
    parameters = known_parameters(loaded, known_workload(loaded))
    loaded = with_hub_commits(loaded, lambda: before)
    packages = packages_of(loaded, python_here, location)
    sets = trainable_sets(loaded, background)
    resolved = resolved_for(
        loaded,
        machine,
        nodes,
        train_set=sets.train,
        validation_sets=sets.validation,
        is_one_host=is_one_host,
    )
    resolved = with_checkpoint_interval(resolved, parameters)
    say_auto_interval(resolved)
    code = code_folder(loaded.run, loaded.folder)
    resolved = resolved.model_copy(
        update={
            "run_directory": location,
            "code_digest": code.listing.digest if code is not None else None,
            "script_digest": script_digest(loaded, code),
            "packages": str(packages.site) if packages is not None else None,
            "packages_for": packages.worker if packages is not None else None,
        }
    )
    return resolved, code


def note_start(loaded: Loaded, resolved: Resolved, code: CodeFolder | None) -> None:
    """What later commands and starts go by."""
    from headway.cli.code_changes import tell_code_change
    from headway.cli.hub_pins import forget_first_start
    from headway.cli.launch_plan import note_plan
    from headway.cli.target_run import note_started_on
    from headway.spec.resolve import run_name

    location = resolved.run_directory
    loaded = replace(loaded, hub_commits=resolved.hub_commits)
    tell_code_change(location, code)
    note_plan(loaded, location, resolved.nodes, train_set=resolved.train_set)
    note_started_on(loaded.folder, run_name(loaded), None)
    forget_first_start(loaded)


def nodes_left_by_scale(directory: RunDirectory) -> int | None:
    wanted = directory.wanted_nodes()
    if wanted is not None:
        say(f"{wanted} node{'s' if wanted > 1 else ''}, as set by headway scale")
    return wanted


def _train(resolved: Resolved, directory: RunDirectory, takes_over: bool) -> Exit:
    from headway.cli.progress import RunProgress
    from headway.cli.run_summary import next_commands, saved_so_far, show_summary
    from headway.cli.script_progress import ScriptProgress
    from headway.clock import SystemClock
    from headway.errors import Exit, RunFailed
    from headway.launch.local_run import LocalRun

    local = LocalRun(resolved, directory, SystemClock(), takes_over=takes_over)
    shown = ScriptProgress if resolved.is_script else RunProgress
    progress = shown(directory, SystemClock())
    saving = "waiting for the script to end" if resolved.is_script else "saving, then stopping"

    def stop(*_: object) -> None:
        first = local.stop_asked_at is None
        local.ask_to_stop()
        progress.line.above(f"{saving} (Ctrl-C again: stop now)" if first else "stopping")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = local.run(progress.show)
    except RunFailed as error:
        if isinstance(progress, ScriptProgress):
            progress.once(error)
        raise
    finally:
        progress.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if code == Exit.STOPPED:
        say(f"stopped; {saved_so_far(resolved, directory)}: {directory.location}")
        show_summary(directory, resolved.is_script)
        hint(RESUME_HINT)
    else:
        say(f"finished: {directory.location}")
        show_summary(directory, resolved.is_script)
        hint(*next_commands(resolved, directory))
    return code
