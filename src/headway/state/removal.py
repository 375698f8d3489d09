"""Deleting a run: whoever deletes it owns it first, so nobody who trains it loses what it saves
unnoticed, and nobody can start what is half gone."""

from __future__ import annotations

import shutil
from contextlib import suppress
from uuid import uuid4

from headway.clock import Clock, stamp
from headway.state.chain import FOLDER, Chain
from headway.state.run_directory import RECORD, RunDirectory
from headway.state.store import NUM_REQUESTS, in_parallel


def remove_run(directory: RunDirectory, clock: Clock) -> None:
    """Delete the run, and what is cached of it on this machine. The chain goes last, and of that
    the link that says so. Meanwhile nobody can start the run, and an interrupted deletion can be
    repeated."""
    store = directory.store
    Chain(directory, uuid4().hex).start(stamp(clock.now()), "delete")
    for name in store.children(""):
        if name not in (FOLDER, RECORD):
            store.remove(name)
    store.remove(RECORD)
    *older, last = store.names(FOLDER)
    for _ in in_parallel(store.remove, older, NUM_REQUESTS):
        pass
    store.remove(last)
    if store.is_local:
        with suppress(FileNotFoundError):
            for path in sorted(store.path(FOLDER).iterdir()):
                path.rmdir()
            store.path(FOLDER).rmdir()
            store.path().rmdir()
    else:
        if store.is_served and not store.names(""):
            store.remove("")
        shutil.rmtree(directory.local, ignore_errors=True)
