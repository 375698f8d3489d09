"""A worker process: `python -m headway.train RUN_DIRECTORY`, started by a launcher.

The contract with the launcher: the run directory's `spec.json`, or in a pod the file that
HEADWAY_SPEC names; the variables below; signals; and the exit codes of `headway.errors.Exit`.
Whatever goes wrong is on stderr, which the launcher keeps as this worker's log; why it ends is told
to the launcher as well.

    HEADWAY_RANK         number of this worker
    HEADWAY_DEVICE       number of its device on this machine, where it has one
    HEADWAY_STORE        file at which workers meet that stay together until they end
    HEADWAY_GENERATION   without a coordinator: of this start
    HEADWAY_COORDINATOR  host:port, where workers come and go; with it
    HEADWAY_KEY          ... the file of the run's key,
    HEADWAY_RUN          ... the run's name there,
    HEADWAY_POD          ... and this worker's

SIGINT and the end of stdin: stop, and save. SIGTERM: the same; or leave, with a coordinator.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from headway.clock import SystemClock
from headway.errors import Exit, HeadwayError
from headway.member.keys import read_key
from headway.member.session import Session
from headway.spec.resolve import Resolved
from headway.state.rundir import RunDirectory, given_spec
from headway.train.saying import say, say_last

if TYPE_CHECKING:
    from headway.train.preempt import StopRequest
    from headway.train.run import WorkerRun
    from headway.train.world import Place
    from headway.train.worlds import Worlds


def main(arguments: list[str]) -> int:
    clock = SystemClock()
    began = clock.monotonic()
    resolved = given_spec() or RunDirectory.open(arguments[0]).read_spec()
    rank = int(os.environ["HEADWAY_RANK"])
    session = _session()

    from headway.train.preempt import StopRequest

    # Before the imports below, which take seconds: a stop that early is not lost either.
    stop = StopRequest(is_live=session is not None)
    stop.listen()
    stop.follow(sys.stdin.buffer)

    import torch

    from headway.train.allocation import out_of_memory
    from headway.train.loop import train
    from headway.train.peers import is_lost_peer
    from headway.train.run import open_run

    import_seconds = clock.monotonic() - began
    torch.set_num_threads(resolved.threads)
    run: WorkerRun | None = None
    try:
        place, worlds = _place(resolved, rank, session, stop)

        def hangs(times: int) -> None:
            if times == 1 and run is not None:
                note_stuck(run, *divmod(rank, resolved.ranks_per_node), session)
            worlds.hang(times)

        run = open_run(resolved, place, rank, stop, clock, import_seconds, hangs)
        code = train(run, worlds)
        worlds.close("done")
        return code
    except HeadwayError as error:
        say_last(str(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - said here: torch's own hook garbles tracebacks
        step = None if run is None else run.training.step + 1
        if (spent := out_of_memory(error, resolved, step)) is not None:
            say(traceback.format_exc())
            say_last(str(spent))
            return Exit.RUN_FAILED
        say_last(traceback.format_exc())
        return Exit.PEER_LOST if is_lost_peer(error) else Exit.RUN_FAILED


def note_stuck(run: WorkerRun, node: int, local_rank: int, session: Session | None) -> None:
    """Once each time that no step is committed for long. In the watchdog's thread."""
    run.journal.note(
        "stuck",
        step=run.training.step,
        seconds=round(run.watchdog.waited_seconds),
        node=node,
        local_rank=local_rank,
        # Whoever does not wait holds up the others. Without a session nobody knows.
        waits=None if session is None else session.view.status.waits > 0,
    )


def _session() -> Session | None:
    """With the coordinator, if there is one. Opened before the imports: it holds on meanwhile."""
    address = os.environ.get("HEADWAY_COORDINATOR")
    if address is None:
        return None
    key = read_key(Path(os.environ["HEADWAY_KEY"]))
    return Session(address, key, os.environ["HEADWAY_RUN"], os.environ["HEADWAY_POD"])


def _place(
    resolved: Resolved, rank: int, session: Session | None, stop: StopRequest
) -> tuple[Place, Worlds]:
    """Where this worker is, and where its worlds come from."""
    from headway.train.world import device_of, form_world, live_place
    from headway.train.worlds import LiveWorlds, OneWorld

    store, ranks = os.environ.get("HEADWAY_STORE"), resolved.ranks_per_node
    device = device_of(resolved, int(os.environ["HEADWAY_DEVICE"]))
    if session is not None:
        place = live_place(rank % ranks, ranks, device, Path(store) if store else None)
        return place, LiveWorlds(session, place, stop)
    assert store is not None
    world = form_world(
        rank,
        resolved.nodes,
        ranks,
        device,
        resolved.sharded,
        Path(store),
        int(os.environ["HEADWAY_GENERATION"]),
    )
    return world.place, OneWorld(world)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Without the interpreter's tear-down: after a lost peer, gloo's threads can hang in it.
    os._exit(code)
