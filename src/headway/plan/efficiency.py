"""How much of a device's peaks a step reaches, fitted to runs that others published.

The numbers are in `efficiency.json`, which `make fit-time` writes: from half of the rows of
bench/published/throughput.toml, which was committed before anything was fitted. The other half was
predicted with them. A run of Headway's is of a source that was never fitted to, so the uncertainty
of a plan is that of rows whose source was left out. docs/concepts/plan-accuracy.md has each row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headway.plan.accelerators import Device
from headway.plan.step_work import Efficiencies

FILE = Path(__file__).with_name("efficiency.json")
LIKE: Mapping[str, str] = {"TU104": "GV100", "AD104": "AD102", "GB100": "GH100"}
"""Chips of which no run was published with its setting, and the one whose efficiency they are given
instead: T4 as V100, L4 as L40S, B200 as H100."""
UNSEEN_SPREAD = 1.25
"""Assumed: factor by which the time of a step is less certain, up and down, on a device of which no
run was published."""

# Assumed where nobody says what joins the nodes: Gbit/s for each device of a node, of the machines
# that such devices are usually in.
ASSUMED_NETWORK_GBIT: Mapping[str, float] = {
    "GV100": 50.0,
    "TU104": 12.5,
    "GA102": 12.5,
    "AD104": 12.5,
    "AD102": 50.0,
    "GA100": 200.0,
    "GH100": 400.0,
    "GB100": 400.0,
}
NETWORK_RANGE = (0.25, 2.0)
"""Assumed: how much slower or faster such a network may be in truth."""


@dataclass(frozen=True)
class FittedEfficiency:
    efficiencies: Efficiencies
    low: float
    high: float
    """True time of a step over the predicted one, in nine of ten rows, each predicted by a fit to
    other sources alone."""
    rows: str
    """Commit of the rows."""
    num_fitted: int
    num_predicted: int
    median_error: float
    """Of the predicted rows."""
    devices: frozenset[str]
    """Of which there are rows."""


@cache
def fitted() -> FittedEfficiency:
    read = json.loads(FILE.read_text("utf-8"))
    matmul = read["matmul"]
    shares = {**matmul, **{chip: matmul[other] for chip, other in LIKE.items()}}
    return FittedEfficiency(
        efficiencies=Efficiencies(
            matmul=shares,
            attention=read["attention"],
            touches=read["touches"],
            fused_touches=read["fused_touches"],
            exposed=read["exposed"],
            link=read["link"],
        ),
        low=read["left_out_true_over_predicted"][0],
        high=read["left_out_true_over_predicted"][1],
        rows=read["rows"],
        num_fitted=read["num_fitted"],
        num_predicted=read["num_predicted"],
        median_error=read["median_error"],
        devices=frozenset(read["devices"]),
    )


def is_unseen(device: Device) -> bool:
    """Whether no run on it was published with its setting."""
    return device.name not in fitted().devices


def spread_of(device: Device) -> tuple[float, float]:
    """Factors on a predicted time that enclose the true one in about nine of ten cases."""
    found = fitted()
    factor = UNSEEN_SPREAD if is_unseen(device) else 1.0
    return found.low / factor, found.high * factor
