"""The keeper counts what the pods of a run cost, and stops the run at its budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.kube.client import KubeClient
from headway.kube.names import ACCELERATORS
from headway.kube.node_prices import NodePrices
from headway.launch.job_keeper import JOB_SECONDS
from headway.launch.money_keeper import SAVE_SECONDS
from headway.spec.price_config import PriceConfig
from headway.state.spent_money import Spending, read_spending
from headway.state.status import read_status
from support.kept_run import SPOT, Code, KeptRun, kept_run

HOUR = 3600.0
RATES = NodePrices({"H100:8": PriceConfig(on_demand=32.0, spot=12.0)}, None, None)
ABOVE_ONE = NodePrices(RATES.kinds, 1, SPOT)
NODES = "/api/v1/nodes"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptRun]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kept_run(tmp_path, Code(), "budget.usd=100") as made:
        made.keeper = made.new_keeper(rates=RATES)
        yield made


def spending(run: KeptRun) -> Spending:
    """As it is recorded."""
    run.look(2 * SAVE_SECONDS)
    found = read_spending(run.directory.store)
    assert found is not None
    return found


def pass_time(run: KeptRun, seconds: float) -> None:
    run.clock.passed += seconds
    run.look(JOB_SECONDS)


def end_pods(run: KeptRun, *names: str) -> None:
    for name in names:
        run.end_pod(name, 6)


def node(run: KeptRun, name: str, *, is_spot: bool) -> None:
    labels = {SPOT[0]: SPOT[1]} if is_spot else {}
    run.kube.put(f"{NODES}/{name}", {"metadata": {"name": name, "labels": labels}})


def test_a_run_is_stopped_when_its_money_is_spent(run: KeptRun) -> None:
    names = run.begin("node1", "node2")
    pass_time(run, 1.5 * HOUR)
    assert not run.job["spec"]["suspend"]
    assert spending(run).usd == pytest.approx(2 * 32 * 1.5, abs=2)
    pass_time(run, 0.1 * HOUR)
    assert run.job["spec"]["suspend"], "workers save and leave"
    (noted,) = run.events("budget")
    assert noted["usd"] == 100
    assert 100 <= noted["spent_usd"] < 100 + 64 * 0.1 + 1
    assert any("the budget of $100.00 is used up" in words for words in run.said)
    ran = run.clock.passed
    end_pods(run, *names)
    run.look(2 * JOB_SECONDS)
    assert not run.is_kept
    found = read_spending(run.directory.store)
    assert found is not None
    assert found.usd == pytest.approx(64 * ran / HOUR, abs=0.02), "pods cost until they end"
    status = read_status(run.directory, run.clock.now()).spending
    assert status == found


def test_a_new_keeper_continues_the_sum(run: KeptRun) -> None:
    run.begin("node1", "node2")
    pass_time(run, 0.5 * HOUR)
    before = spending(run).usd
    run.keeper.pods.watch.stop()
    run.keeper = run.new_keeper(rates=RATES)
    run.clock.passed += 0.25 * HOUR  # nobody looks, and pods train
    assert run.launch(run.keeper) is None
    run.keeper.pods.watch.start()
    run.look(JOB_SECONDS)
    found = spending(run)
    assert found.usd == pytest.approx(64 * run.clock.passed / HOUR, abs=1.5)
    assert found.usd > before
    assert [rate.nodes for rate in found.rates] == [2], "the same pods"


def test_a_pod_that_ends_and_is_gone_between_two_looks_costs_until_its_end(run: KeptRun) -> None:
    """As all do when a run is stopped: its Job deletes a pod as soon as it has ended."""
    (name,) = run.begin("node1")
    run.look(JOB_SECONDS)
    run.clock.passed = 1800.0
    run.end_pod(name, 6)
    run.pod(name)["metadata"]["finalizers"] = []
    run.keeper.pods.calls.wait()
    KubeClient.from_kubeconfig(None, "ml").delete_pod(name)
    run.clock.passed = 1900.0
    run.look(JOB_SECONDS)
    assert spending(run).usd == pytest.approx(32 * 1800 / HOUR, abs=0.001)


def test_a_run_that_waits_costs_nothing(run: KeptRun) -> None:
    names = run.begin("node1", "node2")
    pass_time(run, 0.5 * HOUR)
    end_pods(run, *names)
    run.look(JOB_SECONDS)
    before = spending(run).usd
    run.create_pod(0, "it-0-later")
    pass_time(run, HOUR)
    assert spending(run).usd == before, "it has no machine"
    assert before == pytest.approx(32, abs=0.2)


def test_a_run_that_has_spent_its_budget_stops_again_at_once(run: KeptRun) -> None:
    run.begin("node1", "node2", "node3")
    pass_time(run, 1.1 * HOUR)
    assert run.job["spec"]["suspend"]
    run.job["spec"]["suspend"] = False
    run.look(2 * JOB_SECONDS)
    assert run.job["spec"]["suspend"]


def test_without_prices_nothing_is_counted(run: KeptRun) -> None:
    run.keeper = run.new_keeper()
    run.begin("node1")
    pass_time(run, 100 * HOUR)
    assert not run.job["spec"]["suspend"]
    assert read_spending(run.directory.store) is None
    assert read_status(run.directory, run.clock.now()).spending is None


def test_a_pod_costs_what_its_machine_is(run: KeptRun) -> None:
    node(run, "node1", is_spot=True)
    node(run, "node2", is_spot=True)
    node(run, "node3", is_spot=False)
    run.keeper = run.new_keeper(rates=ABOVE_ONE)
    run.begin("node1", "node2", "node3")
    pass_time(run, HOUR)
    found = {(one.capacity, one.usd_per_hour): one.nodes for one in spending(run).rates}
    assert found == {("on_demand", 32.0): 2, ("spot", 12.0): 1}, "node 0 is kept off spot machines"


def test_machines_whose_labels_cannot_be_read_count_as_on_demand(run: KeptRun) -> None:
    run.kube.forbidden.add(NODES)
    run.keeper = run.new_keeper(rates=ABOVE_ONE)
    run.begin("node1", "node2", "node3")
    pass_time(run, 0.5 * HOUR)
    found = {(one.capacity, one.usd_per_hour): one.nodes for one in spending(run).rates}
    assert found == {("on_demand", 32.0): 1, ("unknown", 32.0): 2}
    assert sum("labels of machines cannot be read" in words for words in run.said) == 1


def test_a_machine_that_is_gone_counts_as_on_demand(run: KeptRun) -> None:
    run.keeper = run.new_keeper(rates=ABOVE_ONE)
    run.begin("node1", "node2")
    pass_time(run, 0.5 * HOUR)
    found = {(one.capacity, one.usd_per_hour): one.nodes for one in spending(run).rates}
    assert found == {("on_demand", 32.0): 1, ("unknown", 32.0): 1}


def test_the_kind_that_the_run_has_counts(run: KeptRun) -> None:
    kinds = {"A100:8": PriceConfig(on_demand=16.0), **RATES.kinds}
    run.keeper = run.new_keeper(rates=NodePrices(kinds, None, None))
    run.job["metadata"]["annotations"] = {ACCELERATORS: "A100:8"}
    run.begin("node1")
    pass_time(run, HOUR)
    (rate,) = spending(run).rates
    assert (rate.node, rate.usd_per_hour) == ("A100:8", 16.0)


def test_of_kinds_among_which_a_queue_chooses_the_dearest_counts(run: KeptRun) -> None:
    kinds = {"A100:8": PriceConfig(on_demand=16.0), **RATES.kinds}
    run.keeper = run.new_keeper(rates=NodePrices(kinds, None, None))
    run.begin("node1")
    pass_time(run, HOUR)
    (rate,) = spending(run).rates
    assert (rate.node, rate.usd_per_hour) == ("H100:8", 32.0)


def test_a_damaged_record_is_said_and_not_overwritten(run: KeptRun) -> None:
    run.directory.store.write("spent.json", b"x")
    run.begin("node1")
    run.look(3 * SAVE_SECONDS)
    assert any("spent.json is damaged" in words for words in run.said)
    assert run.directory.store.read("spent.json") == b"x"


def test_rates_survive_the_environment_of_the_coordinator() -> None:
    assert NodePrices.parse(RATES.text()) == RATES
    assert NodePrices.parse(ABOVE_ONE.text()) == ABOVE_ONE
