"""A run that is there already, started again: which settings may differ from those it has."""

from __future__ import annotations

from headway.cli.output import say
from headway.errors import BadInput
from headway.spec.changes import changed_identity
from headway.spec.run import RunFile
from headway.state.checkpoints import steps_saved
from headway.state.rundir import RunDirectory


def require_same_run(directory: RunDirectory, run: RunFile, extend: bool) -> None:
    """A name stands for one run: what decides its weights may not change under it, as long as any
    of them are saved. The length may, with `extend`."""
    changed = changed_identity(directory.read_spec().run, run)
    if extend:
        changed = [change for change in changed if not change.startswith("train_for:")]
    if not changed:
        return
    listed = "\n  ".join(changed)
    if not steps_saved(directory):
        if not directory.is_running():  # else the start is refused for that
            say(
                f"nothing of run {directory.name} is saved: starting it again with other settings:"
                f"\n  {listed}"
            )
        return
    only_length = all(change.startswith("train_for:") for change in changed)
    raise BadInput(
        f"run {directory.name} was started with other settings:\n  {listed}",
        "--extend changes the length of a run" if only_length else _new_run_hint(directory),
    )


def _new_run_hint(directory: RunDirectory) -> str:
    new = directory.free_name()
    if directory.store.is_served:  # a run in a claim cannot be forked from here
        return f"restore the old settings, or start another run: --set name={new}"
    return (
        "restore the old settings, or start a new run from this one (--set changes its settings): "
        f"headway fork {directory.as_typed} {new}"
    )
