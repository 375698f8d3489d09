"""`make fit-time`: fits the efficiencies of plan to half of the published throughputs, and predicts
the other half.

Nine numbers are fitted by least absolute logarithmic error, so that a few odd rows do not pull
them: the share of the peak that products reach on each of five chips, attention's share of that,
how often memory is touched with and without fused kernels, and how much communication stays
visible. Then the same without one source at a time, whose rows are predicted. Writes
src/headway/plan/efficiency.json and the section "Time" of docs/concepts/plan-accuracy.md, and ends
with one line of JSON.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.plan.efficiency import FILE
from headway.plan.step_work import Efficiencies
from support.accuracy_page import write_section
from support.published_times import Published, published_times, time_section

TARGET = 0.15
LINK = 0.8
"""Assumed share of a link that collectives reach: not fitted, since the rows cannot tell it from
the share that is hidden. Copies between two H200 reach 0.88 (published/devices.toml)."""
CHIPS = ("GA100", "GH100", "GV100", "AD102", "GA102")
# Where the search begins, and what is possible: the best product measured on an A100 is 0.87.
START = (*(0.75, 0.7, 0.6, 0.6, 0.5), 0.6, 20.0, 8.0, 0.3)
BOUNDS = (*[(0.2, 0.9)] * 5, (0.2, 1.0), (3.0, 60.0), (2.0, 40.0), (0.001, 1.0))
RESTARTS = 6
QUANTILE = 0.05


@dataclass(frozen=True)
class Fit:
    efficiencies: Efficiencies
    error: float
    """Mean absolute logarithm of predicted over published."""


def main() -> int:
    rows = published_times()
    fitted_rows = [one for one in rows if one.row.side == "fit"]
    others = [one for one in rows if one.row.side == "predict"]
    fit = fitted(fitted_rows)
    # A rate that is predicted too high is a time that is predicted too short.
    true_over_predicted = [one.predicted(fit.efficiencies) / one.published for one in others]
    median = statistics.median(abs(ratio - 1) for ratio in true_over_predicted)
    left_out, left_out_ratios = _left_out(rows)
    record = {
        "rows": _commit_of_rows(),
        "num_fitted": len(fitted_rows),
        "num_predicted": len(others),
        "median_error": round(median, 4),
        "true_over_predicted": _spread(true_over_predicted),
        "left_out_true_over_predicted": _spread(left_out_ratios),
        "devices": sorted({one.place.device.name for one in rows}),
        "matmul": fit.efficiencies.matmul,
        "attention": fit.efficiencies.attention,
        "touches": fit.efficiencies.touches,
        "fused_touches": fit.efficiencies.fused_touches,
        "exposed": fit.efficiencies.exposed,
        "link": fit.efficiencies.link,
        "left_out": left_out,
    }
    FILE.write_text(json.dumps(record, indent=2) + "\n")
    write_section("time", time_section())
    passed = median <= TARGET
    result: dict[str, Any] = {
        "name": "fit-time",
        "figure": round(median, 4),
        "target": TARGET,
        "pass": passed,
        "spread": record["true_over_predicted"],
        "largest": round(max(abs(ratio - 1) for ratio in true_over_predicted), 3),
    }
    print(json.dumps(result))
    return 0 if passed else 1


def fitted(rows: Sequence[Published], restarts: int = RESTARTS) -> Fit:
    """The same for the same rows: the search begins at a fixed place, and is repeated from random
    ones by a fixed seed."""
    draw = random.Random(22)
    best: tuple[float, list[float]] | None = None
    for attempt in range(restarts):
        spread = 0.3 if attempt else 0.0
        values = [_within(i, v * math.exp(draw.gauss(0, spread))) for i, v in enumerate(START)]
        found = _descended(values, rows, draw)
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None
    return Fit(_efficiencies([round(value, 3) for value in best[1]]), best[0])


def _descended(
    values: list[float], rows: Sequence[Published], draw: random.Random
) -> tuple[float, list[float]]:
    """Along one number at a time and along random directions, because the error has kinks, with
    steps that shrink when none helps."""
    error, step = _error(values, rows), 0.3
    while step > 0.002:
        changes = []
        for index in draw.sample(range(len(values)), len(values)):
            for sign in (step, -step):
                changes.append([sign if i == index else 0.0 for i in range(len(values))])
        changes += [[draw.gauss(0, step) for _ in values] for _ in range(8)]
        has_moved = False
        for change in changes:
            moved = [_within(i, v * math.exp(change[i])) for i, v in enumerate(values)]
            if (found := _error(moved, rows)) < error - 1e-9:
                values, error, has_moved = moved, found, True
        if not has_moved:
            step /= 1.6
    return error, values


def _error(values: Sequence[float], rows: Sequence[Published]) -> float:
    efficiencies = _efficiencies(values)
    errors = (abs(math.log(one.predicted(efficiencies) / one.published)) for one in rows)
    return sum(errors) / len(rows)


def _efficiencies(values: Sequence[float]) -> Efficiencies:
    matmul = dict(zip(CHIPS, values, strict=False))
    attention, touches, fused_touches, exposed = values[len(CHIPS) :]
    return Efficiencies(matmul, attention, touches, fused_touches, exposed, LINK)


def _within(index: int, value: float) -> float:
    low, high = BOUNDS[index]
    return min(high, max(low, value))


def _spread(ratios: Sequence[float]) -> list[float]:
    """Nine of ten are between."""
    ordered = sorted(ratios)
    places = (round(share * (len(ordered) - 1)) for share in (QUANTILE, 1 - QUANTILE))
    return [round(ordered[place], 3) for place in places]


def _left_out(rows: Sequence[Published]) -> tuple[dict[str, dict[str, Any]], list[float]]:
    """Error of each source's rows, both sides, after a fit to the fitted rows of all others; and of
    those on chips that others have, true over predicted times. A chip that no other source has is
    given the middle of the others' efficiencies."""
    found, ratios = {}, []
    for family in sorted({one.family for one in rows}):
        rest = [one for one in rows if one.row.side == "fit" and one.family != family]
        mine = [one for one in rows if one.family == family]
        efficiencies = fitted(rest, restarts=2).efficiencies
        seen = {one.place.device.chip for one in rest}
        middle = statistics.median(
            share for chip, share in efficiencies.matmul.items() if chip in seen
        )
        matmul = {
            chip: share if chip in seen else middle for chip, share in efficiencies.matmul.items()
        }
        last = Efficiencies(**{**vars(efficiencies), "matmul": matmul})
        errors = [one.predicted(last) / one.published - 1 for one in mine]
        largest: float = max(errors, key=abs)
        found[family] = {
            "rows": len(mine),
            "median_error": round(statistics.median(map(abs, errors)), 3),
            "largest": round(largest, 3),
            "new_chips": sorted({one.place.device.chip for one in mine} - seen),
        }
        ratios += [
            error + 1
            for one, error in zip(mine, errors, strict=True)
            if one.place.device.chip in seen
        ]
        print(f"without {family}: {found[family]}", file=sys.stderr)
    return found, ratios


def _commit_of_rows() -> str:
    """Which committed the rows as they are."""
    path = Path(__file__).parent / "published" / "throughput.toml"
    asked = ["git", "log", "-1", "--format=%H", "--", str(path)]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
