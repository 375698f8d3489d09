"""Makes the runs and the pictures in docs/images; RUNS=FOLDER keeps the runs there, or takes them
from there."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from bench.pictures.killed_worker import killed_worker_svg
from bench.pictures.runs import KILLS, RATES, killed_often, killed_once, made_folder, side_by_side
from bench.pictures.screens import page_screen, terminal_screen
from headway.state.run_directory import RunDirectory
from support.commands import HEADWAY, headway

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MOST_BYTES = 150_000


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headway-pictures-") as scratch:
        folder = Path(os.environ.get("RUNS") or scratch)
        if not (folder / "my-run").is_dir():
            made = made_folder(folder)
            killed_once(made)
            killed_often(made)
            side_by_side(made)
        _draw(folder / "my-run")
    return _judge()


def _draw(folder: Path) -> None:
    killed = RunDirectory.open(folder / "runs" / "killed")
    (IMAGES / "killed-worker.svg").write_text(killed_worker_svg(killed))
    page = folder / "report.html"
    headway("report", "spot", folder=folder)
    _require_interruptions(page.read_text())
    page_screen(page, IMAGES / "report.png", (1100, 1180))
    page_screen(page, IMAGES / "report-narrow-dark.png", (500, 1000), "dark")
    headway("report", *(f"lr-{rate}" for rate in RATES), folder=folder)
    page_screen(page, IMAGES / "report-four-runs.png", (1100, 1180), "dark")
    watch = [*HEADWAY, "watch", "spot"]
    terminal_screen(watch, folder, IMAGES / "watch.png", (100, 32))
    terminal_screen([*HEADWAY, "status", "spot"], folder, IMAGES / "status.png", (110, 30))
    compare = [*HEADWAY, "compare", *(f"lr-{rate}" for rate in RATES)]
    terminal_screen(compare, folder, IMAGES / "compare.png", (80, 16))


def _require_interruptions(page: str) -> None:
    """Every kill is on the timeline twice (the worker is lost, it is back), and so are both starts
    and the pause between them."""
    drawn = {kind: page.count(f'<div class="{kind}" style') for kind in ("change", "start", "down")}
    assert drawn == {"change": 2 * KILLS, "start": 2, "down": 1}, drawn


def _judge() -> int:
    large = [path for path in IMAGES.iterdir() if path.stat().st_size > MOST_BYTES]
    for path in sorted(IMAGES.iterdir()):
        print(f"{path.stat().st_size:>8} {path.name}")
    for path in large:
        print(f"error: {path} is larger than {MOST_BYTES} bytes", file=sys.stderr)
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
