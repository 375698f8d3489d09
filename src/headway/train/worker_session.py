"""A worker's session with the coordinator, from the variables that its launcher gives it."""

from __future__ import annotations

import os
from pathlib import Path

from headway.member.protocol.keys import read_key
from headway.member.worker.session import Session
from headway.train.worker_log import log_line


def open_session() -> Session | None:
    """None: the run has no coordinator."""
    address = os.environ.get("HEADWAY_COORDINATOR")
    if address is None:
        return None
    key = read_key(Path(os.environ["HEADWAY_KEY"]))
    run, name = os.environ["HEADWAY_RUN"], os.environ["HEADWAY_POD"]
    return Session(address, key, run, name, log=log_line)
