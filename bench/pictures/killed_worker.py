"""A run in which a worker is killed, as an SVG: its loss over time, and the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from headway.clock import seconds_of
from headway.report.run_data import open_once, run_data
from headway.state.run_directory import RunDirectory

WIDTH, HEIGHT = 820, 330
LEFT, RIGHT, TOP, LOSS_BOTTOM = 56, 14, 18, 222
WORKERS_TOP, WORKERS_BOTTOM = 252, 292
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #59636e }
.note { fill: #1b1f24; font-weight: 600 } .name { fill: #1b1f24 }
.loss { stroke: #2f81f7; stroke-width: 2; fill: none; stroke-linejoin: round }
.workers { stroke: #2da44e; stroke-width: 2; fill: none } .grid { stroke: #d8dee4 }
.killed { stroke: #cf222e; stroke-dasharray: 4 3 } .back { stroke: #2da44e; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) { text { fill: #9198a1 } .note, .name { fill: #e6edf3 }
  .grid { stroke: #30363d } .loss { stroke: #4493f8 } .killed { stroke: #f85149 } }
"""

Point = tuple[float, float]


def killed_worker_svg(directory: RunDirectory) -> str:
    """Of a run that has lost a worker and got it back."""
    steps = directory.steps()
    run = run_data(open_once(directory), seconds_of(steps[-1]["time"]))
    begin = seconds_of(steps[0]["time"])
    losses = [(seconds_of(one["time"]) - begin, float(one["loss"])) for one in steps]
    changes = [one for one in run.pauses if one.kind == "change"]
    lost, back = changes[0], changes[-1]
    end = losses[-1][0]
    top = max(loss for _, loss in losses)

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / end

    def y(loss: float) -> float:
        return LOSS_BOTTOM - (LOSS_BOTTOM - TOP) * loss / top

    workers = [
        (max(0.0, at + run.start - begin), count)
        for at, count in zip(*run.members, strict=True)
        if count  # none at its end
    ]
    workers.append((end, workers[-1][1]))
    most = max(count for _, count in workers)

    def height(count: float) -> float:
        return WORKERS_BOTTOM - (WORKERS_BOTTOM - WORKERS_TOP) * count / most

    stairs: list[Point] = []
    for at, count in workers:
        if stairs:
            stairs.append((x(min(at, end)), stairs[-1][1]))
        stairs.append((x(min(at, end)), height(count)))
    killed_x, back_x = x(lost.start - begin), x(back.end - begin)
    parts = [
        *(_grid(LEFT, y(loss), f"{loss:g}") for loss in range(0, int(top) + 1, 2)),
        *(_grid(LEFT, height(count), f"{count:g}") for count in (0, most)),
        _upright("killed", killed_x),
        _upright("back", back_x),
        _line("loss", [(x(at), y(loss)) for at, loss in losses]),
        _line("workers", stairs),
        _text(killed_x + 8, TOP + 14, "a worker is killed", "note"),
        _text(killed_x + 8, TOP + 32, f"the others continue after {lost.seconds:.1f} s"),
        _text(back_x + 8, TOP + 62, "it is back", "note"),
        _text(back_x + 8, TOP + 80, f"they wait {back.seconds:.1f} s for it"),
        _text(LEFT, LOSS_BOTTOM + 20, "loss", "name"),
        _text(LEFT, WORKERS_BOTTOM + 20, "workers", "name"),
        _text(WIDTH - RIGHT, WORKERS_BOTTOM + 20, f"{end:.0f} seconds", anchor="end"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}">\n'
        "<title>Loss and workers of a run in which a worker is killed</title>\n"
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _grid(left: float, y: float, label: str) -> str:
    line = f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
    return line + _text(left - 8, y + 4, label, anchor="end")


def _upright(name: str, x: float) -> str:
    return f'<line class="{name}" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{WORKERS_BOTTOM}"/>'


def _line(name: str, points: Sequence[Point]) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{name}" points="{drawn}"/>'


def _text(x: float, y: float, words: str, name: str = "", anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{name}" {place}>{escape(words)}</text>'
