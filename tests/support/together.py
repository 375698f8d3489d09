"""Workers of one group as threads of this process: a rank each, over real gloo.

Where one ends with an error, or has lost a peer, the connections of the group are shut, as each
worker's watching thread does it in a run: gloo lets others wait for one that waits no longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Generic, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import HashStore, ProcessGroupGloo  # type: ignore[attr-defined]

from headway.errors import PeerLost
from headway.train.collectives import WorkerGroup
from headway.train.session_store import Group

Result = TypeVar("Result")
TIMEOUT = timedelta(seconds=8)


class Died(Exception):
    """Raised by a worker of a test where its process would end without a word."""


class _Workers(Generic[Result]):
    def __init__(self, size: int, timeout: timedelta) -> None:
        self.store = HashStore()
        self.size, self.timeout = size, timeout
        self.outcomes: dict[int, Result | Exception] = {}
        self.open: list[WorkerGroup] = []
        """Others may still read what somebody has sent who is done."""
        self.have_formed = threading.Barrier(size)

    def run(self, rank: int, work: Callable[[WorkerGroup], Result]) -> None:
        group = WorkerGroup(group_of(self.store, rank, self.size, self.timeout))
        self.open.append(group)
        self.have_formed.wait(TIMEOUT.total_seconds())
        try:
            outcome: Result | Exception = work(group)
        except Exception as error:  # noqa: BLE001 - an outcome like any other
            outcome = error.with_traceback(None)  # which would hold on to the group
        if isinstance(outcome, Died | PeerLost):
            shut(self.store, rank, self.size)
        self.outcomes[rank] = outcome


def outcomes(
    size: int, work: Callable[[WorkerGroup], Result], timeout: timedelta = TIMEOUT
) -> list[Result | Exception]:
    """What `work` returns on each rank, or the error it ended with. A collective that takes longer
    than `timeout` fails."""
    workers: _Workers[Result] = _Workers(size, timeout)
    threads = [threading.Thread(target=workers.run, args=(rank, work)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT.total_seconds())
    assert len(workers.outcomes) == size, f"only {sorted(workers.outcomes)} of {size} came back"
    return [workers.outcomes[rank] for rank in range(size)]


def together(size: int, work: Callable[[WorkerGroup], Result]) -> list[Result]:
    """What `work` returns on each rank. Nobody may fail."""
    found: list[Result] = []
    for outcome in outcomes(size, work):
        if isinstance(outcome, Exception):
            raise outcome
        found.append(outcome)
    return found


def group_of(
    store: HashStore, rank: int, size: int, timeout: timedelta = TIMEOUT
) -> dist.ProcessGroup:
    """COLLECTIVE. One rank's side of a group that meets at `store`."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(interface="lo")]
    options._timeout = TIMEOUT
    backend = ProcessGroupGloo(store, rank, size, options)
    backend.set_timeout(timeout)
    group = dist.ProcessGroup(store, rank, size)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


def shut(store: HashStore, rank: int, size: int) -> None:
    """By the addresses that gloo has put into the store."""
    addresses = {f"0/{one}": store.get(f"0/{one}") for one in range(size)}
    found = SimpleNamespace(values=addresses, generation=0)
    nothing = SimpleNamespace(size=lambda: size)
    Group(cast(Any, nothing), cast(Any, found), rank).drop()
