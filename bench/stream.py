"""`make bench-stream PREPARE_SECONDS=600`: a run on the test cluster trains while pods prepare its
text from a bucket that answers late. Measures the time from the start of the preparation to the
first step, and how long the preparation takes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from cluster_tool import network
from headway.clock import seconds_of
from support.lab import borrowed_lab
from support.slow_text import SlowText, prepared_there, slow_text
from support.waiting import wait_for

PREPARE_SECONDS = float(os.environ.get("PREPARE_SECONDS", "600"))
TARGET = 60.0
PARTS = 3
STOP_SECONDS = 420.0


def main() -> int:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-stream-")))
        (scratch / "lab").mkdir()
        lab = stack.enter_context(borrowed_lab(scratch / "lab"))
        text = stack.enter_context(slow_text(scratch / "s3", network.HOST, num_files=120))
        os.environ.update(text.fast)
        lab.write_run(text.run_file())
        lab.headway(*text.make_tokenizer)
        lab.change_target(
            pod={"env": lab.target()["pod"]["env"] | text.slow}, prepare={"nodes": PARTS}
        )
        text.take(PREPARE_SECONDS, PARTS)
        lab.headway("run", "--on", "lab", "--nodes", "1", seconds=600)
        (job,) = lab.cluster.api.items(
            f"/apis/batch/v1/namespaces/{lab.namespace}/jobs",
            labelSelector="app.kubernetes.io/component=data",
        )
        began = seconds_of(job["metadata"]["creationTimestamp"])
        first = seconds_of(next(iter(lab.directory().steps()))["time"])
        made = prepared_there(lab)
        units = len(list(made.glob("shards/*.json")))
        manifest = made / "manifest.json"
        assert not manifest.exists(), "it was prepared before the run had its first step"
        print(f"first step after {first - began:.1f} s, {units} units done", file=sys.stderr)
        wait_for("the set", manifest.exists, 3 * PREPARE_SECONDS + 300)
        prepared, all_units = manifest.stat().st_mtime - began, SlowText.num_units(made)
        print(f"prepared after {prepared:.1f} s", file=sys.stderr)
        lab.wait_for_step(lab.step() + 3, 120)
        lab.headway("stop", seconds=STOP_SECONDS)
        lab.require_exact()
        lab.headway("delete", "it", "--yes")
    seconds = first - began
    line = {
        "name": "bench-stream",
        "figure": round(seconds, 1),
        "target": TARGET,
        "pass": seconds <= TARGET and prepared >= PREPARE_SECONDS / 2,
        "spread": {
            "prepared_seconds": round(prepared, 1),
            "units_at_first_step": units,
            "units": all_units,
            "parts": PARTS,
        },
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
