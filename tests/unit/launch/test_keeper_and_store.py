"""A keeper whose run's store is away or slow: it survives, and does what Kubernetes asks for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.launch.job_keeper import BUDGET_SECONDS
from headway.launch.pod_calls import STEP_SECONDS
from support.kept_run import Code, KeptRun, kept_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptRun]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kept_run(tmp_path, Code(), "budget.hours=2") as made:
        yield made


def test_an_outage_of_the_store_ends_no_keeper_and_is_said_once(run: KeptRun) -> None:
    """Of a run with a budget of hours, which is counted from its files. Lost pods are replaced
    meanwhile, and the budget is kept when the store is back."""
    _, second = run.begin("node1", "node2")
    history = run.keeper.job.history
    read, history.read = history.read, fail_with(OSError("503 slow down"))
    run.look(3 * BUDGET_SECONDS)
    run.end_pod(second, 137, reason="OOMKilled")
    run.look(3 * BUDGET_SECONDS)
    assert run.is_released(second)
    assert [words for words in run.said if "503" in words] == [
        "what the run has used cannot be read: 503 slow down"
    ]
    history.read = read
    run.train(1)
    run.clock.passed += 8000.0
    run.train(2)
    run.look(2 * BUDGET_SECONDS)
    assert run.job["spec"]["suspend"]


def fail_with(error: OSError) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def test_a_store_that_does_not_answer_holds_up_no_call_to_kubernetes(
    run: KeptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten failed pods are released, though each is to be counted by the run's newest step."""
    names = run.begin(*(f"node{index}" for index in range(10)))
    answers = threading.Event()
    monkeypatch.setattr(run.directory.metrics, "last", lambda: answers.wait(20.0) and None)
    for name in names:
        run.end_pod(name, 137, reason="OOMKilled")
    run.sync()
    run.keeper.look(run.coordinator)
    deadline = time.monotonic() + 5.0
    while not all(run.is_released(name) for name in names) and time.monotonic() < deadline:
        time.sleep(0.01)
    is_released = [run.is_released(name) for name in names]
    while len(run.events("lost")) < 10 and time.monotonic() < deadline:
        run.clock.passed += STEP_SECONDS  # a call that has just released a pod may not be back yet
        run.keeper.look(run.coordinator)
    noted = len(run.events("lost"))
    answers.set()
    assert is_released == [True] * 10
    assert noted == 10, "that they are lost does not depend on the store"
