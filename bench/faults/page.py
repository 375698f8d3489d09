"""`make faults-page FILE=faults.json`: the table and the plot of docs/concepts/under-faults.md, of
the last line of what `make bench-faults` printed."""

from __future__ import annotations

import json
import os
import statistics
from html import escape
from pathlib import Path
from typing import Any

from bench.faults.scenarios import SCENARIOS
from bench.faults.systems import NAMES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PLOT = DOCS / "concepts" / "under-faults.md", DOCS / "images" / "under-faults.svg"
BEGIN, END = "<!-- begin figures -->", "<!-- end figures -->"
WIDTH, LEFT, TOP, BAR, GAP = 850, 300, 34, 20, 26
STATE = "State: 41 MB"
"""Of the model of trainee.py, with AdamW's moments."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #59636e } .name { fill: #1b1f24 }
.note { fill: #1b1f24; font-weight: 600 } .grid { stroke: #d8dee4 }
.headway { fill: #2f81f7 } .headway-restart { fill: #79b8ff } .torchrun { fill: #9a6700 }
.torchft { fill: #8250df } .torchft-sampler, .torchft-default { fill: #bf87ff }
.ray, .ray-torchft { fill: #1a7f64 } .monarch { fill: #bf3989 }
@media (prefers-color-scheme: dark) { text { fill: #9198a1 } .note, .name { fill: #e6edf3 }
  .grid { stroke: #30363d } .headway { fill: #4493f8 } .torchrun { fill: #d29922 }
  .torchft { fill: #ab7df8 } }
"""
Result = dict[str, Any]


def main() -> None:
    lines = Path(os.environ["FILE"]).read_text().splitlines()
    found = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    text = PAGE.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    assert begin, f"{PAGE} has no place for figures"
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{_section(found)}\n{END}{after}", "utf-8")
    PLOT.write_text(_plot(found["spread"]), "utf-8")


def _section(found: Result) -> str:
    rows = [
        "| faults | system | goodput | next step after, s | steps redone | samples lost, repeated "
        "| a step, s | load | checkpoint |",
        "|---|---|--:|--:|--:|---|--:|--:|---|",
    ]
    for name, by_system in found["spread"].items():
        for system, results in by_system.items():
            rows.append(_row(SCENARIOS[name].words, NAMES[system], results))
    versions = found["versions"]
    told = "; ".join(
        f"{whose}: " + ", ".join(f"{name} {version}" for name, version in versions[whose].items())
        for whose in ("Headway", "the others")
        if whose in versions
    )
    minutes = f"{found['minutes']:g} minutes each, seed {found['seed']}, {versions['date']}"
    image = f"![Share of the time that went into samples that count](../images/{PLOT.name})"
    return "\n".join([image, "", *rows, "", f"{STATE}; {minutes}. {told}."])


def _row(words: str, system: str, results: list[Result]) -> str:
    """Medians, over rounds."""
    ratio = statistics.median(one["goodput"] for one in results)
    step = statistics.median(one["step_seconds"] for one in results)
    after = [s for one in results for s in one["next_step_seconds"] if s is not None]
    late = sum(s is None for one in results for s in one["next_step_seconds"])
    seconds = f"{statistics.median(after):.1f} ({max(after):.1f})" if after else "none"
    if late:
        seconds += f"; {late} not before the end"
    samples = [one["samples"] for one in results]
    if all(one["exact"] for one in samples):
        exact = "none"
    else:
        lost, repeated = (sum(one[key] for one in samples) for key in ("lost", "repeated"))
        exact = f"{lost}, {repeated} of {sum(one['trained'] for one in samples)}"
    redone = sum(one["redone_steps"] for one in results)
    load = statistics.median(one["load"] for one in results)
    ends = f"{step:.2f}", f"{load:.1f}", results[0]["settings"]["checkpoint"]
    cells = (words, system, f"{ratio:.3f}", seconds, redone, exact, *ends)
    return f"| {' | '.join(map(str, cells))} |"


def _plot(found: dict[str, dict[str, list[Result]]]) -> str:
    parts, y = [], TOP
    for name, by_system in found.items():
        parts.append(_text(LEFT - 12, y + 14, SCENARIOS[name].words, "name", "end"))
        for system, results in by_system.items():
            ratio = statistics.median(one["goodput"] for one in results)
            length = max(1.0, _x(ratio) - LEFT)
            parts.append(
                f'<rect class="{system}" x="{LEFT}" y="{y}" width="{length:.1f}" '
                f'height="{BAR - 4}" rx="2"/>'
            )
            parts.append(
                _text(LEFT + length + 6, y + 13, f"{ratio:.3f}  {NAMES[system].replace('`', '')}")
            )
            y += BAR
        y += GAP
    grid = [
        f'<line class="grid" x1="{_x(share):.1f}" y1="{TOP - 8}" x2="{_x(share):.1f}" y2="{y}"/>'
        + _text(_x(share), TOP - 14, f"{share:g}", anchor="middle")
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" '
        f'width="{WIDTH}" height="{y}">\n'
        "<title>Share of the time that went into samples that count</title>\n"
        f"<style>{STYLE}</style>\n" + "\n".join([*grid, *parts]) + "\n</svg>\n"
    )


def _x(share: float) -> float:
    return LEFT + (WIDTH - LEFT - 110) * share


def _text(x: float, y: float, words: str, name: str = "", anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{name}" {place}>{escape(words)}</text>'


if __name__ == "__main__":
    main()
