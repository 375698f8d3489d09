"""How often nodes of a target are interrupted, as people write it."""

from __future__ import annotations

import pytest

from headway.spec.interruption_rate import InterruptionRate
from headway.spec.target_file import Target


@pytest.mark.parametrize(
    ("written", "per_hour", "again"),
    [
        ("20% per hour", 0.2, "20% per hour"),
        ("0.5 % per day", 0.005 / 24, "0.5% per day"),
        ("5%/month", 0.05 / 720, "5% per month"),
        ("10% a week", 0.1 / 168, "10% per week"),
        ("150% per hour", 1.5, "150% per hour"),
        ("0% per hour", 0.0, "0% per hour"),
    ],
)
def test_rates(written: str, per_hour: float, again: str) -> None:
    rate = InterruptionRate.parse(written)
    assert rate.per_hour == pytest.approx(per_hour)
    assert str(rate) == again
    assert InterruptionRate.parse(again) == rate


@pytest.mark.parametrize(
    "written", ["5%", "0.05", 5, "5 per hour", "-5% per hour", "5% per fortnight", "5h", None]
)
def test_what_is_no_rate(written: object) -> None:
    with pytest.raises(ValueError, match="is not a rate; write for example 20% per hour"):
        InterruptionRate.parse(written)


def test_of_a_target() -> None:
    target = Target.model_validate({"interruptions": {"spot": "20% per hour"}})
    assert target.interruptions.spot == InterruptionRate.parse("20% per hour")
    assert target.interruptions.on_demand is None
