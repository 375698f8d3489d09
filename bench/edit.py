"""`make bench-edit REPEATS=10`: what an edit of one line costs. A run of the user's own loss is
launched on the test cluster again and again, in turns with and without an edit of its code folder
of 200 files; measured from the command to the first step that has it."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from support.lab import START_SECONDS, Lab, borrowed_lab
from support.own_loss import write_own_loss
from support.waiting import wait_for

REPEATS = int(os.environ.get("REPEATS", "10"))
TARGET = 5.0
"""Seconds that an edit adds."""
NUM_FILES = 200
NODES = 2
STOP_SECONDS = 420.0


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="headway-edit-") as scratch,
        borrowed_lab(Path(scratch)) as lab,
    ):
        lab.write_run()
        write_own_loss(lab.folder, NUM_FILES)
        first = launched(lab, 0)
        print(f"first launch: {first:.1f} s", file=sys.stderr, flush=True)
        found: dict[str, list[float]] = {"edited": [], "unchanged": []}
        for number in range(1, 2 * REPEATS + 1):
            kind = "edited" if number % 2 else "unchanged"
            found[kind].append(launched(lab, number if kind == "edited" else number - 1))
            print(f"{number}: {kind}: {found[kind][-1]:.1f} s", file=sys.stderr, flush=True)
    figure = statistics.median(found["edited"]) - statistics.median(found["unchanged"])
    line = {
        "name": "bench-edit",
        "figure": round(figure, 2),
        "target": TARGET,
        "pass": figure <= TARGET,
        "spread": {
            f"{kind}_seconds": [round(seconds, 1) for seconds in sorted(each)]
            for kind, each in found.items()
        },
    }
    print(json.dumps(line))
    return 0


def launched(lab: Lab, weight: int) -> float:
    """Seconds from the command to the first step, whose loss shows the number in the code."""
    (lab.folder / "src" / "weight.yaml").write_text(f"weight: {weight}\n")
    before = lab.generation().get("generation", 0)
    began = time.time()
    lab.headway("run", "--on", "lab", "--nodes", str(NODES))
    wait_for("a step", lambda: lab.first_step_of(before + 1) is not None, START_SECONDS)
    at = lab.first_step_of(before + 1)
    assert at is not None
    newest = lab.directory().steps()[-1]
    assert newest["weight"] == weight, newest
    lab.headway("stop", seconds=STOP_SECONDS)
    return at - began


if __name__ == "__main__":
    sys.exit(main())
