"""`make bench-reconfigure`: a fresh gloo group for each generation, as Headway makes them, and
torch's experimental way to change one in place (`_reconfigure`), in turns by the same four
processes. At the end one is killed, and the other three continue in place.

Headway does not use it: a collective that hangs in a broken group must end at once, and in place
nothing ends it before its timeout."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

FORMS = int(os.environ.get("FORMS", "100"))
WARMUP = 3
MEMBERS = 4
PATIENCE = timedelta(seconds=10)
WAYS = ("fresh", "in place")


def main() -> int:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = get_context("fork")  # nothing here has threads of gloo or OpenMP yet
    pipes = [context.Pipe() for _ in range(MEMBERS)]
    for rank, (_, theirs) in enumerate(pipes):
        context.Process(target=_work, args=(rank, store.port, theirs), daemon=True).start()
    found = [ours.recv() for ours, _ in pipes]
    is_there = bool(found[0]["in place"])
    after_kill = [ours.recv() for ours, _ in pipes[:-1]] if is_there else None
    # A group is formed when its slowest member has formed it.
    slowest = {way: list(map(max, *(one[way] for one in found))) for way in WAYS}
    seconds = {way: statistics.quantiles(all_, n=4) for way, all_ in slowest.items() if all_}
    line = {
        "name": "bench-reconfigure",
        "figure": round(seconds["in place"][1] / seconds["fresh"][1], 2) if is_there else None,
        "target": None,
        "pass": True,
        "spread": {
            "what": "seconds in place over seconds of a fresh group, to the end of an all-reduce",
            "used": False,
            "seconds": {way: [round(q, 5) for q in three] for way, three in seconds.items()},
            "in_place_after_a_kill": after_kill,
        },
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


def _work(rank: int, port: int, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    standing: Any = None
    if hasattr(c10d, "ReconfigureOptions"):
        place = PrefixStore("standing", store)
        standing = ProcessGroupGloo(place, rank, MEMBERS, PATIENCE, enable_reconfigure=True)
    for number in range(FORMS + WARMUP):
        for way in WAYS if standing else WAYS[:1]:
            _meet(store, f"{way}/{number}")
            began = time.perf_counter()
            if way == "fresh":
                place = PrefixStore(f"fresh/{number}", store)
                group: Any = ProcessGroupGloo(place, rank, MEMBERS, PATIENCE)
            else:
                group = standing
                _reconfigure(group, store, number, rank, MEMBERS)
            group.allreduce([torch.ones(1)]).wait()
            if number >= WARMUP:
                found[way].append(time.perf_counter() - began)
    _meet(store, "end")
    pipe.send(found)
    if standing:
        pipe.send(_after_a_kill(standing, store, rank))


def _after_a_kill(group: Any, store: TCPStore, rank: int) -> str:
    """A sentence about how it ended."""
    if rank == MEMBERS - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.perf_counter()
    try:
        group.allreduce([torch.ones(1)]).wait()
        noticed = "not at all"
    except RuntimeError:
        noticed = f"after {time.perf_counter() - began:.3f} s"
    try:
        _reconfigure(group, store, FORMS + WARMUP, rank, MEMBERS - 1)
        group.allreduce([torch.ones(1)]).wait()
    except RuntimeError as error:
        return f"noticed {noticed}, then failed: {str(error)[:120]}"
    return f"noticed {noticed}, continued after {time.perf_counter() - began:.3f} s"


def _reconfigure(group: ProcessGroupGloo, store: TCPStore, number: int, rank: int, n: int) -> None:
    store.set(f"handle/{number}/{rank}", group.get_reconfigure_handle())
    options = c10d.ReconfigureOptions()
    options.uuid, options.timeout = number + 1, PATIENCE
    options.handles = [store.get(f"handle/{number}/{other}").decode() for other in range(n)]
    group.reconfigure(options).wait()


def _meet(store: TCPStore, name: str) -> None:
    if store.add(f"meet/{name}", 1) == MEMBERS:
        store.set(f"met/{name}", "yes")
    store.get(f"met/{name}")


if __name__ == "__main__":
    sys.exit(main())
