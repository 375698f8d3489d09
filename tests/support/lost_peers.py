"""Real errors of torch when a peer, or the store, is gone:

    python -m support.lost_peers FOLDER

Prints for each case its errors as JSON. torch is imported once: the peers are forked.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
)

from headway.errors import PeerLost, RunFailed
from headway.train.collectives import forming_group, is_lost_peer

SOON, LONG = timedelta(seconds=0.3), timedelta(seconds=20)
HOST = "127.0.0.1"


class MortalStore(Store):
    """Kills its process at the given request, which gloo makes while it forms a group: first each
    rank sets its address, then it waits for the others'."""

    def __init__(self, store: Store, dies_at: int) -> None:
        super().__init__()
        self._store, self._left = store, dies_at

    def set(self, key: str, value: Any) -> None:
        self._count()
        self._store.set(key, value)

    def wait(self, keys: Sequence[str], timeout: timedelta = LONG) -> None:
        self._count()
        self._store.wait(list(keys), timeout)

    def get(self, key: str) -> bytes:
        self._count()
        return self._store.get(key)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            die()


class Cases:
    """Each of them ends with the errors that it provokes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def peer_killed_in_all_reduce(self) -> list[Exception]:
        path = self._path()

        def peer() -> None:
            group = gloo(file_store(path), 1)
            time.sleep(0.2)
            die()
            del group

        with forked(peer):
            group = gloo(file_store(path), 0)
            return errors_of(group.allreduce([torch.ones(4)]).wait)

    def peer_hangs_in_two_all_reduces(self) -> list[Exception]:
        path = self._path()

        def peer() -> None:
            group = gloo(file_store(path), 1)
            time.sleep(20)
            del group

        with forked(peer):
            group = gloo(file_store(path), 0)
            group.set_timeout(SOON)
            works = [group.allreduce([torch.ones(4)]) for _ in range(2)]
            return errors_of(works[0].wait, works[1].wait)

    def peer_killed_before_it_has_an_address(self) -> list[Exception]:
        return self._peer_killed_while_forming(0, SOON)

    def peer_killed_before_it_connects(self) -> list[Exception]:
        return self._peer_killed_while_forming(1, LONG)

    def _peer_killed_while_forming(self, dies_at: int, patience: timedelta) -> list[Exception]:
        path = self._path()
        with forked(lambda: gloo(MortalStore(file_store(path), dies_at), 1)) as peer:
            os.waitpid(peer, 0)
            store = file_store(path)
            store.set_timeout(patience)
            return errors_of(lambda: gloo(store, 0, SOON))

    def key_that_is_never_set(self) -> list[Exception]:
        stores = [file_store(self._path()), TCPStore(HOST, 0, 2, True, wait_for_workers=False)]
        for store in stores:
            store.set_timeout(SOON)
        return errors_of(*(lambda store=store: store.get("key") for store in stores))

    def store_killed(self) -> list[Exception]:
        with served() as (store, server):
            store.set("key", "value")
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            return errors_of(lambda: store.get("key"), lambda: store.set("key", "value"))

    def store_killed_while_forming(self) -> list[Exception]:
        def kill() -> None:
            time.sleep(0.3)
            os.kill(server, signal.SIGKILL)

        with served() as (store, server), forked(kill):
            return errors_of(lambda: gloo(store, 0))

    def store_that_is_not_there(self) -> list[Exception]:
        with served() as (store, server):
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            return errors_of(
                lambda: TCPStore(HOST, store.port, 2, False, SOON, wait_for_workers=False)
            )

    def interface_that_is_not_there(self) -> list[Exception]:
        return errors_of(lambda: ProcessGroupGloo.create_device(interface="nosuch0"))

    def _path(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder), "store")


def file_store(path: Path) -> FileStore:
    return FileStore(str(path), 2)


def gloo(store: Store, rank: int, timeout: timedelta = LONG) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(interface="lo")]
    options._timeout = timeout
    return ProcessGroupGloo(store, rank, 2, options)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def forked(run: Callable[[], object]) -> Iterator[int]:
    """A process of its own, which is killed at the end."""
    process = os.fork()
    if process == 0:
        try:
            run()
        finally:
            os._exit(0)
    try:
        yield process
    finally:
        if process in children():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def children() -> list[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(process) for process in listed.split()]


@contextmanager
def served() -> Iterator[tuple[TCPStore, int]]:
    """A client of a store that another process serves, and that process."""
    reading, writing = os.pipe()

    def serve() -> None:
        store = TCPStore(HOST, 0, 2, True, wait_for_workers=False)
        os.write(writing, str(store.port).encode())
        time.sleep(20)

    with forked(serve) as server:
        port = int(os.read(reading, 16))
        yield TCPStore(HOST, port, 2, False, LONG, wait_for_workers=False), server


def errors_of(*calls: Callable[[], object]) -> list[Exception]:
    errors = []
    for call in calls:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - what they are is the question
            errors.append(error)
    return errors


def facts(error: Exception) -> dict[str, object]:
    """What torch raised, and what Headway takes it for."""
    try:
        with forming_group():
            raise error
    except PeerLost:
        while_forming = "lost"
    except (RunFailed, RuntimeError):
        while_forming = "failed"
    return {
        "type": type(error).__name__,
        "words": str(error),
        "is_lost_peer": is_lost_peer(error),
        "while_forming": while_forming,
    }


def provoked(case: Callable[[], list[Exception]]) -> list[dict[str, object]]:
    """What a case ends with, in a process of its own: it forks others, which would inherit locks
    that the gloo threads of earlier cases hold."""
    reading, writing = os.pipe()

    def report() -> None:
        found = json.dumps([facts(error) for error in case()])
        with os.fdopen(writing, "w") as pipe:
            pipe.write(found)
        os._exit(0)  # gloo's threads still wait for the dead

    with forked(report), os.fdopen(reading) as pipe:
        os.close(writing)
        found: list[dict[str, object]] = json.loads(pipe.read())
        return found


def main(folder: str) -> None:
    cases = Cases(Path(folder))
    names = [name for name in vars(Cases) if not name.startswith("_")]
    print(json.dumps({name: provoked(getattr(cases, name)) for name in names}))


if __name__ == "__main__":
    main(sys.argv[1])
