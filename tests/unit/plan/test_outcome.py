"""A plan beside what came of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from headway.plan.figure import Figure
from headway.plan.outcome import (
    Measured,
    OutcomeRow,
    PlanRecord,
    outcome_rows,
    run_seconds,
    whole_usd,
)
from headway.report.planned import kept_plan, measured_so_far
from support.interrupted_run import ten_interruptions

PLAN = PlanRecord(
    "2026-11-18T01:00:00Z",
    "2 nodes of H100:8",
    {
        "step_seconds": Figure(2.0, 1.8, 2.4, "fitted", "half of the peak"),
        "goodput": Figure(0.95, 0.9, 0.97, "assumed", "restart: lost are 4.0% redone"),
        "interruptions_per_hour": Figure(0.1, 0.05, 0.3, "assumed", "2 spot nodes"),
        "run_seconds": Figure(2100.0, 1900.0, 2600.0, "fitted", "1,000 steps"),
        "usd": Figure(70.0, 60.0, 90.0, "given", "$2 a device hour"),
        "parameters": Figure.exact(124e6, "counted"),
    },
)
MEASURED = Measured(
    steps=500,
    total_steps=1000,
    tokens_per_step=8192,
    step_seconds=2.1,
    goodput=0.80,
    lost_seconds={"redone": 150.0, "start": 60.0, "changes": 0.0},
    spent_seconds=1312.5,
    left_seconds=1250.0,
    interruptions=3,
    usd=40.0,
)


def by_key(rows: list[OutcomeRow]) -> dict[str, OutcomeRow]:
    return {row.key: row for row in rows}


def test_each_figure_beside_what_was_measured() -> None:
    rows = by_key(outcome_rows(PLAN, MEASURED))
    assert rows["step_seconds"].ratio == pytest.approx(1.05)
    assert rows["step_seconds"].why == "as planned"
    assert rows["goodput"].why == (
        "below what was planned: most was lost by redone, 11.4% of the time"
    )
    assert rows["tokens_per_second"].measured == pytest.approx(8192 / 2.1)
    assert rows["tokens_per_second"].why == "not planned"
    assert rows["interruptions"].measured == 3
    assert rows["interruptions"].planned is not None
    assert rows["interruptions"].planned.value == pytest.approx(0.1 * 1312.5 / 3600)
    assert "memory_bytes" not in rows, "neither planned nor measured"


def test_the_end_is_estimated_anew() -> None:
    assert run_seconds(MEASURED) == 1312.5 + 1250
    assert whole_usd(MEASURED) == pytest.approx(40 * (1312.5 + 1250) / 1312.5)
    rows = by_key(outcome_rows(PLAN, MEASURED))
    assert rows["run_seconds"].measured == pytest.approx(2562.5)
    assert rows["usd"].why == "as planned"


def test_when_all_is_done_it_is_what_it_took() -> None:
    done = dataclasses.replace(MEASURED, steps=1000, left_seconds=0.0)
    assert run_seconds(done) == done.spent_seconds
    assert whole_usd(done) == 40.0


def test_before_the_first_step_there_is_the_plan_alone() -> None:
    none = Measured(0, None, 8192, None, None, {}, 0.0, None, 0)
    rows = by_key(outcome_rows(PLAN, none))
    assert rows["step_seconds"].why == "not measured yet"
    assert rows["run_seconds"].measured is None


def test_a_slower_step_names_what_the_plan_rested_on() -> None:
    slow = dataclasses.replace(MEASURED, step_seconds=4.0)
    row = by_key(outcome_rows(PLAN, slow))["step_seconds"]
    assert row.why == "above what was planned (fitted): half of the peak"


def test_a_run_without_a_plan_is_measured_all_the_same() -> None:
    rows = by_key(outcome_rows(None, MEASURED))
    assert rows["step_seconds"].measured == 2.1
    assert all(row.planned is None for row in rows.values())


def test_what_is_kept_is_read_back() -> None:
    assert PlanRecord.from_text(PLAN.as_text()) == PLAN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 1}',
        json.dumps({**json.loads(PLAN.as_text()), "version": 2}),
        json.dumps({**json.loads(PLAN.as_text()), "figures": {"usd": {"value": 1}}}),
    ],
)
def test_what_cannot_be_read_is_no_plan(text: str) -> None:
    assert PlanRecord.from_text(text) is None


def test_what_a_run_directory_says(tmp_path: Path) -> None:
    run = ten_interruptions(tmp_path)
    found = measured_so_far(run.directory)
    assert found.steps == found.total_steps == 600
    assert found.interruptions == 8, "five lost nodes, three restarts"
    assert found.goodput is not None
    assert found.left_seconds == 0
    assert found.memory_bytes is None, "on the CPU"
    for peak in (7, 9, 8):
        run.directory.events.append(
            {"time": "2027-01-15T08:00:00.000Z", "event": "saving", "device_peak_bytes": peak}
            | {"held_seconds": 0.0}
        )
    assert measured_so_far(run.directory).memory_bytes == 9
    assert kept_plan(run.directory) is None, "of an earlier version"
    run.directory.store.write("plan.json", PLAN.as_text().encode())
    assert kept_plan(run.directory) == PLAN
