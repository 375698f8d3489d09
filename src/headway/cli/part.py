"""headway part: what a pod that prepares a part of a set runs."""

from __future__ import annotations

import os
import signal
import sys
from threading import Thread

SHOW_SECONDS = 30.0


def part() -> None:
    """Prepare one part of a set (used in the pods of headway data prepare --on).

    Configured by HEADWAY_DATA, HEADWAY_DATA_PARTS, HEADWAY_DATA_NODES, HEADWAY_PROCESSES and
    JOB_COMPLETION_INDEX."""
    from headway.cli.output import say
    from headway.cli.set_preparation import progress_text
    from headway.clock import SystemClock
    from headway.data.prepare.in_parts import Attempts, PreparationFailed, prepare_in_parts
    from headway.data.prepare.job_text import job_of_text
    from headway.data.prepare.progress import PrepareProgress
    from headway.kube.data_job import GRACE_SECONDS
    from headway.kube.versions import require_launchers_version
    from headway.state.store import Store

    require_launchers_version()
    index = int(os.environ["JOB_COMPLETION_INDEX"])
    num_parts = int(os.environ["HEADWAY_DATA_PARTS"])
    nodes = int(os.environ["HEADWAY_DATA_NODES"])
    processes = os.environ.get("HEADWAY_PROCESSES")
    clock = SystemClock()
    job = job_of_text(os.environ["HEADWAY_DATA"], None if processes is None else int(processes))
    attempts = Attempts(Store(job.into), index)
    shown = clock.monotonic() - SHOW_SECONDS

    def end(*_: object) -> None:
        # In a thread, since this may interrupt a write that holds a lock.
        taken_back = Thread(target=attempts.take_back, daemon=True)
        taken_back.start()
        taken_back.join(GRACE_SECONDS / 2)
        os._exit(128 + signal.SIGTERM)

    # The first process of a pod has no default handler.
    signal.signal(signal.SIGTERM, end)

    def show(progress: PrepareProgress) -> None:
        nonlocal shown
        if clock.monotonic() - shown >= SHOW_SECONDS:
            shown = clock.monotonic()
            say(progress_text(f"part {index + 1} of {num_parts}", progress))

    say(f"part {index + 1} of {num_parts} of {job.into}")
    try:
        made = prepare_in_parts(job, index, num_parts, nodes, show, clock, say, attempts)
    except PreparationFailed as failed:
        say(f"the preparation has failed: {failed}")
        return
    sys.stderr.flush()
    if made is not None:
        say(f"the set is complete: {made.num_documents} documents, {made.num_tokens} tokens")
