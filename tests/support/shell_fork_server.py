"""A fork server whose workers are lines of shell, all else is real:
`python shell_fork_server.py SCRIPT RUN_DIRECTORY`. They report last words in the file $WORDS."""

from __future__ import annotations

import os
import sys

from headway.train import worker_log
from headway.train.fork_server import serve


def run(arguments: list[str]) -> int:
    assert worker_log.exit_reason_pipe is not None
    os.set_inheritable(worker_log.exit_reason_pipe, True)
    os.environ["WORDS"] = f"/proc/self/fd/{worker_log.exit_reason_pipe}"
    os.execv("/bin/sh", ["/bin/sh", "-c", sys.argv[1], *arguments])


if __name__ == "__main__":
    serve(run)
