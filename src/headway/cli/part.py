"""headway part: what a pod that prepares a part of a set runs."""

from __future__ import annotations

import os
import signal
import sys

SHOW_SECONDS = 30.0


def part() -> None:
    """Prepare one part of a set (used in the pods of headway data prepare --on).

    Configured by HEADWAY_DATA, HEADWAY_DATA_PARTS, HEADWAY_DATA_FAILURES, HEADWAY_PROCESSES and
    JOB_COMPLETION_INDEX."""
    from headway.cli.output import say
    from headway.cli.set_preparation import progress_text
    from headway.clock import SystemClock
    from headway.data.prepare.in_parts import prepare_in_parts
    from headway.data.prepare.job_text import job_of_text
    from headway.data.prepare.progress import PrepareProgress
    from headway.kube.data_job import ATTEMPTS
    from headway.kube.versions import require_launchers_version

    # As the first process of a pod it has no default handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    require_launchers_version()
    index = int(os.environ["JOB_COMPLETION_INDEX"])
    num_parts = int(os.environ["HEADWAY_DATA_PARTS"])
    failures = int(os.environ.get("HEADWAY_DATA_FAILURES") or 0)
    processes = os.environ.get("HEADWAY_PROCESSES")
    clock = SystemClock()
    job = job_of_text(os.environ["HEADWAY_DATA"], None if processes is None else int(processes))
    shown = clock.monotonic() - SHOW_SECONDS

    def show(progress: PrepareProgress) -> None:
        nonlocal shown
        if clock.monotonic() - shown >= SHOW_SECONDS:
            shown = clock.monotonic()
            say(progress_text(f"part {index + 1} of {num_parts}", progress))

    say(f"part {index + 1} of {num_parts} of {job.into}")
    made = prepare_in_parts(
        job, index, num_parts, show, clock, say, is_last_attempt=failures + 1 >= ATTEMPTS
    )
    sys.stderr.flush()
    if made is not None:
        say(f"the set is complete: {made.num_documents} documents, {made.num_tokens} tokens")
