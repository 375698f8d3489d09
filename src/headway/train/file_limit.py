"""The limit of open files of a worker, which its connections to the others count against."""

from __future__ import annotations

import resource

from headway.errors import BadInput

SPARE_FILES = 256
"""Open files of a worker besides its connections in groups: data, logs, sockets."""


def raise_file_limit(num_workers: int, num_connections: int) -> None:
    """Raise the limit so far that this worker of so many can have these connections, or refuse."""
    wanted = num_connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise BadInput(
            f"a group of {num_workers} workers needs {wanted} open files in each, and this machine "
            f"allows {hard}",
            "raise the limit where containers or logins get theirs (LimitNOFILE, ulimit -Hn), or "
            "train with fewer workers",
        )
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
