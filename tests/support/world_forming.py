"""Real processes that form one restart world over the real coordinator, and count what they ask the
stores for."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headway.member.coordinator.rules import Rules
from headway.member.protocol.messages import StoreAnswer, StoreRequest
from headway.member.worker.session import Session
from support.forming import RUN, coordinator

TOGETHER_SECONDS = 1200.0


@dataclass(frozen=True)
class Formed:
    """What forming took one member."""

    rank: int
    session_requests: int
    store_requests: int
    """Requests to the store that the first rank serves."""
    seconds: float
    open_files: int
    groups: list[int]
    """Sizes of its process groups."""


class CountingSession(Session):
    num_asked = 0

    def ask(
        self, generation: int, make: Callable[[int], StoreRequest], seconds: float, what: str
    ) -> StoreAnswer:
        self.num_asked += 1
        return super().ask(generation, make, seconds, what)


def counting(inner: Any) -> Any:
    """A store that counts the requests to another one."""
    from torch.distributed import Store  # type: ignore[attr-defined]

    class CountingStore(Store):
        num_asked = 0

        def _count(self) -> Any:
            self.num_asked += 1
            return inner

        def set(self, key: str, value: str | bytes) -> None:
            self._count().set(key, value)

        def get(self, key: str) -> bytes:
            return bytes(self._count().get(key))

        def add(self, key: str, amount: int) -> int:
            return int(self._count().add(key, amount))

        def check(self, keys: Sequence[str]) -> bool:
            return bool(self._count().check(keys))

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            self._count().wait(keys, *([timeout] if timeout else []))

        def multi_get(self, keys: Sequence[str]) -> list[bytes]:
            return list(self._count().multi_get(keys))

        def has_extended_api(self) -> bool:
            return bool(inner.has_extended_api())

    return CountingStore()


def _form(
    pipe: Connection,
    address: str,
    key: bytes,
    name: str,
    shape: tuple[int, int, int | None],
    on_accelerators: bool,
) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HEADWAY_ADDRESS": "127.0.0.1"}
    import torch
    import torch.distributed as dist

    from headway.train.world import WorldShape, form_world
    from headway.train.world_store import world_store

    torch.set_num_threads(1)
    wanted = WorldShape(*shape)
    session = CountingSession(address, key, RUN, name)
    session.be_ready()
    session.wait_for("a generation", lambda view: view.domain is not None, TOGETHER_SECONDS)
    generation = session.enter()
    session.wait_for("all others", lambda view: view.may_form, TOGETHER_SECONDS)
    workers = list(generation.workers())
    assert len(workers) == wanted.num_workers
    rank = workers.index(session.name)
    began = time.monotonic()
    device = torch.device("cuda" if on_accelerators else "cpu")
    store = world_store(session, generation.number, rank, wanted, device)
    counted: Any = counting(store) if on_accelerators else store
    world = form_world(
        rank=rank,
        shape=wanted,
        device=torch.device("cpu"),
        store=counted,
        generation=generation.number,
    )
    seconds = time.monotonic() - began
    total = world.control_all_reduce([rank])
    assert total == [sum(range(wanted.num_workers))]
    pipe.send(
        Formed(
            rank=rank,
            session_requests=session.num_asked,
            store_requests=counted.num_asked if on_accelerators else 0,
            seconds=seconds,
            open_files=len(os.listdir("/proc/self/fd")),
            groups=sorted(group.size() for group in dist.distributed_c10d._world.pg_map),
        )
    )
    pipe.recv()  # until it is killed: the first rank serves the others' store


def form_a_world(
    folder: Path, shape: tuple[int, int, int | None], *, on_accelerators: bool = False
) -> list[Formed]:
    """Return what forming took each member, by rank. The shape: nodes, ranks of each, nodes of a
    copy. On accelerators gloo stands for NCCL, which needs devices."""
    size = shape[0] * shape[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headway.train.world_store", "support.world_forming"])
    rules = Rules(
        max_domains=size,
        gather_seconds=TOGETHER_SECONDS,
        # Many processes on few cores: nobody is lost by being slow.
        silence_seconds=TOGETHER_SECONDS,
        suspected_seconds=TOGETHER_SECONDS,
        enter_seconds=TOGETHER_SECONDS,
        idle_enter_seconds=TOGETHER_SECONDS,
    )
    members = []
    with coordinator(folder, rules) as (address, key):
        try:
            for index in range(size):
                ours, theirs = context.Pipe()
                arguments = (theirs, address, key, f"member-{index}", shape, on_accelerators)
                process = context.Process(target=_form, args=arguments)
                process.start()
                theirs.close()
                members.append((process, ours))
            formed: list[Formed] = [pipe.recv() for _, pipe in members]
            return sorted(formed, key=lambda one: one.rank)
        finally:
            for process, pipe in members:
                process.kill()
                process.join(10.0)
                pipe.close()
