"""Events on a run's Job: the ones that people look for, few, and never in the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.kube.client import KubeClient
from headway.launch.below_minimum import WAITS_SECONDS, BelowMinimum
from headway.launch.kube_events import KubeEvents
from headway.launch.worker_exit import failed_facts
from headway.state.run_directory import Journal, RunDirectory
from support.fake_kube import FakeKube, fake_kube
from support.kept_run import TestClock
from support.waiting import wait_for

EVENTS = "/api/v1/namespaces/ml/events"
STARTED = {"resumed_from": None, "workers": 4}


class Posting:
    def __init__(self, kube: FakeKube, folder: Path) -> None:
        self.kube = kube
        self.said: list[str] = []
        self.clock = TestClock()
        self.directory = RunDirectory.create(folder / "it", self.clock)
        self.launcher = Journal(self.directory.launcher, self.clock)
        self.training = Journal(self.directory.events, self.clock)
        self.training.note("started", resumed_from=None, workers=9)  # of an earlier launch
        client = KubeClient.from_kubeconfig(None, "ml")
        job = client.job("headway-it")
        assert job is not None
        self.events = KubeEvents(client, job, self.directory, self.clock, self.said.append)
        self.events.read()

    def posted(self) -> list[tuple[str, str, str]]:
        """Those that a look at the journal leads to."""
        self.events.read()
        while self.events.post():
            self.clock.sleep(1)
        found = [one for path, one in self.kube.objects.items() if path.startswith(f"{EVENTS}/")]
        return [(one["type"], one["reason"], one["message"]) for one in found]


@pytest.fixture
def posting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Posting]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        kube.job("it")
        yield Posting(kube, tmp_path)


def test_what_people_look_for(posting: Posting) -> None:
    launcher, training = posting.launcher, posting.training
    training.note("started", **STARTED)
    for local_rank in range(8):
        launcher.note("lost", node=3, local_rank=local_rank, how="no longer answers (it-3-a)")
    launcher.note("below_minimum", nodes=3, minimum=4)
    launcher.note("replaced", node=3, pod="it-3-b", seconds=12.3)
    launcher.note("gave_back", shortage="had 3 of the 4 nodes that it needs", held=3, needed=4)
    launcher.note("tries_again", attempt=1, needed=4)
    launcher.note("budget", usd=20.0, spent_usd=20.0083)
    training.note("save_failed", step=40, reason="No space left on device")
    training.note("saved", step=50, checkpoint="step-50")
    launcher.note("failed", **failed_facts(1, "CUDA error", "exit code 1", 8))
    training.note("finished", step=100)
    assert sorted(posting.posted()) == [
        ("Normal", "Finished", "all 100 steps are done"),
        ("Normal", "NodeReplaced", "node 3, after 12 s: it-3-b"),
        ("Normal", "TrainingStarted", "from the first step, workers: 4"),
        ("Normal", "TriesAgain", "for 4 nodes"),
        ("Warning", "BelowMinimum", "3 of at least 4 nodes: training waits for the others"),
        ("Warning", "BudgetUsedUp", "$20.01 of $20.00: the run saves and stops"),
        ("Warning", "Failed", "CUDA error"),
        ("Warning", "GaveBack", "had 3 of the 4 nodes that it needs"),
        ("Warning", "NodeLost", "node 3: its pod no longer answers (it-3-a)"),
        ("Warning", "SaveFailed", "step 40: No space left on device"),
    ]


@pytest.mark.parametrize(
    ("step", "finished"), [(0, "the script is done"), (30, "the script is done, at step 30")]
)
def test_of_a_script_nothing_is_said_that_only_a_model_has(
    posting: Posting, step: int, finished: str
) -> None:
    """It may begin anywhere, and tells its steps or does not."""
    posting.events.is_script = True
    posting.training.note("started", resumed_from=None, step=0, total_steps=None, workers=4)
    posting.training.note("finished", step=step)
    assert posting.posted() == [
        ("Normal", "TrainingStarted", "the script runs, workers: 4"),
        ("Normal", "Finished", finished),
    ]


def test_they_are_about_the_job(posting: Posting) -> None:
    posting.training.note("started", **STARTED)
    posting.posted()
    (event,) = (one for path, one in posting.kube.objects.items() if path.startswith(EVENTS))
    job = posting.kube.objects["/apis/batch/v1/namespaces/ml/jobs/headway-it"]
    about = event["involvedObject"]
    assert (about["kind"], about["name"]) == ("Job", "headway-it")
    assert about["uid"] == job["metadata"]["uid"]
    assert event["lastTimestamp"] == "2027-01-15T08:00:00Z"


def test_a_thousand_lost_nodes_are_one_event(posting: Posting) -> None:
    for node in range(1000):
        posting.launcher.note("lost", node=node, local_rank=0, how="was evicted")
    words = "node 999: its pod was evicted (1000 times)"
    assert posting.posted() == [("Warning", "NodeLost", words)]


def test_a_long_message_is_cut(posting: Posting) -> None:
    posting.launcher.note("failed", **failed_facts(0, "x" * 5000, "exit code 1", 1))
    ((_, _, message),) = posting.posted()
    assert len(message) == 1000


def test_an_api_server_that_is_away_gets_it_later(posting: Posting) -> None:
    posting.training.note("started", **STARTED)
    posting.kube.is_away = True
    assert posting.posted() == []
    posting.training.note("started", resumed_from=50, workers=3)
    posting.kube.is_away = False
    words = "resumed from step 50, workers: 3 (2 times)"
    assert posting.posted() == [("Normal", "TrainingStarted", words)]
    assert posting.said == []


def test_without_the_right_it_is_said_once(posting: Posting) -> None:
    posting.kube.forbidden.add(EVENTS)
    posting.training.note("started", **STARTED)
    posting.events.start()
    wait_for("words", lambda: posting.said != [])
    posting.launcher.note("lost", node=0, local_rank=0, how="was evicted")
    posting.events.finish()
    assert not posting.events._thread.is_alive()
    (said,) = posting.said
    assert said.startswith("no events on the Job from now on: Event headway-it.")
    assert posting.kube.calls.count(f"POST {EVENTS}") == 1


@pytest.mark.parametrize("refusal", [(401, "Unauthorized"), (422, "message: Too long")])
def test_one_that_is_refused_is_dropped_and_the_next_ones_are_posted(
    posting: Posting, refusal: tuple[int, str]
) -> None:
    """A token that has expired, say, is soon replaced by the kubelet."""
    posting.kube.refusing[f"POST {EVENTS}"] = [refusal]
    posting.training.note("started", **STARTED)
    posting.events.start()
    wait_for("words", lambda: posting.said != [])
    posting.launcher.note("lost", node=0, local_rank=0, how="was evicted")
    posting.events.finish()
    assert [reason for _, reason, _ in posting.posted()] == ["NodeLost"]
    (said,) = posting.said
    assert said.startswith("an event on the Job is left out (TrainingStarted): Event headway-it.")


def test_the_last_ones_are_posted_before_the_end(posting: Posting) -> None:
    posting.events.start()
    posting.training.note("finished", step=100)
    posting.events.finish()
    assert [reason for _, reason, _ in posting.posted()] == ["Finished"]


def state(is_paused: bool) -> dict[str, Any]:
    return {"generation": {"paused": is_paused}}


def test_below_the_minimum_is_noted_once_each_time() -> None:
    shortage = BelowMinimum()

    def look(is_paused: bool, second: float, is_meant: bool = False) -> bool:
        return shortage.look(state(is_paused), is_meant, second)

    assert not look(True, 0)
    assert not look(True, 10 * WAITS_SECONDS), "its nodes have not joined yet"
    assert not look(False, 200)
    assert not look(True, 201)
    assert not look(False, 202), "a restart"
    assert not look(True, 300)
    assert look(True, 301 + WAITS_SECONDS)
    assert not look(True, 400)
    assert not look(False, 500)
    assert not look(True, 501)
    assert look(True, 502 + WAITS_SECONDS)


def test_a_run_that_is_stopped_is_not_below_its_minimum() -> None:
    shortage = BelowMinimum()
    shortage.look(state(False), False, 0)
    assert not shortage.look(state(True), True, 1)
    assert not shortage.look(state(True), True, 1000)
