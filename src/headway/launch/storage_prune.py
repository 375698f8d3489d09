"""Removes what no run names any more from a target's storage, while others launch runs.

Whoever needs KIND/DIGEST first writes the time and the name of the run into `KIND/DIGEST.used`,
then looks for `KIND/DIGEST.removing`, and uses nothing that has it. Whoever removes writes
`.removing` first and then looks at `.used`. So of the two at least one sees the other, whatever the
order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import get_args

from headway.clock import Clock, seconds_of, stamp
from headway.errors import StillRunning
from headway.kube.storage_layout import Kind
from headway.launch.storage_use import StoredFolder, stored_folders
from headway.launch.upload import whole_mark
from headway.state.store import Store

KEPT_SECONDS = 7 * 86400.0
"""Since it was last uploaded or used for a launch."""
REMOVAL_SECONDS = 3600.0
"""Longest removal of one folder."""
REMOVING = ".removing"
DIGEST = re.compile(r"(2-|p-)?[0-9a-f]{32,}")
"""Whatever else is there was not uploaded by Headway."""

Launched = Callable[[], Mapping[str, str]]
"""The resolved runs that the cluster knows, by name."""
MayGo = Callable[[StoredFolder], bool]
"""Whether an unused folder may be removed."""


def note_used(storage: Store, name: str, clock: Clock, on: str, run: str) -> None:
    """Before KIND/DIGEST is uploaded or used for that run. Raises StillRunning if it is being
    removed. `on`: name of the target, for the hint."""
    storage.write(used_mark(name), f"{stamp(clock.now())} {run}".encode())
    if storage.size(removing_mark(name)) is not None:
        raise StillRunning(
            f"{storage.location(name)} is being removed from the storage",
            "run the same command again when that has ended; if it was interrupted, after another "
            f"one, an hour later: headway target prune {on}",
        )


def unused_folders(
    storage: Store, launched: Launched, clock: Clock
) -> tuple[list[StoredFolder], list[StoredFolder]]:
    """Those that no run names: the ones that are old enough to be removed, and the others. The age
    of one that was uploaded before ages were noted is counted from now."""
    _forget_interrupted(storage, clock)
    old: list[StoredFolder] = []
    young: list[StoredFolder] = []
    for folder in _unnamed(storage, launched):
        is_old = _is_old(storage, folder, clock)
        if is_old is None:
            storage.write(used_mark(folder.name), stamp(clock.now()).encode())
        (old if is_old else young).append(folder)
    return old, young


def folders_of(
    storage: Store,
    runs: Collection[str],
    preparations: Collection[str],
    launched: Mapping[str, str],
) -> list[StoredFolder]:
    """Those that these runs name, or that nobody names and one of these has used last: code before
    its last edit, or all of them if the run itself is gone. None that another run names; the
    preparation that made a set is no such run."""
    return [
        one
        for one in stored_folders(storage, launched)
        if {*one.runs} <= {*runs, *preparations}
        and DIGEST.fullmatch(one.digest)
        and ({*one.runs} & {*runs} or last_use(storage, one)[1] in runs)
    ]


def last_used_by(storage: Store, runs: Collection[str], clock: Clock) -> MayGo:
    """Of a folder: whether none but these runs was launched with it last, or so long ago that it
    may be removed anyway. A launch notes its use before its run can be seen, and a run that is
    queued in another namespace is not seen at all."""

    def is_so(folder: StoredFolder) -> bool:
        used, by = last_use(storage, folder)
        return used is None or by in runs or clock.now() - used > KEPT_SECONDS

    return is_so


def removed_folders(
    storage: Store,
    folders: Sequence[StoredFolder],
    launched: Launched,
    clock: Clock,
    may_go: MayGo | None = None,
) -> Iterator[tuple[StoredFolder, bool]]:
    """Each with whether it was removed: one that a run needs by now is kept. However this ends, no
    mark is left that launches would be refused for. `may_go`: by default, if it is old."""
    marked = [folder.name for folder in folders]
    try:
        for name in marked:
            storage.write(removing_mark(name), stamp(clock.now()).encode())
        unnamed = {folder.name for folder in _unnamed(storage, launched)}
        for folder in folders:
            storage.write(removing_mark(folder.name), stamp(clock.now()).encode())
            is_unused = folder.name in unnamed and (
                bool(_is_old(storage, folder, clock)) if may_go is None else may_go(folder)
            )
            if is_unused:
                # First: without it, what is left of the folder is uploaded again.
                storage.remove(whole_mark(folder.name))
                storage.remove(folder.name)
                storage.remove(used_mark(folder.name))
            storage.remove(removing_mark(folder.name))
            marked.remove(folder.name)
            yield folder, is_unused
    finally:
        for name in marked:
            with suppress(OSError):
                storage.remove(removing_mark(name))


def used_mark(name: str) -> str:
    return f"{name}.used"


def removing_mark(name: str) -> str:
    return f"{name}{REMOVING}"


def _forget_interrupted(storage: Store, clock: Clock) -> None:
    """Removals of somebody who was killed meanwhile."""
    for kind in get_args(Kind):
        for name in storage.names(kind):
            if name.endswith(REMOVING):
                with suppress(FileNotFoundError, ValueError):
                    began = seconds_of(storage.read(name).decode())
                    if clock.now() - began > REMOVAL_SECONDS:
                        storage.remove(name)


def _unnamed(storage: Store, launched: Launched) -> list[StoredFolder]:
    """The cluster is asked before the storage: a run that ends in between has its spec there."""
    found = stored_folders(storage, launched())
    return [one for one in found if not one.runs and DIGEST.fullmatch(one.digest)]


def _is_old(storage: Store, folder: StoredFolder, clock: Clock) -> bool | None:
    """None: not known."""
    used, _ = last_use(storage, folder)
    return None if used is None else clock.now() - used > KEPT_SECONDS


def last_use(storage: Store, folder: StoredFolder) -> tuple[float | None, str | None]:
    """When, and the run for which: None if that is not known."""
    try:
        when, *run = storage.read(used_mark(folder.name)).decode().split()
        return seconds_of(when), run[0] if run else None
    except (FileNotFoundError, ValueError):
        return None, None
