"""`make bench-plugs PLUGS=10`: one of three nodes loses power while a run trains on them. Measures
the time to the next step, and until the lost workers have been replaced on other nodes."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from support.lab import Lab, borrowed_lab
from support.plugs import Lost, pull_the_plug

PLUGS = int(os.environ.get("PLUGS", "10"))
TARGET = 5.0
HEALED_TARGET = 25.0
ASTRAY_TARGET = 3.0
NODES = 3
STOP_SECONDS = 420.0


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="headway-plugs-") as scratch,
        borrowed_lab(Path(scratch)) as lab,
    ):
        lab.write_run()
        tried = [one_plug(lab, number) for number in range(1, PLUGS + 1)]
    found = [lost for lost in tried if lost is not None]
    assert found, "no plug could be measured"
    next_steps = sorted(lost.next_step for lost in found)
    healed = sorted(lost.healed for lost in found)
    astray = sorted(seconds for lost in found for seconds in lost.astray.values())
    figure = statistics.median(next_steps)
    line = {
        "name": "bench-plugs",
        "figure": round(figure, 2),
        "target": TARGET,
        "pass": figure <= TARGET
        and healed[-1] <= HEALED_TARGET
        and max(astray, default=0.0) <= ASTRAY_TARGET
        and len(found) == PLUGS,
        "spread": {
            "next_step_seconds": [round(seconds, 2) for seconds in next_steps],
            "healed_seconds": [round(seconds, 1) for seconds in healed],
            "seconds_on_the_dead_machine": astray,
            "not_healed": PLUGS - len(found),
        },
    }
    print(json.dumps(line))
    return 0


def one_plug(lab: Lab, number: int) -> Lost | None:
    """None: not whole again in time. The others are measured nevertheless."""
    lab.headway("run", "--on", "lab", "--nodes", str(NODES))
    lab.wait_for_workers(NODES)
    lab.wait_for_step(lab.step() + 5)
    lost = None
    try:
        lost = pull_the_plug(lab)
        words = f"{lost.next_step:.2f} s, healed {lost.healed:.1f} s"
        words += f", astray: {lost.astray or 'none'}"
    except AssertionError as error:
        words = str(error)
    print(f"{number} of {PLUGS}: {words}", file=sys.stderr, flush=True)
    lab.headway("stop", seconds=STOP_SECONDS)
    lab.require_exact()
    lab.cluster.repair()
    lab.headway("delete", "it", "--yes")
    return lost


if __name__ == "__main__":
    sys.exit(main())
