"""`make prepare-kills KILLS=20`: a preparation killed that many times, with 1, 2 and 4 processes,
and one in 7 parts, compared with an undisturbed one. Ends with one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.clock import SystemClock
from headway.data.prepare.job import prepare
from support.preparing import kill_and_prepare, mixed_corpus, run_parts, shard_bytes

KILLS = int(os.environ.get("KILLS", "20"))
BYTES_A_KILL = 2_000_000
"""Size of the text: enough that every start has work left."""


def compared(folder: Path, alone: dict[str, bytes]) -> dict[str, Any]:
    made = shard_bytes(folder)
    names = sorted(name for name in made.keys() | alone.keys() if made.get(name) != alone.get(name))
    return {"same": not names, **({"differ": names[:5]} if names else {})}


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        job = mixed_corpus(folder, BYTES_A_KILL * KILLS)
        prepare(job, lambda progress: None, SystemClock())
        alone = shard_bytes(Path(job.into))
        results = {}
        for processes in (1, 2, 4):
            into = folder / f"killed-{processes}"
            kills = kill_and_prepare(
                replace(job, into=str(into), processes=processes), KILLS, seed=processes
            )
            results[f"{processes} processes"] = {"kills": kills, **compared(into, alone)}
        into = folder / "in-parts"
        run_parts(replace(job, into=str(into)), 7)
        results["7 parts"] = {"kills": 0, **compared(into, alone)}
        same = sum(result["same"] for result in results.values())
        kills = min(result["kills"] for name, result in results.items() if "processes" in name)
        verdict = {
            "name": "prepare-kills",
            "figure": same,
            "target": len(results),
            "pass": same == len(results) and kills == KILLS,
            "spread": {"shards": len(alone), **results},
        }
        print(json.dumps(verdict))
    return 0


if __name__ == "__main__":
    sys.exit(main())
