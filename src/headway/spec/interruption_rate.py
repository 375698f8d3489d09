"""How often nodes of a target are interrupted: `20% per hour`, `0.5% per day`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from headway.spec.quantities import NUMBER
from headway.spec.section import Section

HOURS = {"hour": 1, "day": 24, "week": 7 * 24, "month": 30 * 24, "year": 365 * 24}
EXAMPLE = "20% per hour or 0.5% per day"


@dataclass(frozen=True)
class InterruptionRate:
    """Share of nodes that are interrupted in a time."""

    percent: Decimal
    period: str
    """A key of HOURS."""

    @classmethod
    def parse(cls, value: Any) -> InterruptionRate:
        if isinstance(value, InterruptionRate):
            return value
        match = re.fullmatch(rf"{NUMBER}\s*%\s*(?:per|/|an?)\s*([a-z]+)", str(value).strip())
        if match is None or match[2] not in HOURS:
            raise ValueError(f"{str(value)!r} is not a rate; write for example {EXAMPLE}")
        percent = Decimal(match[1].replace("_", ""))
        if percent > 10**4:
            raise ValueError(f"{str(value)!r}: a node is not interrupted as often as that")
        return cls(percent, match[2])

    @property
    def per_hour(self) -> float:
        """Expected interruptions of one node."""
        return float(self.percent / 100 / HOURS[self.period])

    def __str__(self) -> str:
        return f"{self.percent:f}% per {self.period}"


InterruptionRateField = Annotated[
    InterruptionRate,
    PlainValidator(InterruptionRate.parse),
    PlainSerializer(str),
    WithJsonSchema(
        {
            "type": "string",
            "description": "share of the nodes in a time",
            "examples": ["20% per hour", "0.5% per day"],
        }
    ),
]


class InterruptionsConfig(Section):
    """How often nodes are interrupted. `headway plan` and `checkpoint.every: auto` reckon with it;
    nothing else follows from it."""

    spot: InterruptionRateField | None = None
    """Share of spot nodes that the cloud takes back in a time, such as `20% per hour`. Left out:
    20% per hour, as it was for V100s of AWS in August 2023."""
    on_demand: InterruptionRateField | None = None
    """Share of other nodes that fail in a time, such as `0.5% per day`. Left out: 0.05% per day for
    each GPU, as it was for the H100s that trained Llama 3."""
