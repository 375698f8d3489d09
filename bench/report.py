"""`make bench-report`: a report of a run of STEPS=1000000 steps: its size, the seconds until a
browser (headless Chromium) has loaded and drawn it, and the time and memory that making it takes.

The run directory is written here, with lines like those of real runs, and 20 interruptions. The
figure is the seconds in the browser, the median of ten.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headway.clock import stamp
from support.interrupted_run import InterruptedRun

STEPS = int(os.environ.get("STEPS", "1000000"))
TARGET_SECONDS, TARGET_BYTES = 1.0, 3_000_000
INTERRUPTIONS, OPENINGS = 20, 10
DRAWN = re.compile(r'data-drawn="([0-9.]+)"')


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None, "bench-report needs Chromium"
    with tempfile.TemporaryDirectory(prefix="headway-report-") as scratch:
        folder = Path(scratch)
        _write_run(folder)
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "headway.cli.main", "report", "long"], cwd=folder, check=True
        )
        made_seconds = time.monotonic() - began
        peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        page = folder / "report.html"
        size, drawn = page.stat().st_size, page.read_text().count('class="change"')
        opened = sorted(_seconds_to_draw(browser, page) for _ in range(OPENINGS))
    figure = statistics.median(opened)
    line = {
        "name": "bench-report",
        "figure": round(figure, 3),
        "target": TARGET_SECONDS,
        "pass": figure <= TARGET_SECONDS and size <= TARGET_BYTES and drawn >= INTERRUPTIONS,
        "spread": [round(opened[0], 3), round(opened[-1], 3)],
        "unit": "seconds to load and draw",
        "steps": STEPS,
        "page_bytes": size,
        "interruptions_drawn": drawn,
        "seconds_to_make": round(made_seconds, 1),
        "peak_memory_bytes": peak_bytes,
    }
    print(json.dumps(line))
    return 0 if line["pass"] else 1


def _write_run(folder: Path) -> None:
    run = InterruptedRun(folder, "long", STEPS)
    run.launch()
    each = STEPS // INTERRUPTIONS
    for number in range(INTERRUPTIONS):
        _train(run, each)
        run.evaluate()
        run.change(f"node-{number}.1/0 is lost: no heartbeat", 2 + number % 3, 2.0)
    _train(run, STEPS - run.step)
    run.end("finished")


def _train(run: InterruptedRun, steps: int) -> None:
    """As `run.train`, but in one write."""
    metrics, ledger = [], []
    for _ in range(steps):
        run.time += 1.0
        run.step += 1
        loss = 10 / (1 + run.step / 4e4) + 0.1 * math.sin(run.step)
        where = {"step": run.step, "generation": run.generation}
        metrics.append(
            {
                **where,
                "time": stamp(run.time),
                "tokens": run.step * 128,
                "targets": 127,
                "loss": loss,
                "perplexity": math.exp(loss),
                "lr": 1e-3 * (1 - run.step / STEPS / 2),
                "grad_norm": 1 + 0.3 * math.cos(run.step),
                "seconds": 1.0,
                "data_seconds": 0.001,
                "tokens_per_second": 128.0 * run.workers,
            }
        )
        ledger.append(
            {**where, "first": 8 * (run.step - 1), "count": 8, "members": run.workers}
            | {"tokens": 128, "loss": loss, "learned": True}
        )
    run.directory.metrics.append(*metrics)
    run.directory.ledger.append(*ledger)


def _seconds_to_draw(browser: str, page: Path) -> float:
    """From the start of loading to the frame after the charts were drawn, as the page noted it."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1100,1000")
    done = subprocess.run(
        [browser, *flags, "--dump-dom", page.as_uri()],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = DRAWN.search(done.stdout)
    assert found is not None, "the page has not drawn its charts"
    return float(found[1]) / 1000


if __name__ == "__main__":
    sys.exit(main())
