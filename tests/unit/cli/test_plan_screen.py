"""The screen of a plan at 80 columns, of fixed figures: a better estimate changes no test here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.cli.model_shape import read_workload
from headway.cli.plan.asked import Asked, PlannedPlace
from headway.cli.plan.comparison import ComparedPlans, comparison_screen
from headway.cli.plan.estimate import model_section
from headway.cli.plan.explanation import explanation
from headway.cli.plan.figure_text import PlanEntry, PlanSection, money, ranged, shown
from headway.cli.plan.run_plan import FleetPlan, PlanAnswer, PlanChange, RunPlan
from headway.cli.plan.screen import screen
from headway.cli.terminal import Line
from headway.plan.accelerators import find_device
from headway.plan.figure import Figure
from headway.plan.fleet import Fleet
from headway.plan.workload import Workload
from headway.spec.load import load_run

GIB = 2.0**30
DAY = 86400.0


def fitted(value: float, share: float = 0.2) -> Figure:
    return Figure.within(value, share, "fitted", "as published runs")


def fleet_plan(nodes: int, verdict: str = "yes", days: float = 100.0) -> FleetPlan:
    fleet = Fleet(find_device("H100"), 8, nodes)
    words = "61.2 of 78.9 GiB on each device at the peak of a step"
    memory = PlanSection(
        "memory",
        "Memory of each device",
        (
            PlanEntry("weights", "weights", Figure.exact(4 * GIB, "4 bytes each"), "bytes", "fp32"),
            PlanEntry(
                "hidden", "hidden", Figure.exact(1.0, "not on the screen"), "bytes", "", True
            ),
        ),
        "the peak is in the backward pass",
    )
    time = PlanSection(
        "time", "Time", (PlanEntry("step_seconds", "a step", fitted(20.0), "seconds", "2 passes"),)
    )
    return FleetPlan(
        fleet,
        PlanAnswer(verdict, words),  # type: ignore[arg-type]
        peak=Figure.exact(61.2 * GIB, ""),
        room=Figure.exact(78.9 * GIB, ""),
        step=fitted(20.0),
        seconds=fitted(days * DAY),
        usd=fitted(days * nodes * 700.0),
        sections=(memory, time),
        changes=(PlanChange("--set memory.compile=true", "12% less time, and it still fits"),),
        notes=("What joins the nodes is not known: 3200 Gbit/s a node are assumed.",),
    )


def run_plan(*fleets: FleetPlan) -> RunPlan:
    loaded = load_run("llama2-70b")
    workload = read_workload(loaded)
    assert isinstance(workload, Workload)
    place = PlannedPlace("H100:8", tuple(one.fleet for one in fleets))
    return RunPlan(Asked(loaded, place), workload, model_section(workload), fleets)


def text(lines: list[Line]) -> str:
    rows = ["".join(piece for piece, _ in line).rstrip() for line in lines]
    assert max(map(len, rows)) <= 80, max(rows, key=len)
    return "\n".join(rows) + "\n"


SCREEN = """\
llama2-70b on 8 nodes of H100:8 (64 devices)

  fits              61.2 of 78.9 GiB on each device at the peak of a step
  takes             100 days (80.0 to 120), not calibrated on Headway
  costs             $560,000 ($448,000 to $672,000)
  to improve        --set memory.compile=true: 12% less time, and it still fits
  note              What joins the nodes is not known: 3200 Gbit/s a node are
                    assumed.

Model
  parameters        69B                           llama, 80 layers, bf16
  FLOPs a token     444 GFLOP                     forward and backward
  tokens a step     4.19M                         1024 sequences of 4096
  steps             476,838
  tokens in all     2T

Memory of each device
  weights           4.0 GiB                       fp32
  the peak is in the backward pass

Time
  a step            20.0 s (16.0 to 24.0)         2 passes
"""


def test_the_answers_come_first() -> None:
    assert text([*screen(run_plan(fleet_plan(8)))]) == SCREEN


def test_what_does_not_fit_says_what_would() -> None:
    plan = replace(fleet_plan(1, "no"), seconds=None, usd=None, sections=())
    shown_ = text([*screen(run_plan(plan))])
    assert "\n  does not fit      61.2 of 78.9 GiB" in shown_
    assert "\n  so that it fits   --set memory.compile=true: 12% less time" in shown_
    assert "takes" not in shown_


def test_other_choices_have_a_line_each() -> None:
    shown_ = text([*screen(run_plan(fleet_plan(2, days=400), fleet_plan(4, days=200)))])
    assert "  or                4 nodes of H100:8: fits, 200 days, $560,000\n" in shown_


def test_an_over_budget_run_is_red_and_says_both_figures() -> None:
    over = PlanAnswer("no", "100 days (80.0 to 120), and budget.hours is 3")
    lines = [*screen(run_plan(replace(fleet_plan(8), budget=over)))]
    (line,) = [line for line in lines if line and line[0][0].startswith("  over budget")]
    assert line[0][1] == "red"
    assert line[1][0] == over.words


def test_an_explanation_names_every_reason_and_basis() -> None:
    shown_ = text([*explanation(run_plan(fleet_plan(8)))])
    assert "  a step: 20.0 s (16.0 to 24.0)  fitted\n      as published runs\n" in shown_
    assert "not on the screen" in shown_
    assert "  fitted          fitted to published runs\n" in shown_


COMPARED = """\
llama2-70b, compared

                             GiB of a device   time       cost
  H100:8                     does not fit      400 days   $280,000
  2 nodes of H100:8          61.2 of 78.9      210 days   $294,000    cheapest
  4 nodes of H100:8          61.2 of 78.9 ?    110 days   $308,000    fastest
"""


def test_a_comparison_marks_the_cheapest_and_the_fastest_that_fit() -> None:
    plans = (fleet_plan(1, "no", 400), fleet_plan(2, days=210), fleet_plan(4, "maybe", 110))
    assert text([*comparison_screen(ComparedPlans(run_plan(*plans)))]) == COMPARED


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (30.0, "seconds", "30.0 s"),
        (0.012, "seconds", "12.0 ms"),
        (7000.0, "seconds", "117 min"),
        (90000.0, "seconds", "25.0 hours"),
        (500 * DAY, "seconds", "500 days"),
        (0.9345, "share", "93.5 %"),
        (1.5 * GIB, "bytes", "1.5 GiB"),
        (3 * 2.0**40, "bytes", "3.0 TiB"),
        (476838, "number", "476,838"),
        (0.0133, "number", "0.01"),
        (0.0001, "number", "0"),
        (6.7e9, "count", "6.7B"),
        (854e6, "flops", "854 MFLOP"),
    ],
)
def test_figures_are_short(value: float, unit: str, words: str) -> None:
    assert shown(value, unit) == words  # type: ignore[arg-type]


def test_a_range_is_in_the_unit_of_its_value() -> None:
    assert ranged(Figure(DAY * 3, DAY, DAY * 30, "assumed", ""), "seconds") == (
        "3.00 days (1.00 to 30.0)"
    )
    assert ranged(Figure.exact(600.0, ""), "seconds") == "10.0 min"


def test_money_has_three_digits() -> None:
    assert [money(one) for one in (0.0042, 0.42, 38.2, 420.5, 1234567)] == [
        *("$0.0042", "$0.42", "$38.20", "$420", "$1,230,000"),
    ]
