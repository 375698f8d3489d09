"""Prices of a target: what the user pays for its machines and its storage."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from headway.spec.section import Section, Suggesting

CPU_PRICE = "cpu"
"""Key of the price of a node without accelerators."""
ANY_PRICE = "gpu"
"""Key of the price of accelerators that have none of their own."""
STORAGE_PRICE = "storage"


class PriceConfig(Section):
    """Dollars per device hour; a plain number is `on_demand`."""

    on_demand: float = Field(gt=0, strict=True)
    """Price on machines that are not spot machines."""
    spot: float | None = Field(default=None, gt=0, strict=True)
    """Price on spot machines. Left out: they count as on demand."""


def _expanded(value: Any) -> Any:
    return value if isinstance(value, dict | PriceConfig) else {"on_demand": value}


def _consistent(prices: dict[str, PriceConfig]) -> dict[str, PriceConfig]:
    storage = prices.get(STORAGE_PRICE)
    if storage is not None and storage.spot is not None:
        raise Suggesting(
            "`storage` has one price, in dollars per GB and month",
            f"storage: {storage.on_demand:g}",
        )
    return prices


PricesField = Annotated[
    dict[
        str,
        Annotated[
            PriceConfig,
            BeforeValidator(_expanded),
            WithJsonSchema(
                {
                    "anyOf": [
                        {"type": "number", "exclusiveMinimum": 0},
                        PriceConfig.model_json_schema(),
                    ]
                }
            ),
        ],
    ],
    AfterValidator(_consistent),
]


def dollars(amount: float) -> str:
    """`$4.00`; less than a cent is not rounded to nothing."""
    if amount and abs(amount) < 0.01:
        return f"${amount:.2g}"
    return f"${amount:,.2f}"
