"""Charts of `watch.activations` for the page: one for each figure, with a line for each block."""

from __future__ import annotations

from typing import Any

from headway.report.series import thinned
from headway.state.rewinds import Record, apply_rewinds
from headway.state.run_directory import RunDirectory

FIGURES = {
    "attention_entropy": "Attention entropy, nats",
    "attention_largest": "Largest attention score",
    "attention_smallest": "Smallest attention score",
    "largest": "Largest activation",
}
MOST_LINES = 8
"""As many as there are colours."""


def activation_charts(directory: RunDirectory) -> list[dict[str, Any]]:
    """None if nothing was measured."""
    records = apply_rewinds(directory.activations.read()[0])
    by_block: dict[int, list[Record]] = {}
    for record in records:
        by_block.setdefault(record["block"], []).append(record)
    blocks = sorted(by_block)
    last = len(blocks) - 1
    # Evenly spaced, the first and the last among them.
    shown = sorted(
        {blocks[round(last * n / (MOST_LINES - 1))] for n in range(MOST_LINES) if blocks}
    )
    charts = []
    for key, title in FIGURES.items():
        series = [
            {"label": f"block {block}", "x": x, "y": y, "dashed": False}
            for block in shown
            if (having := [one for one in by_block[block] if key in one])
            for x, y in [thinned([one["step"] for one in having], [one[key] for one in having])]
        ]
        if series:
            charts.append({"id": key, "title": title, "x": "step", "series": series})
    return charts
