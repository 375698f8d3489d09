"""A worker process: `python -m headway.train RUN_DIRECTORY`, started by a launcher.

The contract with the launcher: the run directory's `spec.json`; the variables HEADWAY_RANK,
HEADWAY_STORE and HEADWAY_GENERATION; SIGTERM or the end of stdin to stop; and the exit codes of
`headway.errors.Exit`. Whatever goes wrong is on stderr, which the launcher keeps as this worker's
log.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from headway.clock import SystemClock
from headway.errors import Exit, HeadwayError
from headway.state.rundir import RunDirectory


def main() -> int:
    clock = SystemClock()
    began = clock.monotonic()
    resolved = RunDirectory.open(sys.argv[1]).read_spec()
    rank = int(os.environ["HEADWAY_RANK"])

    from headway.train.preempt import StopRequest

    # Before the imports below, which take seconds: a stop that early is not lost either.
    stop = StopRequest()
    stop.listen()
    stop.follow(sys.stdin.buffer)

    import torch

    from headway.train.loop import train
    from headway.train.peers import is_lost_peer
    from headway.train.world import form_world, leave_world

    import_seconds = clock.monotonic() - began
    torch.set_num_threads(resolved.threads)
    try:
        world = form_world(
            rank,
            resolved.nodes,
            resolved.ranks_per_node,
            resolved.device,
            resolved.sharded,
            Path(os.environ["HEADWAY_STORE"]),
            int(os.environ["HEADWAY_GENERATION"]),
        )
        code = train(resolved, world, stop, clock, import_seconds)
        leave_world(world)
        return code
    except HeadwayError as error:
        _say(str(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - said here: torch's own hook garbles tracebacks
        _say(traceback.format_exc())
        return Exit.PEER_LOST if is_lost_peer(error) else Exit.RUN_FAILED


def _say(words: str) -> None:
    with suppress(OSError):  # the log can be on a disk that is full
        print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main()
    # Without the interpreter's tear-down: after a lost peer, gloo's threads can hang in it.
    os._exit(code)
