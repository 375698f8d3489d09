"""Saves, interruptions and goodput of a planned run."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.plan.accelerators import find_device
from headway.plan.checkpoint_every import placement_of
from headway.plan.figure import Figure
from headway.plan.fleet import Fleet
from headway.plan.goodput import goodput_plan, planned_placement
from headway.plan.workload import Layout, Workload, workload_of
from headway.spec.interruption_rate import InterruptionsConfig
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.spec.run_file import RunFile

H100 = find_device("H100")
RUN = """\
version: 1
model: {type: llama, config: {vocab_size: 32000}}
data: {train: prepared, sequence_length: 4096}
batch: {global: 512}
train_for: 100000 steps
"""


def planned(tmp_path: Path, *overrides: str) -> tuple[RunFile, Workload]:
    (tmp_path / "run.yaml").write_text(RUN)
    run = load_run(tmp_path / "run.yaml", list(overrides)).run
    workload = workload_of(run, None)
    assert workload is not None
    return run, workload


def test_a_month_on_spot_machines(tmp_path: Path) -> None:
    run, workload = planned(tmp_path, "resources.spot=all", "checkpoint.every=auto")
    fleet = Fleet(H100, 8, 8, on_demand_nodes=0)
    found = goodput_plan(run, workload, fleet, Layout(8, True), Figure.exact(10.0, ""))
    assert found.place.mode == "restart"
    assert found.interval == found.best
    assert found.expected is not None
    assert found.expected.interruptions_per_hour.value == pytest.approx(8 * 600 / 3066)
    assert 0.75 < found.expected.goodput.value < 0.90
    calm = InterruptionsConfig.model_validate({"spot": "1% per day"})
    other = goodput_plan(run, workload, fleet, Layout(8, True), Figure.exact(10.0, ""), calm)
    assert other.expected is not None
    assert other.expected.goodput.value > 0.98
    assert other.interval.seconds > found.interval.seconds


def test_an_interval_that_the_run_file_gives(tmp_path: Path) -> None:
    run, workload = planned(tmp_path, "checkpoint.every=30 steps")
    found = goodput_plan(run, workload, Fleet(H100, 8, 8), Layout(8, True), Figure.exact(10.0, ""))
    assert found.interval.seconds == 300
    assert found.interval.figure.reason == "checkpoint.every: 30 steps"


def test_the_chosen_interval_gives_the_best_goodput(tmp_path: Path) -> None:
    """Beside half and twice of it, in a plan for machines that are taken often."""

    def goodput(every: str) -> float:
        run, workload = planned(tmp_path, "resources.spot=all", f"checkpoint.every={every}")
        fleet = Fleet(H100, 8, 2, on_demand_nodes=0)
        found = goodput_plan(run, workload, fleet, Layout(8, True), Figure.exact(10.0, ""))
        assert found.expected is not None
        return found.expected.goodput.value

    run, workload = planned(tmp_path, "resources.spot=all")
    fleet = Fleet(H100, 8, 2, on_demand_nodes=0)
    best = goodput_plan(run, workload, fleet, Layout(8, True), Figure.exact(10.0, "")).best
    assert goodput("auto") >= goodput(f"{best.seconds * 2:.0f}s")
    assert goodput("auto") >= goodput("10min")


SHAPES = [
    ((), 1),
    ((), 4),
    (("shard=node",), 4),
    (("shard=all",), 4),
    (("shard=all",), 1),
    (("shard=2 nodes",), 4),
    (("shard=2 nodes",), 2),
    (("elastic=restart",), 4),
    (("resources.nodes=2..4",), 4),
    (("resources.nodes=4..8",), 4),
    (("resources={nodes: 2..4, spot: above_min}",), 4),
    (("resources.spot=all",), 4),
]


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize(("overrides", "nodes"), SHAPES)
def test_a_plan_and_a_launch_find_the_same(
    tmp_path: Path, overrides: tuple[str, ...], nodes: int, on_gpu: bool
) -> None:
    run, workload = planned(tmp_path, *overrides)
    ranks = 8 if on_gpu else 1
    resolved = resolve(
        load_run(tmp_path / "run.yaml", list(overrides)),
        Hardware(cores=8, cuda_devices=ranks if on_gpu else 0),
        nodes=1,
        parameters=workload.model.size.parameters,
        train_set="",
        validation_sets={},
    ).model_copy(update={"nodes": nodes})
    if not on_gpu and run.elastic == "auto" and not run.shard.is_wide:  # as on a target
        live = run.model_copy(update={"elastic": "live"})
        resolved = resolved.model_copy(update={"run": live})
    on_demand = run.resources.on_demand_nodes
    fleet = Fleet(H100 if on_gpu else None, ranks, nodes, on_demand_nodes=on_demand)
    copy_nodes = run.shard.num_nodes or nodes
    layout = Layout(ranks * copy_nodes if run.shard.is_wide or on_gpu else 1, False)
    found = planned_placement(run, fleet, layout, on_pods=True)
    assert found == placement_of(resolved, on_pods=True)
