"""`make bench-table`: what a rank pays for a set of 10^13 tokens, beside one of ten shards.

A manifest and a table of 300,000 shards; their tokens do not exist. Each set is opened as a worker
opens it, in a process of its own, a batch of its order is drawn, and each sample's shard is looked
up. Ends with one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from headway.data.set_format import SetManifest, SpecialIds
from headway.data.shard_table import PARTS, SHARD_BYTES, Shard, ShardTable, shard_name

NUM_SHARDS = 300_000
SHARD_TOKENS = 33_333_334
TURNS = 5
MOST = {"manifest_bytes": 2_000_000, "memory_bytes": 20_000_000, "seconds": 0.5}

OPEN = """
import json, sys, time
from pathlib import Path
from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.state.store import Store

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

began = time.perf_counter()
opened = TokenSet.open(Store(sys.argv[1]), ReadOptions(trusted=True))
samples = opened.order(17, 4096).at(0, 1024)[1]
for sample in samples.tolist():
    next(opened._index.ranges(4096 * sample, 4096 * sample + 1))
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "memory": memory("VmRSS"), "peak": memory("VmHWM")}))
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        sets = {number: Path(folder, str(number)) for number in (10, NUM_SHARDS)}
        for number, place in sets.items():
            write_set(place, number)
        found: dict[int, list[dict[str, Any]]] = {number: [] for number in sets}
        for _ in range(TURNS):
            for number, place in sets.items():
                command = [sys.executable, "-c", OPEN, str(place)]
                found[number].append(json.loads(subprocess.check_output(command)))
        medians = {
            number: {key: statistics.median(one[key] for one in turns) for key in turns[0]}
            for number, turns in found.items()
        }
        small, large = medians[10], medians[NUM_SHARDS]
        figures = {
            "manifest_bytes": (sets[NUM_SHARDS] / "manifest.json").stat().st_size,
            "memory_bytes": large["memory"] - small["memory"],
            "seconds": round(large["seconds"], 3),
        }
    line = {
        "name": "table",
        **figures,
        "target": MOST,
        "pass": all(figures[key] <= most for key, most in MOST.items()),
        "peak_bytes": large["peak"] - small["peak"],
        "seconds_of_ten": round(small["seconds"], 3),
        "spread_seconds": sorted(round(one["seconds"], 3) for one in found[NUM_SHARDS]),
        "table_bytes": SHARD_BYTES * NUM_SHARDS,
    }
    print(json.dumps(line))
    return 0 if line["pass"] else 1


def write_set(folder: Path, num_shards: int) -> None:
    table = ShardTable.of(
        Shard(
            name=shard_name(number, 0),
            num_tokens=SHARD_TOKENS,
            num_documents=30_000,
            has_mask=False,
            digests=dict.fromkeys(PARTS, f"{number:032x}"),
        )
        for number in range(num_shards)
    )
    manifest = SetManifest(
        layout="stream",
        vocab_size=2**17,
        token_dtype="uint32",
        num_tokens=table.num_tokens,
        num_documents=table.num_documents,
        num_bytes=4 * table.num_tokens,
        special_ids=SpecialIds(end_of_text=0, special=(0,)),
        tokenizer_digest="0" * 32,
        num_shards=num_shards,
        shard_table_digest=table.digest,
        created_by="a benchmark",
    )
    folder.mkdir()
    (folder / "shards.table").write_bytes(table.to_bytes())
    (folder / "manifest.json").write_text(manifest.model_dump_json(indent=2))


if __name__ == "__main__":
    sys.exit(main())
