"""Whether this worker can leave a group in which it waits, as live recovery needs.

gloo offers no way out of a collective that waits for a live member. Headway shuts the connections
below it, which it finds by addresses that gloo publishes in a format of its own (session_store).
Nobody promises that format. So a worker tries it when it starts, in a few milliseconds, on a group
of two ranks inside its process.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from headway.train.session_store import gloo_group, shut_connections

CONNECT_TIMEOUT = timedelta(seconds=2)
LEAVE_TIMEOUT = timedelta(seconds=5)
"""For a collective to end whose connections are shut. It takes 2 ms, but machines stand still. One
that nobody ends is given up by the group itself much later, or it would look as if it had ended."""
KEYS = ("0/0", "0/1")
"""Where gloo publishes the addresses of two ranks."""


def why_groups_cannot_be_left() -> str | None:
    """Return None if they can be left. A group that does not form is not judged here: that of the
    run will not form either, and says why."""
    store = HashStore()

    def form(rank: int) -> dist.ProcessGroup:
        return gloo_group(store, rank, len(KEYS), CONNECT_TIMEOUT, 5 * LEAVE_TIMEOUT)

    try:
        with ThreadPoolExecutor(len(KEYS)) as pool:
            waiting, _other = pool.map(form, range(len(KEYS)))
    except RuntimeError:
        return None
    if not store.check(list(KEYS)):
        return "gloo does not publish its addresses where Headway reads them"
    work = waiting.allreduce([torch.ones(1)])
    shut_connections({key: store.get(key) for key in KEYS}, rank=0)
    with suppress(RuntimeError):
        work.wait(LEAVE_TIMEOUT)
    if work.is_completed():
        return None
    return "a collective of gloo goes on waiting when Headway shuts its connections"
