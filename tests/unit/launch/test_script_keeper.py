"""The keeper of a script's run: what it knows of one that tells nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.launch.below_minimum import WAITS_SECONDS
from headway.launch.failure_domains import SEEN_SECONDS
from headway.launch.job_keeper import BUDGET_SECONDS, JOB_SECONDS
from support.kept_run import Code, KeptRun, kept_run
from support.scripts import resolved_script

SETTLED = 2.0
MINUTE = 60.0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptRun]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    resolved = resolved_script(tmp_path, 3, "resources.nodes=2..4", "budget.hours=2")
    with kept_run(tmp_path, Code(), resolved=resolved) as made:
        yield made


def end_often(run: KeptRun, times: int, reason: str = "Error", minutes: float = 4.0) -> None:
    """Pods of one node, all killed after so long."""
    for _ in range(times):
        number = len(run.events("lost"))
        name = f"it-2-n{number}"
        run.create_pod(2, name)
        run.look(SETTLED)
        run.start_pod(name, "node3")
        run.clock.passed += minutes * MINUTE
        run.end_pod(name, 137, reason=reason, ran_seconds=minutes * MINUTE)
        run.look(SETTLED)
        run.clock.passed += SEEN_SECONDS
        run.look(2 * JOB_SECONDS)


def test_pods_that_are_killed_with_their_machines_do_not_end_the_run(run: KeptRun) -> None:
    run.begin("node1", "node2")
    end_often(run, 12)
    assert not run.job["spec"]["suspend"]
    assert run.events("failed") == []


def test_pods_that_always_run_out_of_memory_do(run: KeptRun) -> None:
    run.begin("node1", "node2")
    end_often(run, 3, "OOMKilled")
    assert run.job["spec"]["suspend"]
    (failed,) = run.events("failed")
    assert "(out of memory), 3 times in a row in the same way, about 4 minutes" in failed["words"]


def test_the_budget_counts_without_a_step(run: KeptRun) -> None:
    run.begin("node1", "node2")
    run.clock.passed += 3600
    run.look(BUDGET_SECONDS)
    assert not run.job["spec"]["suspend"]
    run.clock.passed += 3600
    run.look(BUDGET_SECONDS)
    assert run.job["spec"]["suspend"]
    (noted,) = run.events("budget")
    assert noted["spent_hours"] == pytest.approx(2.0, abs=0.05)


def test_nodes_that_save_before_a_change_are_no_shortage(run: KeptRun) -> None:
    """For two minutes there is no generation with members."""
    first, _ = run.begin("node1", "node2")
    run.coordinator.is_paused, run.coordinator.members = True, set()
    run.look(4 * WAITS_SECONDS)
    assert run.events("below_minimum") == []
    run.coordinator.connected = {first}
    run.look(4 * WAITS_SECONDS)
    (noted,) = run.events("below_minimum")
    assert (noted["nodes"], noted["minimum"]) == (1, 2)
