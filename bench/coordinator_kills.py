"""`make coordinator-kills KILLS=50`: a coordinator killed and restarted that many times, at random,
while members join and leave. Ends with one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from support.coordinator_kills import FIND_SECONDS, kill_again_and_again

KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("SEED", "7"))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        # Fails if a generation is not the same for all or goes down, or if anyone who answered is
        # out.
        told = asyncio.run(kill_again_and_again(Path(folder), KILLS, SEED))
    longest = max(told.find_seconds)
    verdict = {
        "name": "coordinator-kills",
        "figure": round(longest, 3),
        "target": FIND_SECONDS,
        "pass": told.kills == KILLS and longest <= FIND_SECONDS,
        "spread": {
            "kills": told.kills,
            "generations": told.generations,
            "find_seconds": spread(told.find_seconds),
            "from_kill_seconds": spread(told.away_seconds),
            "start_seconds": spread(told.start_seconds),
        },
    }
    print(json.dumps(verdict))
    return 0


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "longest": round(max(values), 3)}


if __name__ == "__main__":
    sys.exit(main())
