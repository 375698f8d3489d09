"""A worker process, `python -m headway.train`, started by a launcher: by Headway's own as is said
here, by any other as `headway.train.other_launcher` says.

The contract with the launcher: the variables below; signals; and the exit codes of
`headway.errors.Exit`.
Errors go to stderr, which the launcher keeps as this worker's log; the launcher is also told the
reason of the exit.

    HEADWAY_SPEC         file with the resolved run; others may write the one in its directory
    HEADWAY_RANK         number of this worker
    HEADWAY_LAUNCH       token of the start that it belongs to
    HEADWAY_DEVICE       number of its device on this machine, if it has one
    HEADWAY_STEPS        file in which it records the steps it takes, for its launcher
    HEADWAY_STORE        file at which workers of a fixed group rendezvous
    HEADWAY_GENERATION   generation of this start, without a coordinator
    HEADWAY_COORDINATOR  host:port of the coordinator, if there is one; with it
    HEADWAY_KEY          ... the file with the run's key,
    HEADWAY_RUN          ... the run's name there,
    HEADWAY_POD          ... and this worker's
    HEADWAY_ADDRESS      address at which other nodes reach this one (not on a cluster's CPUs)

SIGINT and end-of-file on stdin: save and stop. SIGTERM: the same; with a coordinator, leave.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headway.clock import SystemClock
from headway.errors import Exit, HeadwayError, PeerLost, Stopped
from headway.member.worker.session import Session
from headway.member.worker.session_view import SessionError
from headway.state.run_directory import GIVEN_SPEC
from headway.train.start import own_start
from headway.train.stop_request import StopRequest
from headway.train.worker_log import log_exit_reason, log_line
from headway.train.worker_session import open_session

if TYPE_CHECKING:
    import torch

    from headway.spec.resolve import Resolved
    from headway.train.restart import RestartWorlds
    from headway.train.start import Start
    from headway.train.worker_run import WorkerRun
    from headway.train.world import RankPlacement, World, WorldSource


def main(arguments: list[str]) -> int:
    clock = SystemClock()
    is_ours = GIVEN_SPEC in os.environ
    # Before the imports, which take seconds: it is kept alive during them, and a request to stop
    # that early is not lost.
    session = open_session() if is_ours else None
    stop = StopRequest(is_live=session is not None)
    stop.listen()
    if is_ours:
        stop.follow(sys.stdin.buffer)
    else:
        stop.follow_parent()
    held = ExitStack()
    start: Start | None = None
    run: WorkerRun | None = None
    restart: RestartWorlds | None = None
    try:
        began = clock.monotonic()
        if is_ours:
            start = own_start()
        else:
            from headway.train.other_launcher import started_by_other

            start = started_by_other(arguments, clock, stop, held)  # COLLECTIVE
            began = clock.monotonic()
        resolved = start.resolved

        import torch

        from headway.train.loop import train
        from headway.train.worker_run import open_run

        seconds = {"import": clock.monotonic() - began}
        torch.set_num_threads(resolved.threads)
        if session is not None and not resolved.is_live:
            from headway.train.restart import RestartWorlds

            restart = RestartWorlds(session, stop)
        placement, worlds = _placement(start, session, stop, seconds, restart, is_ours)

        def on_hang(times: int) -> None:
            assert start is not None
            if times <= 1 and run is not None:
                note_stuck(run, start.rank, _waits(resolved, session, worlds))
            worlds.report_hang(times)

        run = open_run(
            resolved,
            placement,
            worker_number=start.rank,
            launch=start.launch,
            stop=stop,
            clock=clock,
            seconds=seconds,
            on_hang=on_hang,
            steps_file=start.steps_file,
            shares_log=not is_ours,
        )
        code = exit_code_of(train(run, worlds), worlds)
        worlds.close("done")
        return code
    except HeadwayError as error:
        if isinstance(error, PeerLost) and restart is not None:
            restart.wait_for_decision()
        log_exit_reason(str(error))
        if start is not None and not isinstance(error, Stopped):
            start.note_failure(None if isinstance(error, PeerLost) else str(error))
        return error.exit_code
    # Logged here: torch's own hook garbles tracebacks. The user's code may call sys.exit.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return _failed(error, start, run, restart)
    finally:
        held.close()


def _failed(
    error: BaseException,
    start: Start | None,
    run: WorkerRun | None,
    restart: RestartWorlds | None,
) -> Exit:
    """Logs why this worker ends by an error, and returns whether it was lost or has failed."""
    from headway.train.broken_device import broken_device
    from headway.train.collectives import is_lost_peer
    from headway.train.missing_compiler import missing_compiler
    from headway.train.out_of_memory import out_of_memory
    from headway.train.own_code_error import own_code_error

    step = None if run is None else run.training.step + 1
    if (broken := broken_device(error)) is not None:
        log_line(traceback.format_exc())
        log_exit_reason(broken)
        return Exit.DEVICE_LOST
    if is_lost_peer(error):
        if restart is not None:
            restart.wait_for_decision()
        log_exit_reason(traceback.format_exc())
        if start is not None:
            start.note_failure(None)
        return Exit.PEER_LOST
    known = None
    if start is not None:
        known = (
            out_of_memory(error, start.resolved, step)
            or missing_compiler(error)
            or own_code_error(
                error, start.resolved, step, run.training.feed.set.vocab_size if run else None
            )
        )
    if known is not None:
        log_line(traceback.format_exc())
    words = str(known) if known is not None else traceback.format_exc()
    log_exit_reason(words)
    if start is not None:
        start.note_failure(words)
    return Exit.RUN_FAILED


def exit_code_of(code: Exit, worlds: WorldSource) -> Exit:
    """After training: a run that is finished needs no successor of this worker."""
    if code == Exit.DONE or worlds.exit_code is None:
        return code
    return worlds.exit_code


def _waits(resolved: Resolved, session: Session | None, worlds: WorldSource) -> bool | None:
    """Whether this worker waits for others in a collective: one that does not blocks them."""
    from headway.train.live import SLOW_COLLECTIVE_SECONDS
    from headway.train.restart import RestartWorlds
    from headway.train.world import OneWorld

    if resolved.copy_nodes is not None and resolved.device != "cpu":
        return None  # its device may wait in a collective of FSDP2's
    if isinstance(worlds, OneWorld | RestartWorlds):
        return worlds.timer.seconds >= SLOW_COLLECTIVE_SECONDS
    return None if session is None else session.view.status.waits > 0


def note_stuck(run: WorkerRun, rank: int, waits: bool | None) -> None:
    """Records a hang, once for each time that no step is committed for long. In the watchdog's
    thread."""
    from headway.train.flight_recorder import collective_numbers

    node, local_rank = divmod(rank, run.training.resolved.ranks_per_node)
    run.journal.note(
        "stuck",
        step=run.training.step,
        seconds=round(run.watchdog.waited_seconds),
        node=node,
        local_rank=local_rank,
        waits=waits,
        collectives=collective_numbers(),
    )


def _placement(
    start: Start,
    session: Session | None,
    stop: StopRequest,
    seconds: dict[str, float],
    restart: RestartWorlds | None = None,
    is_ours: bool = True,
) -> tuple[RankPlacement, WorldSource]:
    """This worker's device and position, and the source of its worlds. COLLECTIVE, unless it is
    alone. `is_ours`: Headway's own launcher has started it. `seconds`: gets what the parts
    take, as far as a restart has them."""
    from headway.train.collectives import WaitTimer
    from headway.train.device import device_of
    from headway.train.leaving_groups import why_groups_cannot_be_left
    from headway.train.live import LiveWorlds
    from headway.train.precision import require_precision
    from headway.train.world import (
        OneWorld,
        WorldOfLauncher,
        WorldShape,
        form_world,
        live_placement,
    )

    resolved, ranks = start.resolved, start.resolved.ranks_per_node
    began = time.monotonic()
    device = device_of(resolved, start.device)
    seconds["device"] = time.monotonic() - began
    require_precision(resolved.run.precision, device)
    if restart is not None:
        began = time.monotonic()
        world = _form_over_session(resolved, device, restart)
        seconds["place"] = restart.place_seconds
        seconds["form"] = time.monotonic() - began - restart.place_seconds
        restart.begin(world)
        return world.placement, restart
    if session is not None:
        restarts_because = why_groups_cannot_be_left()
        if restarts_because is not None:
            log_line(f"restarts if it waits when a loss ends its group: {restarts_because}")
        placement = live_placement(
            local_rank=start.rank % ranks,
            domain_size=ranks,
            device=device,
            store=start.store,
        )
        return placement, LiveWorlds(session, placement, stop, restarts_because)
    assert start.store is not None
    assert start.generation is not None
    timer = WaitTimer()
    world = form_world(
        rank=start.rank,
        shape=WorldShape(resolved.nodes, ranks, resolved.copy_nodes),
        device=device,
        store=start.store,
        generation=start.generation,
        monitor=timer,
    )
    start.on_formed()
    worlds = OneWorld(world, timer) if is_ours else WorldOfLauncher(world, timer, stop)
    return world.placement, worlds


def _form_over_session(resolved: Resolved, device: torch.device, restart: RestartWorlds) -> World:
    """COLLECTIVE. The world of the generation in which this worker gets a place."""
    from headway.train.world import WorldShape, form_world
    from headway.train.world_store import world_store

    generation = restart.wait_for_place()
    rank, num_workers = restart.place()
    ranks = resolved.ranks_per_node
    shape = WorldShape(num_workers // ranks, ranks, resolved.copy_nodes)
    try:
        return form_world(
            rank=rank,
            shape=shape,
            device=device,
            store=world_store(restart.session, generation.number, rank, shape, device),
            generation=generation.number,
            monitor=restart.timer,
        )
    except SessionError as error:
        raise PeerLost(f"the workers did not meet: {error.message}") from error


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Without the interpreter's tear-down: after a lost peer, gloo's threads can hang in it.
    os._exit(code)
