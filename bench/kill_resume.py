"""`make kill-resume KILLS=30`: a run killed and resumed that many times, in a folder and on S3,
compared with an undisturbed one. Ends with one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from bench.trial import prepare_set
from support.killing import LAST_START_SECONDS, differing, kill_and_resume, write_run
from support.s3 import credentials, s3_server
from support.workers import resolved_run, train

KILLS = int(os.environ.get("KILLS", "30"))
STEPS = 80 * KILLS


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch, s3_server(Path(scratch) / "s3") as port:
        folder = Path(scratch)
        os.environ.update(credentials(port), XDG_CACHE_HOME=str(folder / "cache"))
        sets = {"train": prepare_set(folder, 60_000, 400)}
        write_run(folder, STEPS)
        results = {}
        for place, storage in (("folder", "runs"), ("s3", "s3://bucket/runs")):
            alone = train(
                resolved_run(folder, sets, 1, [f"name=alone-{place}"]), LAST_START_SECONDS
            )
            resolved = resolved_run(folder, sets, 1, [f"name={place}", f"storage={storage}"])
            killed = kill_and_resume(resolved, KILLS, seed=len(place))
            results[place] = {
                "exact": killed.ledger.breach is None and killed.ledger.steps == STEPS,
                "tensors_that_differ": len(differing(killed.directory, alone)),
                "kills": killed.kills,
                "kills_while_saving": killed.kills_while_saving,
                "steps_done_again": killed.ledger.redone,
            }
            print(f"{place}: {results[place]}", file=sys.stderr)
    good = sum(r["exact"] and r["tensors_that_differ"] == 0 for r in results.values())
    line = {
        "name": "kill-resume",
        "figure": good,
        "target": len(results),
        "pass": good == len(results),
        "spread": [good, good],
        "kills": KILLS,
        "results": results,
    }
    print(json.dumps(line))
    return 0 if good == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
