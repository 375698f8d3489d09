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
    from headway.launch.compiled_code import CompiledCode
    from headway.launch.node_run import NodeSettings
    from headway.launch.supervise import ScriptPlace
    from headway.spec.resolve import Resolved
    from headway.state.run_directory import RunDirectory

STORAGE_SECONDS = 300.0
LOOK_SECONDS = 2.0
TERMINATION_LOG = Path("/dev/termination-log")
"""Kubernetes keeps its content in the status of the pod that ended."""
TERMINATION_BYTES = 4096


def node() -> None:
    """Run one node of a run (used in the pods of headway run --on).

    Configured by HEADWAY_SPEC, HEADWAY_RUN_DIRECTORY, HEADWAY_LAUNCH, HEADWAY_COORDINATOR,
    HEADWAY_KEY, HEADWAY_POD, JOB_COMPLETION_INDEX; for scripts and accelerators, HEADWAY_ADDRESS.
    """
    from headway.clock import SystemClock
    from headway.errors import BadInput, Exit, HeadwayError
    from headway.kube.versions import require_launchers_version
    from headway.launch.nccl_libraries import require_nccl_libraries
    from headway.launch.node_run import NodeRun, NodeSettings
    from headway.state.run_directory import given_spec

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
        require_launchers_version()
        resolved, launch = given_spec(), os.environ.get("HEADWAY_LAUNCH")
        if resolved is None or launch is None:
            raise BadInput(
                "the pod has no HEADWAY_SPEC or HEADWAY_LAUNCH: an older headway created its Job",
                "repeat the command that launched the run: it makes the Job anew and resumes it",
            )
        if resolved.device == "cuda":
            require_nccl_libraries()
        settings = NodeSettings(
            pod=os.environ["HEADWAY_POD"],
            index=int(os.environ["JOB_COMPLETION_INDEX"]),
            launch=launch,
            coordinator=os.environ["HEADWAY_COORDINATOR"],
            key=Path(os.environ["HEADWAY_KEY"]),
            script=_script_place() if resolved.is_script else None,
        )
        directory = _opened(os.environ["HEADWAY_RUN_DIRECTORY"], asked)
        if directory is None:
            raise typer.Exit(int(Exit.STOPPED))
        _fetch(resolved)
        compiled = _compiled_code(directory, settings) if resolved.run.memory.compile else None
        run = NodeRun(resolved, directory, settings, SystemClock(), _say, compiled=compiled)
        if asked:
            run.leave()
        code = run.run()
    except OSError as error:
        # The storage or network of this pod: another pod may do better.
        _leave_words(str(error))
        _say(str(error))
        code = Exit.PEER_LOST
    except HeadwayError as error:
        _leave_words(str(error))
        raise
    raise typer.Exit(int(code))


def _script_place() -> ScriptPlace:
    from headway.kube.names import NODE_FOLDER
    from headway.launch.supervise import ScriptPlace

    return ScriptPlace(Path(NODE_FOLDER, "work"), Path(NODE_FOLDER, "scratch"))


def _leave_words(words: str) -> None:
    with suppress(OSError):
        TERMINATION_LOG.write_bytes(words.encode()[-TERMINATION_BYTES:])


def _opened(location: str, asked: Sequence[int]) -> RunDirectory | None:
    """Waits for storage that is not mounted yet or fails for a moment: that is no error of the run,
    but a store that refuses us is. None if the node is `asked` to leave meanwhile."""
    from headway.clock import SystemClock
    from headway.errors import BadInput, NotFound
    from headway.state.run_directory import RunDirectory, StoreUnreachable

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
            is_final = isinstance(error, BadInput) and not isinstance(error, StoreUnreachable)
            if is_final and "://" in location:
                raise
            if clock.monotonic() > deadline:
                raise OSError(f"waited {STORAGE_SECONDS:.0f} s for {location}: {error}") from None
            if str(error) != said:
                said = str(error)
                _say(f"waiting for the run directory: {said}")
            if asked:
                return None
            clock.sleep(LOOK_SECONDS)


def _fetch(resolved: Resolved) -> None:
    """Copies code, packages, and models that are in a bucket, into folders of this pod. Raises if
    they do not have the digest that the spec names, or if packages are for another Python."""
    from headway.kube.storage_layout import folders_to_fetch
    from headway.launch.packages import python_here, require_worker, unpack_packages
    from headway.launch.upload import fetch
    from headway.state.store import Store

    if resolved.packages_for is not None:
        require_worker(resolved.packages_for, python_here())

    for folder, name in folders_to_fetch(resolved).items():
        _say(f"fetching {name}")
        fetch(Store(os.environ["HEADWAY_STORAGE"]), name, Path(folder))
    if resolved.packages is not None:
        unpack_packages(Path(resolved.packages))


def _compiled_code(directory: RunDirectory, settings: NodeSettings) -> CompiledCode:
    from headway.clock import SystemClock
    from headway.launch.compiled_code import CompiledCode, machine_kind
    from headway.member.protocol.keys import read_key

    return CompiledCode(
        directory.store,
        machine_kind(),
        read_key(settings.key),
        Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]),
        SystemClock(),
        _say,
    )


def _say(words: str) -> None:
    print(words, file=sys.stdout, flush=True)
