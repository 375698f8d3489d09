"""headway report: what somebody sees who gets the page, and has nothing else."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from headway.clock import stamp
from headway.plan.figure import Figure
from headway.plan.outcome import PLAN, PlanRecord
from headway.report.page import page
from headway.report.run_data import MOST_SAMPLED, ledger_verdict, run_data
from headway.report.series import MOST_POINTS, thinned
from headway.state.interruptions import pauses
from support.in_process import Headway
from support.interrupted_run import START, InterruptedRun, ten_interruptions

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>')


def test_every_interruption_with_its_cause_and_length(tmp_path: Path) -> None:
    directory = ten_interruptions(tmp_path).directory
    found = pauses(directory.history(), directory.metrics.read()[0])
    assert [(one.kind, one.step, round(one.seconds, 3)) for one in found] == [
        ("start", 0, 8.0),
        *(("change", 60 + 40 * number, 0.5 + number) for number in range(5)),
        *(("restart", 260 + 50 * number, 2.5) for number in range(3)),
        ("down", 410, 120.0),
        ("start", 410, 8.0),
    ]
    assert found[1].cause == "node-0.1/0 is lost: no heartbeat"
    assert found[6].cause == "node 1 was killed by SIGKILL"
    assert found[9].cause == "stopped"


def test_a_run_that_has_not_taken_a_step(tmp_path: Path) -> None:
    run = InterruptedRun(tmp_path, "new", 10)
    run.launch()
    found = run_data(run.directory, START + 60)
    assert (found.series, found.status.step) == ({}, 0)
    assert [one.kind for one in found.pauses] == ["start"]


def test_a_machine_that_crashed_between_two_starts(tmp_path: Path) -> None:
    run = InterruptedRun(tmp_path, "crashed", 100)
    run.launch()
    run.train(10)
    run.wait(600)
    run.launch()
    run.train(10)
    down = run_data(run.directory, START).pauses[1]
    assert (down.kind, down.cause, down.seconds) == ("down", "ended without a record", 600)


def test_samples_from_the_first_to_the_last(tmp_path: Path) -> None:
    run = InterruptedRun(tmp_path, "sampled", 100)
    run.launch()
    run.train(10)
    for step in range(1, 101):
        for prompt in ("Once", "The <b>"):
            line = {"step": step, "generation": 1, "prompt": prompt, "text": f"{step} & more"}
            run.directory.samples.append(line)
    found = run_data(run.directory, START)
    assert list(found.samples) == ["Once", "The <b>"]
    steps = [step for step, _ in found.samples["Once"]]
    assert (len(steps), steps[0], steps[-1]) == (MOST_SAMPLED, 1, 100)
    text = page([found], [ledger_verdict(run.directory)])
    assert '<td class="wide">The &lt;b&gt;</td><td class="wide">100 &amp; more</td>' in text


def test_what_a_run_has_cost(tmp_path: Path) -> None:
    run = InterruptedRun(tmp_path, "paid", 10)
    run.launch()
    run.train(10)
    assert "spent" not in page([run_data(run.directory, START)], [None])
    rate = {"node": "H100:8", "capacity": "spot", "usd_per_hour": 12.0, "nodes": 0}
    facts = {"generation": 1, "budget_usd": 20.0, "rates": [{**rate, "seconds": 5400.0}]}
    run.directory.launcher.append({"time": stamp(START + 1800), "event": "billed", **facts})
    text = page([run_data(run.directory, START)], [None])
    assert '<th class="number">spent</th>' in text
    assert "$18.00 of $20.00" in text
    cells = ("H100:8", "spot", "12.00", "1.50", "18.00")
    assert "Money, by the target's prices" in text
    assert all(f">{cell}</td>" in text for cell in cells)


def test_spikes_survive_thinning() -> None:
    random.seed(1)
    y: list[float | None] = [random.random() for _ in range(100_000)]
    y[31_415], y[71_828], y[50_000] = 99.0, -99.0, None
    x, kept = thinned(range(100_000), y)
    assert len(x) == len(kept) <= MOST_POINTS
    assert x == sorted(x)
    assert (x[0], x[-1]) == (0, 99_999)
    assert {99.0, -99.0} <= set(kept)


def page_of(headway: Headway, folder: Path, *names: str) -> str:
    said = headway("report", *names)
    assert said.exit_code == 0, said.err
    assert said.err.startswith("wrote report.html (0.")
    return (folder / "report.html").read_text()


def test_one_run(headway: Headway, folder: Path) -> None:
    run = ten_interruptions(folder)
    page = page_of(headway, folder, "spot")
    assert page.count("changing members</td>") == 5
    assert '<td class="wide">node 0 is lost: no heartbeat</td>' in page
    assert "ledger" in page
    assert ">exact</span>: 600 steps, 4,800 samples" in page
    assert "torch 2.15.0" in page
    assert "optimizer:" in page, "the run file"
    (data,) = DATA.findall(page)
    charts = {chart["id"]: chart for chart in json.loads(data)["charts"]}
    assert set(charts) == {"loss", "lr", "grad_norm", "tokens_per_second", "members"}
    assert [one["label"] for one in charts["loss"]["series"]] == ["Loss", "held-out"]
    assert len(charts["loss"]["series"][0]["x"]) == run.step == 600


def test_what_was_planned_beside_what_was_measured(headway: Headway, folder: Path) -> None:
    run = ten_interruptions(folder)
    assert "lanned and measured" not in page_of(headway, folder, "spot"), "an earlier version's"
    slow = Figure(2.0, 1.9, 2.1, "fitted", "half of <the> peak")
    record = PlanRecord("2026-11-18T00:00:00Z", "cpu:1", {"step_seconds": slow})
    run.directory.store.write(PLAN, record.as_text().encode())
    page = page_of(headway, folder, "spot")
    assert "<h2>Planned and measured</h2>" in page
    assert '<td>a step</td><td class="number">2 s</td><td class="number">1 s</td>' in page
    assert "below what was planned (fitted): half of &lt;the&gt; peak" in page
    assert "<td>goodput</td>" in page


def test_activations_by_block(headway: Headway, folder: Path) -> None:
    run = InterruptedRun(folder, "watched", 100)
    run.launch()
    run.train(100)
    for step in (50, 100):
        for block in range(24):
            numbers = {"largest": 3.0 + block, "attention_entropy": None if block else 1.5}
            line = {"step": step, "block": block, "generation": 1, **numbers}
            run.directory.activations.append(line)
    (data,) = DATA.findall(page_of(headway, folder, "watched"))
    charts = {chart["id"]: chart for chart in json.loads(data)["charts"]}
    assert "attention_largest" not in charts, "it has none"
    lines = charts["largest"]["series"]
    assert [one["label"] for one in lines] == [f"block {n}" for n in (0, 3, 7, 10, 13, 16, 20, 23)]
    assert (lines[-1]["x"], lines[-1]["y"]) == ([50, 100], [26.0, 26.0])
    assert charts["attention_entropy"]["series"][1]["y"] == [None, None], "not a number"
    ten_interruptions(folder, "other")
    (data,) = DATA.findall(page_of(headway, folder, "watched", "other"))
    assert "largest" not in {chart["id"] for chart in json.loads(data)["charts"]}


def test_nothing_is_fetched(headway: Headway, folder: Path) -> None:
    ten_interruptions(folder)
    page = page_of(headway, folder, "spot")
    assert not re.search(r"""(src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest""", page)
    assert "The MIT License" in page


def test_several_runs_are_drawn_over_each_other(headway: Headway, folder: Path) -> None:
    ten_interruptions(folder, "slow", 1e-4)
    ten_interruptions(folder, "fast", 1e-2)
    page = page_of(headway, folder, "slow", "fast")
    assert re.search(r"<code>optimizer.lr</code></td><td>0.0001</td><td>0.01</td>", page)
    (data,) = DATA.findall(page)
    labels = [one["label"] for one in json.loads(data)["charts"][0]["series"]]
    assert labels == ["slow", "fast", "slow: held-out", "fast: held-out"]
    assert page.count('class="timeline"') == 2


def test_a_name_is_only_text(headway: Headway, folder: Path) -> None:
    run = InterruptedRun(folder, "it", 10)
    run.launch()
    run.train(1)
    run.change("</script><script>alert(1)</script>", 1, 1.0)
    page = page_of(headway, folder, "it")
    assert "<script>alert" not in page


def test_no_such_run(headway: Headway, folder: Path) -> None:
    said = headway("report", "nothing")
    assert said.exit_code == 3
    assert not (folder / "report.html").exists()


def test_a_long_run_is_a_small_page(headway: Headway, folder: Path) -> None:
    run = InterruptedRun(folder, "long", 20_000)
    run.launch()
    run.train(20_000, seconds=0.1)
    page = page_of(headway, folder, "long")
    assert len(page) < 1e6
