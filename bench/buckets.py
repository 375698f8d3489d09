"""`make bench-buckets`: seconds to all-reduce gradients of 64 MiB over gloo, by number of processes
on this machine and size of the buckets, two buckets at a time as torch does. Ends with one line of
JSON.

Real: processes, gloo's ring, TCP over the loopback device. What it is for: from which size of
message on a ring is bound by their number. A network has a longer way for each, and more bandwidth
than the cores of this machine, so its buckets should not be smaller than those that are best here.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from headway.train.gradient_all_reduce import BUCKET_BYTES, bucket_bytes

SIZES = [int(size) for size in os.environ.get("SIZES", "2,4,8,16").split(",")]
ROUNDS = int(os.environ.get("ROUNDS", "5"))
GRADIENT_BYTES = 64 * 2**20
BUCKETS = [2**shift for shift in range(18, 27)]
"""256 KiB to all at once."""
TARGET = 1.15
"""Time with the size that is chosen, over the time with the best."""


def work(rank: int, size: int, folder: Path, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=size)
    gradients = torch.zeros(GRADIENT_BYTES // 4)
    while (bucket := pipe.recv()) is not None:
        dist.barrier()
        began = time.perf_counter()
        pending = [dist.all_reduce(part, async_op=True) for part in gradients.split(bucket // 4)]
        for one in pending:
            one.wait()
        pipe.send(time.perf_counter() - began)
    dist.destroy_process_group()


def measure(size: int, folder: Path) -> dict[int, float]:
    """Median seconds by size of the buckets."""
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(size)]
    processes = [
        context.Process(target=work, args=(rank, size, folder, pipes[rank][1]))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    seconds: dict[int, list[float]] = {bucket: [] for bucket in BUCKETS}
    for _ in range(ROUNDS + 1):  # the first of each is not counted
        for bucket in BUCKETS:
            for ours, _ in pipes:
                ours.send(bucket)
            seconds[bucket].append(max(ours.recv() for ours, _ in pipes))
    for (ours, _), process in zip(pipes, processes, strict=True):
        ours.send(None)
        process.join(60)
    return {bucket: round(statistics.median(each[1:]), 4) for bucket, each in seconds.items()}


def main() -> int:
    found = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            found[size] = measure(size, Path(scratch))
        print(f"{size} processes: {found[size]}", file=sys.stderr, flush=True)
    ratios = {
        size: round(each[bucket_bytes(size, GRADIENT_BYTES)] / min(each.values()), 3)
        for size, each in found.items()
    }
    line = {
        "name": "bench-buckets",
        "figure": max(ratios.values()),
        "target": TARGET,
        "pass": max(ratios.values()) <= TARGET,
        "spread": {
            "over_best": ratios,
            "bucket_bytes": BUCKET_BYTES,
            "seconds": {size: {str(b): s for b, s in each.items()} for size, each in found.items()},
        },
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
