"""headway node: what a worker's pod runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from headway.spec.resolve import Resolved
    from headway.state.rundir import RunDirectory

STORAGE_SECONDS = 300.0
LOOK_SECONDS = 2.0
TERMINATION_LOG = Path("/dev/termination-log")
"""Kubernetes keeps what is in it with the pod's end."""
TERMINATION_BYTES = 4096


def node() -> None:
    """Be one node of a run, in a pod that headway run --on has made; you need not.

    Its run is in HEADWAY_SPEC, its place in HEADWAY_RUN_DIRECTORY, HEADWAY_COORDINATOR,
    HEADWAY_KEY, HEADWAY_POD and JOB_COMPLETION_INDEX."""
    from headway.clock import SystemClock
    from headway.errors import BadInput, Exit, HeadwayError
    from headway.launch.node import NodeRun, Place
    from headway.state.rundir import given_spec

    place = Place(
        pod=os.environ["HEADWAY_POD"],
        index=int(os.environ["JOB_COMPLETION_INDEX"]),
        coordinator=os.environ["HEADWAY_COORDINATOR"],
        key=Path(os.environ["HEADWAY_KEY"]),
    )
    # Before anything that takes long: as the first process of a pod it has no default handler.
    asked: list[int] = []
    run: NodeRun | None = None

    def leave(number: int, _: object) -> None:
        asked.append(number)
        if run is not None:
            run.leave()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    try:
        resolved = given_spec()
        if resolved is None:
            raise BadInput(
                "the pod has no HEADWAY_SPEC: its Job was made by an older headway",
                "run headway run --on TARGET again: it recreates the Job and resumes the run",
            )
        directory = _opened(os.environ["HEADWAY_RUN_DIRECTORY"], asked)
        if directory is None:
            raise typer.Exit(int(Exit.STOPPED))
        _fetch(resolved)
        run = NodeRun(resolved, directory, place, SystemClock(), _say)
        if asked:
            run.leave()
        code = run.run()
    except OSError as error:
        # Of this pod's storage or network: another pod may have a better one.
        _leave_words(str(error))
        _say(str(error))
        code = Exit.PEER_LOST
    except HeadwayError as error:
        _leave_words(str(error))
        raise
    raise typer.Exit(int(code))


def _leave_words(words: str) -> None:
    with suppress(OSError):
        TERMINATION_LOG.write_bytes(words.encode()[-TERMINATION_BYTES:])


def _opened(location: str, asked: Sequence[int]) -> RunDirectory | None:
    """Storage that is not there yet, or not now, is no error of the run. None when the node is
    `asked` to leave meanwhile."""
    from headway.clock import SystemClock
    from headway.errors import BadInput, NotFound
    from headway.state.rundir import RunDirectory

    clock = SystemClock()
    deadline = clock.monotonic() + STORAGE_SECONDS
    said = ""
    while True:
        try:
            directory = RunDirectory.open(location)
            if not directory.has_spec():
                raise NotFound(f"run {directory.name} has not been launched yet")
            return directory
        except (BadInput, NotFound, OSError) as error:
            if clock.monotonic() > deadline:
                raise OSError(f"waited {STORAGE_SECONDS:.0f} s for {location}: {error}") from None
            if str(error) != said:
                said = str(error)
                _say(f"waiting for the run directory: {said}")
            if asked:
                return None
            clock.sleep(LOOK_SECONDS)


def _fetch(resolved: Resolved) -> None:
    """Code, and models that are in a bucket: as folders of this pod, and only what has the digest
    that the spec names."""
    from headway.kube.delivery import fetched_from
    from headway.launch.delivering import fetch
    from headway.state.store import Store

    for folder, name in fetched_from(resolved).items():
        _say(f"fetching {name}")
        fetch(Store(os.environ["HEADWAY_STORAGE"]), name, Path(folder))


def _say(words: str) -> None:
    print(words, file=sys.stdout, flush=True)
