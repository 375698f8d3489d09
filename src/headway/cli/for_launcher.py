"""Resolves the run file for all nodes, for a worker that another launcher has started: the first of
each node. Data and packages are then on that node. It is a process of its own, without torch:

    python -m headway.cli.for_launcher INTO NODES RANKS begins|joins RUN_FILE [KEY=VALUE ...]

RANKS are those of a node. It writes the resolved run to the file INTO. With `begins` it also makes
the run directory; if nothing is left to train, it exits without that file.
"""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.output import say
from headway.errors import BadInput, Exit, HeadwayError, SpecError

if TYPE_CHECKING:
    from headway.spec.load import Loaded
    from headway.spec.resolve import Hardware


def main(arguments: list[str]) -> Exit:
    into, nodes, ranks, part, run_file, *overrides = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker is told, too, and ends this one
    try:
        _resolve(Path(into), int(nodes), int(ranks), part == "begins", run_file, overrides)
    except HeadwayError as error:
        for line in f"error: {error}".splitlines():
            say(line)
        return error.exit_code
    return Exit.DONE


def _resolve(
    into: Path, nodes: int, ranks: int, begins: bool, run_file: str, overrides: list[str]
) -> None:
    from headway.cli.preflight import require_trainable_here, warn_of_run_file
    from headway.cli.restart_check import is_left_to_train
    from headway.cli.run import note_start, resolved_here
    from headway.clock import SystemClock
    from headway.launch.hardware import this_machine
    from headway.spec.load import load_run
    from headway.spec.resolve import require_complete, run_directory
    from headway.state.run_directory import RunDirectory, spec_text

    loaded = load_run(run_file, overrides)
    require_complete(loaded)
    require_trainable_here(loaded)
    location = run_directory(loaded)
    if begins:
        warn_of_run_file(loaded)
        if not is_left_to_train(location, loaded.run, extend=False):
            return
    here = this_machine()
    loaded = as_launched(loaded, ranks, here)
    machine = together(here, nodes)
    with ExitStack() as background:
        resolved, code = resolved_here(
            loaded, machine, nodes, location, background, is_one_host=nodes == 1
        )
        if begins:
            RunDirectory.create(location, SystemClock())
            note_start(loaded, resolved, code)
        new = into.with_suffix(".new")
        new.write_text(spec_text(resolved))
        new.replace(into)
        if loaded.run.data.train is not None and loaded.run.data.train.is_streamed:
            sys.stdin.buffer.read()  # the set is prepared until the worker ends


def together(machine: Hardware, nodes: int) -> Hardware:
    """The hardware of that many machines like this one."""
    memory = machine.memory_bytes
    return machine.model_copy(
        update={
            "cores": machine.cores * nodes,
            "cuda_devices": machine.cuda_devices * nodes,
            "memory_bytes": None if memory is None else memory * nodes,
        }
    )


def as_launched(loaded: Loaded, ranks: int, machine: Hardware) -> Loaded:
    """The run as another launcher starts it: with a worker for each of its processes, and all of
    them restarted after a loss."""
    from headway.spec.quantities import Accelerators

    run = loaded.run
    if run.command is not None:
        raise BadInput(
            "the run file has a `command`: its script is started by your launcher itself",
            "headway run starts it under Headway's",
        )
    if run.elastic == "live":
        raise SpecError(
            "elastic: live needs Headway's own launcher: any other restarts all workers",
            str(loaded.located.mark(("elastic",))),
            "--set elastic=restart, or headway run",
        )
    wanted = run.resources.accelerators
    if machine.cuda_devices == 0 and (wanted is None or wanted.is_cpu):
        wanted = Accelerators("cpu", ranks)
    else:
        wanted = Accelerators("gpu", ranks) if wanted is None else replace(wanted, count=ranks)
    resources = run.resources.model_copy(update={"accelerators": wanted})
    changed = run.model_copy(update={"resources": resources, "elastic": "restart"})
    return replace(loaded, run=changed)


if __name__ == "__main__":
    sys.exit(int(main(sys.argv[1:])))
