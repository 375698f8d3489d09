"""`make bench-own-rows`: what a worker fetches of a set in a bucket, beside the rows that it needs.

1. Bytes and requests of one node over STEPS steps of 1,024 rows of 4,096 tokens (uint32), for runs
   of 8, 64 and 512 nodes. The set is made up by a store that counts; the rest is the real code.
2. A worker with 2 of these rows at 50,000 tokens/s, on an S3 server whose answers come 30 ms late:
   steps after the first ten that wait for data.

Ends with one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.clock import SystemClock
from headway.data.reading.look_ahead import BatchShare
from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.data.set_format import MANIFEST, shard_file
from headway.data.shard_table import PAGE_TOKENS, page_digests
from headway.plan.batch_division import share_of
from headway.state.store import Store
from headway.train.feed import Feed
from support.proxies import SlowProxy
from support.s3 import credentials, s3_server
from support.virtual_set import SHARD_TOKENS, virtual_manifest, virtual_set, virtual_table

STEPS = 100
BATCH, LENGTH, SEED = 1024, 4096, 7
ROW_BYTES = 4 * (LENGTH + 1)
NODES = {8: 8, 64: 8, 512: 1}
"""Workers of each node, by number of nodes: of 512 nodes, all workers together have 1,024 rows."""
NUM_SHARDS = 64
DELAY_SECONDS = 0.03
TOKENS_PER_SECOND = 50_000
FIRST_STEPS = 10
"""Steps that may wait: nothing has been announced before the first."""
WAIT_SECONDS = DELAY_SECONDS / 2
"""A step that waits longer waits for the store, not for a thread of its own process."""
TARGET = {"bytes": 2.0, "requests": 2.0, "waits": 0}


def fetched_by_node(nodes: int, local_workers: int, cache: Path) -> dict[str, float]:
    """Bytes and requests of the first node, all its workers together, over those of its rows."""
    workers = nodes * local_workers
    count = BATCH // workers
    shares = [
        BatchShare(BATCH, rank * count, count, local_workers / workers)
        for rank in range(local_workers)
    ]
    sets = [
        virtual_set("set", ReadOptions(rank=rank, cache=cache), NUM_SHARDS)
        for rank in range(local_workers)
    ]
    order = sets[0][0].order(SEED, LENGTH)
    for step in range(STEPS):
        for (tokens, _), share in zip(sets, shares, strict=True):
            tokens.prefetch(SEED, LENGTH, step, share)
            tokens.read(order.at(step * BATCH + share.first, count)[1], LENGTH)
    num_bytes, requests = (
        sum(getattr(store, name) for _, store in sets) for name in ("num_bytes", "num_requests")
    )
    for tokens, _ in sets:
        tokens.close()
    rows = STEPS * count * local_workers
    return {
        "needed_mb": round(rows * ROW_BYTES / 1e6, 1),
        "fetched_mb": round(num_bytes / 1e6, 1),
        "rows": rows,
        "requests": requests,
        "bytes_ratio": round(num_bytes / rows / ROW_BYTES, 3),
        "requests_ratio": round(requests / rows, 3),
    }


def waits_on_slow_store(scratch: Path) -> list[float]:
    """Seconds that each step of a paced worker waits for data."""
    with s3_server(scratch / "s3") as port, SlowProxy(port, DELAY_SECONDS) as proxy:
        write_empty_set(scratch / "s3" / "bucket" / "set")
        os.environ.update(credentials(proxy.port))
        reading = ReadOptions(cache=scratch / "cache")
        feed = Feed(
            TokenSet.open(Store("s3://bucket/set"), reading),
            sequence_length=LENGTH,
            global_batch=BATCH,
            micro=2,
            seed=SEED,
            device=torch.device("cpu"),
            objective="causal",
            masking=None,
            clock=SystemClock(),
        )
        feed.num_workers = BATCH // 2
        share, waits = share_of(feed.num_micro_batches, feed.num_workers, 1, 100), []
        for step in range(STEPS):
            before = feed.waited_seconds
            (batch,) = feed.step(step, share)
            waits.append(feed.waited_seconds - before)
            time.sleep(batch.inputs.numel() / TOKENS_PER_SECOND)
        feed.close()
        print(f"{proxy.num_ranges} requests for {2 * STEPS} rows", file=sys.stderr)
    return waits


def write_empty_set(folder: Path) -> None:
    """A set whose tokens are all 0, in files that take no space."""
    manifest = virtual_manifest(NUM_SHARDS)
    (folder / "shards").mkdir(parents=True)
    table = virtual_table(NUM_SHARDS)
    (folder / manifest.shard_table).write_bytes(table.to_bytes())
    manifest = manifest.model_copy(update={"shard_table_digest": table.digest})
    (page,) = page_digests(bytes(4 * PAGE_TOKENS), 4 * PAGE_TOKENS)
    pages = np.full(SHARD_TOKENS // PAGE_TOKENS, page, "<u4").tobytes()
    for number in range(NUM_SHARDS):
        with (folder / shard_file(table.name(number), "tokens")).open("wb") as file:
            file.truncate(4 * SHARD_TOKENS)
        (folder / shard_file(table.name(number), "documents")).write_bytes(bytes(8))
        (folder / shard_file(table.name(number), "pages")).write_bytes(pages)
    (folder / MANIFEST).write_text(manifest.model_dump_json(exclude_none=True))


def main() -> int:
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="headway-own-rows-") as folder:
        for nodes, local_workers in NODES.items():
            cache = Path(folder, f"cache-{nodes}")
            table[f"{nodes} nodes"] = found = fetched_by_node(nodes, local_workers, cache)
            print(f"{nodes} nodes of {local_workers} workers: {found}", file=sys.stderr)
        waits = waits_on_slow_store(Path(folder))
    late = waits[FIRST_STEPS:]
    figure = {
        "bytes": max(found["bytes_ratio"] for found in table.values()),
        "requests": max(found["requests_ratio"] for found in table.values()),
        "waits": sum(seconds > WAIT_SECONDS for seconds in late),
    }
    table["waits_ms"] = {
        step: round(1000 * seconds, 1)
        for step, seconds in enumerate(waits)
        if step >= FIRST_STEPS and seconds > WAIT_SECONDS / 10
    }
    table["first_waits_ms"] = [round(1000 * seconds, 1) for seconds in waits[:FIRST_STEPS]]
    line = {
        "name": "own-rows",
        "figure": figure,
        "target": TARGET,
        "pass": all(figure[name] <= TARGET[name] for name in TARGET),
        "spread": table,
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
