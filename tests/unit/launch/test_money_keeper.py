"""The keeper counts what the pods of a run cost, and stops the run at its budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from headway.kube.client import KubeClient
from headway.kube.names import ACCELERATORS
from headway.kube.node_prices import NodePrices
from headway.launch.job_keeper import BUDGET_SECONDS, JOB_SECONDS, UNRECORDED_SECONDS
from headway.launch.money_keeper import UNREADABLE_SECONDS
from headway.spec.price_config import PriceConfig
from headway.state.spent_money import Spending, spending_of
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
        made.kube.others = ("nodes",)
        made.keeper = made.new_keeper(rates=RATES)
        yield made


def spending(run: KeptRun) -> Spending:
    """By the journal."""
    found = spending_of(run.directory.history(), run.clock.now())
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
    run.kube.put(f"{NODES}/{name}", {"metadata": {"name": name, "labels": labels}, "status": {}})


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
    found = read_status(run.directory, run.clock.now() + HOUR).spending
    assert found is not None
    assert found.usd == pytest.approx(64 * ran / HOUR, abs=0.1), "pods cost until they end"
    assert (found.budget_usd, found.usd_per_hour) == (100, 0)


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


def test_a_pod_that_ends_and_is_gone_between_two_looks_costs_until_the_second(run: KeptRun) -> None:
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
    run.clock.passed += HOUR
    assert spending(run).usd == pytest.approx(32 * 1900 / HOUR, abs=0.05)


def test_pods_that_are_there_before_the_coordinator_cost_from_their_start(run: KeptRun) -> None:
    """Its image may take minutes to pull."""
    after = run.launch(run.keeper)
    assert after is not None
    run.record_generation(after + 1)
    run.keeper.pods.watch.start()
    run.create_pod(0, "it-0-first", age_seconds=600.0)
    run.start_pod("it-0-first", "node1")
    run.look(2 * JOB_SECONDS)
    assert spending(run).usd == pytest.approx(32 * (600 + run.clock.passed) / HOUR, abs=0.01)


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
    assert spending_of(run.directory.history(), run.clock.now()) is None
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


def test_one_list_answers_for_all_machines(run: KeptRun) -> None:
    machines = [f"node{number}" for number in range(60)]
    for number, machine in enumerate(machines):
        node(run, machine, is_spot=number % 2 == 1)
    run.kube.page = 25
    run.keeper = run.new_keeper(rates=ABOVE_ONE)
    run.begin(*machines)
    pass_time(run, 60)
    found = {one.capacity: one.nodes for one in spending(run).rates}
    assert found == {"on_demand": 30, "spot": 30}
    asked = [call for call in run.kube.calls if NODES in call]
    assert asked == [f"GET {NODES}"] * 2, "one list, in two pages"


def test_a_busy_api_server_is_asked_when_it_says(run: KeptRun) -> None:
    node(run, "node2", is_spot=True)
    run.kube.retry_after_seconds = 40
    run.kube.refusing[f"GET {NODES}"] = [(429, "too many requests")] * 3
    run.keeper = run.new_keeper(rates=ABOVE_ONE)
    run.begin("node1", "node2")
    run.look(38)
    assert run.kube.calls.count(f"GET {NODES}") == 1
    assert {one.capacity for one in spending(run).rates} == {"on_demand", "unknown"}
    run.look(100)
    assert run.kube.calls.count(f"GET {NODES}") == 4
    assert {one.capacity for one in spending(run).rates if one.nodes} == {"on_demand", "spot"}


def test_an_api_server_that_stays_busy_is_asked_less_and_less(run: KeptRun) -> None:
    run.kube.refusing[f"GET {NODES}"] = [(429, "too many requests")] * 1000
    run.keeper = run.new_keeper(rates=ABOVE_ONE)
    run.begin("node1", *(f"node{number}" for number in range(2, 30)))
    run.look(600)
    assert run.kube.calls.count(f"GET {NODES}") <= 9, "2, 4, 8, ... 256 s"


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


def test_a_new_keeper_continues_from_the_newest_bill_that_is_not_damaged(run: KeptRun) -> None:
    run.begin("node1", "node2")
    pass_time(run, HOUR)
    run.directory.launcher.flush()
    with run.directory.store.path("launcher.jsonl").open("a") as file:
        file.write('{"event":"billed","rates":[],"sum":"00000000"}\n')
    run.keeper.pods.watch.stop()
    run.keeper = run.new_keeper(rates=RATES)
    run.launch(run.keeper)
    run.keeper.pods.watch.start()
    run.look(JOB_SECONDS)
    assert spending(run).usd == pytest.approx(64 * run.clock.passed / HOUR, abs=0.5)
    assert not run.job["spec"]["suspend"]
    pass_time(run, 0.6 * HOUR)
    assert run.job["spec"]["suspend"], "its budget is kept"


def make_unreadable(run: KeptRun) -> Path:
    """What has to go for the run's history to be readable."""
    folder = run.directory.store.path("summary.json")
    folder.mkdir()
    return folder


def test_a_journal_that_cannot_be_read_stops_the_run_in_the_end(run: KeptRun) -> None:
    make_unreadable(run)
    run.begin("node1")
    run.look(UNREADABLE_SECONDS / 2)
    assert not run.job["spec"]["suspend"]
    run.look(UNREADABLE_SECONDS / 2 + 2 * BUDGET_SECONDS)
    assert run.job["spec"]["suspend"], "workers save and leave"
    (noted,) = run.events("budget_unknown")
    assert noted["usd"] == 100
    assert "what the run has cost cannot be read: [Errno" in noted["reason"]
    assert noted["hint"] == f"make {run.directory.location} readable"
    assert any("the budget of $100.00 cannot be kept" in words for words in run.said)


MOST_SECONDS = UNREADABLE_SECONDS + UNRECORDED_SECONDS
"""For which a run may go on whose money nobody knows."""


def look_in_big_steps(run: KeptRun, seconds: float) -> None:
    """Without waiting for the store, as a keeper does."""
    end = run.clock.passed + seconds
    run.sync()
    while run.clock.passed < end:
        run.clock.passed += BUDGET_SECONDS + 1
        run.keeper.look(run.coordinator)


def test_a_run_stops_although_neither_its_journal_can_be_read_nor_the_reason_stored(
    run: KeptRun,
) -> None:
    """All of the store is away: money must not be spent without end."""
    make_unreadable(run)
    run.begin("node1")

    def fail() -> None:
        raise OSError("503 slow down")

    run.keeper.notes.directory.launcher.flush = fail
    look_in_big_steps(run, MOST_SECONDS - 300)
    assert not run.job["spec"]["suspend"], "its workers could not save"
    look_in_big_steps(run, 600)
    assert run.job["spec"]["suspend"]
    assert sum("the budget of $100.00 cannot be kept" in words for words in run.said) == 1


def test_a_journal_whose_read_hangs_stops_the_run_in_the_end(run: KeptRun) -> None:
    over = Event()
    run.keeper.job.history.read = over.wait
    run.keeper.job.settle = lambda: None
    run.begin("node1")
    look_in_big_steps(run, UNREADABLE_SECONDS / 2)
    was_stopped_early = run.job["spec"]["suspend"]
    look_in_big_steps(run, UNREADABLE_SECONDS)
    is_stopped = run.job["spec"]["suspend"]
    over.set()  # or the thread would outlive the test
    assert (was_stopped_early, is_stopped) == (False, True)
    (noted,) = run.events("budget_unknown")
    assert noted["reason"] == "what the run has cost cannot be read: the storage does not answer"


def test_a_journal_that_can_be_read_again_keeps_the_budget(run: KeptRun) -> None:
    folder = make_unreadable(run)
    run.begin("node1")
    run.look(UNREADABLE_SECONDS / 2)
    folder.rmdir()
    run.look(UNREADABLE_SECONDS)
    assert not run.job["spec"]["suspend"]
    assert spending(run).usd == pytest.approx(32 * run.clock.passed / HOUR, abs=0.5)


def test_rates_survive_the_environment_of_the_coordinator() -> None:
    assert NodePrices.parse(RATES.text()) == RATES
    assert NodePrices.parse(ABOVE_ONE.text()) == ABOVE_ONE
