"""`make bench-worlds`: 8, 16, 32 and 64 real processes form a restart world, with gloo over the
session's store, and over a store that the first rank serves, as on accelerators: requests to both
stores, and seconds. Ends with one line of JSON.

On accelerators gloo stands for NCCL, which needs devices. By torch 2.15's source NCCL asks for less
than gloo: one member in 128 sets an id, and each waits for all ids, and gets them, once.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from support.world_forming import form_a_world

SIZES = [int(size) for size in os.environ.get("SIZES", "8,16,32,64").split(",")]
EACH = {"gloo": 2, "accelerator": 3}
"""Requests of a member, at any size."""


def main() -> int:
    found: dict[str, dict[int, dict[str, float]]] = {}
    for way in EACH:
        for size in SIZES:
            with tempfile.TemporaryDirectory() as scratch:
                shape = (size, 1, None)
                formed = form_a_world(Path(scratch), shape, on_accelerators=way == "accelerator")
            one = {
                "session": sum(one.session_requests for one in formed),
                "first_rank": sum(one.store_requests for one in formed),
                "seconds": round(median(one.seconds for one in formed), 2),
                "open_files": max(one.open_files for one in formed),
            }
            print(f"{way}, {size} members: {one}", file=sys.stderr)
            found.setdefault(way, {})[size] = one
    each = {
        way: {size: (one["session"] + one["first_rank"]) / size for size, one in sizes.items()}
        for way, sizes in found.items()
    }
    line = {
        "name": "bench-worlds",
        "figure": max(max(one.values()) for one in each.values()),
        "target": max(EACH.values()),
        "pass": all(set(one.values()) == {EACH[way]} for way, one in each.items()),
        "spread": found,
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
