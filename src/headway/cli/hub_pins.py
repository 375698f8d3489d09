"""Which commits of the hub a run reads: asked for at its first start, kept by all later ones.

A first start that is interrupted while it prepares data has no run yet that would keep them. So
they are noted beside the run file until there is one: else a dataset that moves meanwhile would be
prepared anew, from the beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.output import hint, say, warn
from headway.errors import SpecError
from headway.spec.hub_names import HubKind, HubReference, hub_references
from headway.spec.resolve import begun_of, run_name

if TYPE_CHECKING:
    from headway.spec.load import Loaded
    from headway.spec.resolve import Resolved

SHOWN_DIGITS = 12
NOTES = "runs"
SUFFIX = ".commits.json"
Ask = Callable[[HubKind, str, str | None], str]
"""Commit of a name at this moment; raises HubNotAsked."""


def with_hub_commits(
    loaded: Loaded,
    resolved_before: Callable[[], Resolved | None],
    on: str | None = None,
    ask: Ask | None = None,
) -> Loaded:
    """`resolved_before`: the run as it was started last, read only if the run file names something
    on the hub. What was not fixed then stays so: a run reads the same to its end."""
    references = list(_references(loaded))
    if not references:
        return loaded
    before = resolved_before()
    if before is not None and before.hub_commits is None:
        return loaded
    noted = _noted(loaded) if before is None else {}
    known = dict(before.hub_commits or {}) if before is not None else noted
    commits: dict[str, str] = {}
    for one in references:
        if one.id not in commits:
            if one.id in noted and not one.is_fixed:
                _say_noted(one, noted[one.id], loaded)
            commit = known.get(one.id) or _commit(one, loaded, on, ask)
            if commit is not None:
                commits[one.id] = commit
    if before is None and commits:
        _write_note(loaded, commits)
    return replace(loaded, hub_commits=commits or None)


def forget_first_start(loaded: Loaded) -> None:
    """The run is there, and keeps its commits itself."""
    _note(loaded).unlink(missing_ok=True)


def _note(loaded: Loaded) -> Path:
    return loaded.folder / NOTES / f"{run_name(loaded)}{SUFFIX}"


def _noted(loaded: Loaded) -> dict[str, str]:
    """Those of a first start that did not come to its end."""
    try:
        found = json.loads(_note(loaded).read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): str(commit) for name, commit in dict(found).items()}


def _write_note(loaded: Loaded, commits: dict[str, str]) -> None:
    note = _note(loaded)
    with suppress(OSError):  # a folder that only can be read
        note.parent.mkdir(exist_ok=True)
        note.write_text(json.dumps(commits, indent=2) + "\n")


def _say_noted(one: HubReference, commit: str, loaded: Loaded) -> None:
    say(
        f"{one.name} on the hub: commit {commit[:SHOWN_DIGITS]}, as when the first start of this "
        f"run was interrupted (for the newest, remove {_note(loaded)})"
    )


def with_begun(loaded: Loaded, before: Resolved | None) -> Loaded:
    """Return the run with what its first start decided. `before`: the run as it was started last;
    None: it is new."""
    if before is None or loaded.run.command is not None:
        return loaded
    return replace(loaded, begun=begun_of(before))


def spec_before(location: str) -> Resolved | None:
    """The run as it was started last, from its directory."""
    from headway.state.run_directory import RunDirectory

    if not RunDirectory.exists(location):
        return None
    directory = RunDirectory.open(location)
    return directory.read_spec() if directory.has_spec() else None


def _references(loaded: Loaded) -> list[HubReference]:
    found = []
    for one in hub_references(loaded.run):
        if (loaded.folder / Path(one.name)).is_dir():
            if one.revision is not None and one.kind == "models":
                raise SpecError(
                    f"{one.name} is a folder, and `revision` is for names on the hub",
                    str(loaded.located.mark((*one.key, "revision"))),
                    "remove revision",
                )
        else:
            found.append(one)
    return found


def _commit(one: HubReference, loaded: Loaded, on: str | None, ask: Ask | None) -> str | None:
    if one.is_fixed:
        return one.revision
    try:
        from headway.data.hub_commits import HubNotAsked, hub_commit
    except ImportError:
        return None  # without the training extra
    try:
        commit = (ask or hub_commit)(one.kind, one.name, one.revision)
    except HubNotAsked as error:
        if on is not None:
            where = loaded.located.mark(one.key)
            warn(
                f"{where}: {one.name} on the hub is not fixed to a commit ({error}): pods and "
                "later starts read what it is then"
            )
            hint("revision: COMMIT beside it in the run file; for a source, ?revision=COMMIT")
        return None
    branch = f", {one.revision}," if one.revision else ""
    say(f"{one.name} on the hub{branch} is at commit {commit[:SHOWN_DIGITS]}: this run keeps it")
    return commit
