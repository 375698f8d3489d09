"""headway fork: a new run that starts from a checkpoint of another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.completion import local_runs
from headway.cli.options import SetOption
from headway.cli.output import say


def fork(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@STEP]",
            help="Run to start from, and a saved step. Default: the newest.",
            autocompletion=local_runs,
        ),
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the new run.")],
    set_: SetOption = None,
) -> None:
    """Start a new run from a checkpoint of another run. --set changes its settings."""
    from headway.cli.script_refusal import refuse_script
    from headway.clock import SystemClock
    from headway.errors import BadInput
    from headway.spec.load import changed_run
    from headway.state.checkpoints import find_checkpoint, take_over
    from headway.state.find_run import find_run, split_step
    from headway.state.run_directory import RunDirectory
    from headway.state.trusted_code import is_trusted, trust_code

    reference, step = split_step(run)
    source = find_run(reference, Path.cwd())
    refuse_script(
        source,
        "fork",
        "a fork begins with a checkpoint of Headway's, and the script saves its own",
        f"to start it anew under another name: headway run --set name={new}",
    )
    before = source.read_spec()
    changed = changed_run(before.run, [*(set_ or []), f"name={new}"])
    location = f"{source.location.rsplit('/', 1)[0]}/{new}"
    if RunDirectory.exists(location):
        raise BadInput(f"run {new} already exists: {location}", "choose another name")
    found, manifest = find_checkpoint(source, step)
    origin = {"run": source.location, "step": manifest.step}
    directory = RunDirectory(location)
    take_over(source, found, manifest, directory, changed, SystemClock())
    after = before.model_copy(update={"name": new, "run": changed, "run_directory": location})
    directory.write_spec(after)
    if is_trusted(before):  # the rest is what the user has typed
        trust_code(after)
    # Last: without its record there is no run, and the same command can be given again.
    RunDirectory.create(location, SystemClock(), forked_from=origin)
    say(f"created {new} from step {manifest.step} of {source.name}: {location}")
    say(f"next: headway resume {new}")
