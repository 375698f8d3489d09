"""What a user notices of a run that gives its pods back, over a fake API server: the keeper with
its Job, and the commands that meet it there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock, seconds_of
from headway.kube.api_errors import Conflict
from headway.kube.client import KubeClient
from headway.kube.gave_back import patch_of_mark
from headway.kube.kinds import KindTerms
from headway.kube.names import ACCELERATORS, GAVE_BACK
from headway.launch.below_minimum import WAITS_SECONDS
from headway.launch.cluster_run import ClusterRun
from headway.launch.job_keeper import BUDGET_SECONDS, JOB_SECONDS
from headway.launch.training_wait import reasons_to_wait
from headway.state.status import read_status
from support.fake_pods import PODS
from support.kept_run import JOBS, SCARCITY, START, Code, KeptRun, kept_run

TWO_OF_FOUR = ("resources.nodes=2..4",)
GIVEN_BACK_SECONDS = SCARCITY.give_back_seconds + 2 * JOB_SECONDS
PAUSE_SECONDS = 1.5 * SCARCITY.try_again_seconds


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptRun]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kept_run(tmp_path, Code(), *TWO_OF_FOUR) as made:
        yield made


@pytest.fixture
def user(run: KeptRun) -> ClusterRun:
    return ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", SystemClock())


def give_back(run: KeptRun) -> None:
    """It has one pod of the two that it needs; Kubernetes ends it when the Job is suspended."""
    (only,) = run.begin("node1")
    run.look(GIVEN_BACK_SECONDS)
    assert run.job["spec"]["suspend"]
    run.end_pod(only, 6)
    run.job["status"]["conditions"] = [{"type": "Suspended", "status": "True"}]


def start_again(run: KeptRun) -> None:
    """As Kubernetes does when the Job is no longer suspended."""
    assert not run.job["spec"]["suspend"]
    run.job["status"] = {"startTime": "2026-11-16T10:00:00Z", "conditions": []}


def mark_of(run: KeptRun) -> str | None:
    mark: str | None = run.job["metadata"].get("annotations", {}).get(GAVE_BACK)
    return mark


def replace_keeper(run: KeptRun) -> int | None:
    """Returns the generation after which a new launch begins, if it is one."""
    run.keeper.pods.watch.stop()
    run.keeper = run.new_keeper()
    after = run.launch(run.keeper)
    run.keeper.pods.watch.start()
    return after


def test_a_run_without_its_minimum_gives_back_what_it_has(run: KeptRun) -> None:
    run.begin("node1")
    run.look(SCARCITY.give_back_seconds - JOB_SECONDS)
    assert not run.job["spec"]["suspend"]
    run.look(2 * JOB_SECONDS)
    assert run.job["spec"]["suspend"]
    (noted,) = run.events("gave_back")
    assert (noted["held"], noted["needed"], noted["attempt"]) == (1, 2, 1)
    pause = seconds_of(noted["retry_at"]) - START - run.clock.passed
    assert 0.4 * SCARCITY.try_again_seconds < pause < 1.6 * SCARCITY.try_again_seconds
    assert any("had 1 of the 2 nodes that it needs for 60 s" in said for said in run.said)
    run.look(JOB_SECONDS)
    assert len(run.events("gave_back")) == 1


def test_a_run_whose_pods_never_start_gives_back_their_machines_and_says_why(
    run: KeptRun, user: ClusterRun
) -> None:
    run.launch(run.keeper)
    run.keeper.pods.watch.start()
    waits = {"reason": "ImagePullBackOff", "message": "registry/none: not found"}
    for index in range(2):
        name = f"it-{index}-first"
        run.create_pod(index, name)
        run.schedule_pod(name, "node1")
        run.wait_in_pod(name, waits)
    run.look(GIVEN_BACK_SECONDS)
    assert run.job["spec"]["suspend"]
    had = (
        "had 0 of the 2 nodes that it needs (2 more did not start: the image cannot be pulled: "
        "registry/none: not found)"
    )
    assert any(words.startswith(f"{had} for 6") for words in run.said)
    (given,) = run.events("gave_back")
    assert (given["held"], given["shortage"]) == (2, had)
    job = user.require_job()
    (reason,) = reasons_to_wait(user, job, is_kept=True)
    assert reason.words.startswith(f"{had}: gave its pods back, tries again at ")


def test_a_run_with_its_minimum_keeps_its_pods(run: KeptRun) -> None:
    run.begin("node1", "node2")
    run.look(5 * GIVEN_BACK_SECONDS)
    assert not run.job["spec"]["suspend"]


def test_it_tries_again_by_itself_and_trains(run: KeptRun) -> None:
    give_back(run)
    run.look(PAUSE_SECONDS + JOB_SECONDS)
    assert run.is_kept, "its coordinator stays"
    assert mark_of(run) is None
    start_again(run)
    for index, machine in enumerate(["node1", "node2"]):
        run.create_pod(index, f"it-{index}-second")
        run.start_pod(f"it-{index}-second", machine)
    run.look(5 * GIVEN_BACK_SECONDS)
    assert not run.job["spec"]["suspend"]
    assert len(run.events("tries_again")) == 1
    assert len(run.events("launched")) == 2


def test_a_failed_attempt_to_give_back_or_to_try_again_is_repeated(run: KeptRun) -> None:
    run.kube.failing[f"PATCH {JOBS}/headway-it"] = 1
    give_back(run)
    assert len(run.events("gave_back")) == 1
    run.kube.failing[f"PATCH {JOBS}/headway-it"] = 1
    run.look(PAUSE_SECONDS + 2 * JOB_SECONDS)
    assert not run.job["spec"]["suspend"]
    assert len(run.events("tries_again")) == 1


def test_what_somebody_does_at_the_same_time_counts(run: KeptRun, user: ClusterRun) -> None:
    """A stop between the keeper's look at the Job and its start of it."""
    give_back(run)
    run.job["metadata"]["resourceVersion"] = "8"
    seen = user.require_job()
    user.stop(run.said.append)
    run.job["metadata"]["resourceVersion"] = "9"
    with pytest.raises(Conflict, match="modified"):
        user.kube.patch_job("headway-it", patch_of_mark(seen, None))
    assert run.job["spec"]["suspend"]


def test_a_keeper_that_is_replaced_meanwhile_tries_again(run: KeptRun) -> None:
    give_back(run)
    mark = mark_of(run)
    assert replace_keeper(run) is None
    assert len(run.events("launched")) == 1
    assert mark_of(run) == mark
    run.look(PAUSE_SECONDS + JOB_SECONDS)
    assert mark_of(run) is None
    assert not run.job["spec"]["suspend"]


def test_after_another_start_a_new_keeper_keeps_the_members(run: KeptRun) -> None:
    """The keeper has outlived the suspension, and has noted the new start."""
    give_back(run)
    run.look(PAUSE_SECONDS + JOB_SECONDS)
    start_again(run)
    run.look(JOB_SECONDS)
    assert replace_keeper(run) is None, "the members are those of this launch"
    assert len(run.events("launched")) == 2


def test_after_another_start_a_new_keeper_pauses_longer(run: KeptRun) -> None:
    give_back(run)
    run.look(PAUSE_SECONDS + JOB_SECONDS)
    start_again(run)
    run.look(JOB_SECONDS)
    replace_keeper(run)
    run.create_pod(0, "it-0-second")
    run.start_pod("it-0-second", "node1")
    run.look(GIVEN_BACK_SECONDS)
    assert [noted["attempt"] for noted in run.events("gave_back")] == [1, 2]


def test_a_new_keeper_of_a_run_that_has_trained_since_begins_with_the_first_pause(
    run: KeptRun,
) -> None:
    give_back(run)
    run.look(PAUSE_SECONDS + JOB_SECONDS)
    start_again(run)
    run.look(JOB_SECONDS)
    run.journal.note("started")
    replace_keeper(run)
    run.create_pod(0, "it-0-second")
    run.start_pod("it-0-second", "node1")
    run.look(GIVEN_BACK_SECONDS)
    assert [noted["attempt"] for noted in run.events("gave_back")] == [1, 1]


def test_a_mark_on_a_job_that_somebody_has_started_is_removed(run: KeptRun) -> None:
    """By kubectl. Otherwise a later stop by kubectl would look as if pods were given back."""
    give_back(run)
    run.job["spec"]["suspend"] = False
    start_again(run)
    run.look(2 * JOB_SECONDS)
    assert mark_of(run) is None
    assert not run.job["spec"]["suspend"]
    assert run.events("tries_again") == []
    run.job["spec"]["suspend"] = True
    run.look(2 * PAUSE_SECONDS)
    assert run.job["spec"]["suspend"], "stopped is stopped"


def test_below_its_minimum_it_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain number of nodes is no minimum."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kept_run(tmp_path, Code(), "resources.nodes=3") as run:
        run.begin("node1", "node2", "node3")
        run.look(JOB_SECONDS)
        run.coordinator.is_paused = True
        run.look(2 * WAITS_SECONDS)
        (noted,) = run.events("below_minimum")
        assert noted["minimum"] == 1


def test_a_run_that_starts_again_is_not_below_its_minimum(run: KeptRun) -> None:
    """It has trained before, and its nodes are still to come."""
    (only,) = run.begin("node1")
    run.coordinator.is_paused = True
    run.look(GIVEN_BACK_SECONDS)
    noted = run.events("below_minimum")
    assert [each["minimum"] for each in noted] == [2]
    run.end_pod(only, 6)
    run.job["status"]["conditions"] = [{"type": "Suspended", "status": "True"}]
    run.look(PAUSE_SECONDS + JOB_SECONDS)
    start_again(run)
    run.look(SCARCITY.give_back_seconds)
    assert run.events("below_minimum") == noted


def test_a_mark_that_somebody_has_edited_is_no_trap(run: KeptRun) -> None:
    give_back(run)
    run.job["metadata"]["annotations"][GAVE_BACK] = "tomorrow"
    run.look(JOB_SECONDS)
    assert not run.job["spec"]["suspend"]


def test_the_pause_does_not_use_up_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kept_run(tmp_path, Code(), *TWO_OF_FOUR, "budget.hours=0.5") as run:
        run.train(1)
        give_back(run)
        run.job["metadata"]["annotations"][GAVE_BACK] = f"{run.clock.now() + 3600:.0f} 0 1 2"
        run.clock.passed += 3600
        run.look(3 * JOB_SECONDS)
        start_again(run)
        run.look(2 * BUDGET_SECONDS)
        assert len(run.events("launched")) == 2
        assert run.events("budget") == []
        assert not run.job["spec"]["suspend"]


# Commands meanwhile


def test_status_and_list_say_that_it_waits_and_until_when(run: KeptRun, user: ClusterRun) -> None:
    give_back(run)
    shown = user.job_status(user.require_job())
    assert shown.state == "waiting"
    assert shown.is_under_way
    assert shown.why is not None
    assert "had 1 of the 2 nodes that it needs: gave its pods back, tries again at" in shown.why
    (reason,) = reasons_to_wait(user, user.require_job(), is_kept=True)
    assert reason.words == shown.why
    with run.directory.held():
        assert read_status(run.directory, run.clock.now()).state == "waiting"


def test_stopped_meanwhile_it_stays_stopped(run: KeptRun, user: ClusterRun) -> None:
    give_back(run)
    user.stop(run.said.append)
    assert user.job_status(user.require_job()).state == "suspended"
    run.look(3 * PAUSE_SECONDS)
    assert run.job["spec"]["suspend"]
    assert not run.is_kept, "its coordinator ends, too"


def test_resumed_meanwhile_it_tries_again_at_once(run: KeptRun, user: ClusterRun) -> None:
    give_back(run)
    user.resume()
    assert not run.job["spec"]["suspend"]
    assert mark_of(run) is None
    start_again(run)
    run.look(JOB_SECONDS)
    assert len(run.events("launched")) == 2


def test_deleted_meanwhile_the_keeper_ends(run: KeptRun) -> None:
    give_back(run)
    run.delete_job()
    run.look(2 * JOB_SECONDS)
    assert not run.is_kept


def test_resumed_after_a_stop_it_has_its_time_again(run: KeptRun, user: ClusterRun) -> None:
    (only,) = run.begin("node1")
    run.look(SCARCITY.give_back_seconds - JOB_SECONDS)
    run.job["spec"]["suspend"] = True
    run.look(JOB_SECONDS)
    del run.kube.objects[f"{PODS}/{only}"]
    run.keeper.pods.watch.forget(only)
    user.resume()
    run.create_pod(0, "it-0-second")
    run.start_pod("it-0-second", "node1")
    run.look(SCARCITY.give_back_seconds - JOB_SECONDS)
    assert not run.job["spec"]["suspend"]


# Several kinds of accelerator


def terms_of(value: str) -> list[dict[str, Any]]:
    return [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": [value]}]}]


KINDS = [KindTerms("H100:8", terms_of("h100")), KindTerms("A100-80:8", terms_of("a100"))]


def choose(run: KeptRun) -> None:
    """The run may have one of two kinds."""
    run.keeper = run.new_keeper(KINDS)
    run.job["metadata"] |= {"annotations": {ACCELERATORS: "H100:8"}, "resourceVersion": "1"}
    run.job["spec"]["template"] = {"spec": {"containers": []}}


def required(run: KeptRun) -> list[dict[str, Any]]:
    affinity = run.job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    found: list[dict[str, Any]] = required["nodeSelectorTerms"]
    return found


def test_when_the_first_kind_is_gone_the_next_is_tried(run: KeptRun, user: ClusterRun) -> None:
    choose(run)
    give_back(run)
    run.look(JOB_SECONDS)
    assert not run.job["spec"]["suspend"], "at once"
    assert required(run) == KINDS[1].terms
    assert user.job_status(user.require_job()).accelerators == "A100-80:8"
    (noted,) = run.events("tries_again")
    assert noted["accelerators"] == "A100-80:8"
    assert "tries again to have 2 nodes with A100-80:8" in run.said
    order = [call for call in run.kube.calls if call.startswith(f"PATCH {JOBS}/headway-it")]
    assert order[-2:] == [f"PATCH {JOBS}/headway-it/status", f"PATCH {JOBS}/headway-it"]


def test_a_kind_is_not_changed_when_the_job_has_changed(run: KeptRun) -> None:
    choose(run)
    (only,) = run.begin("node1")
    run.look(GIVEN_BACK_SECONDS)
    run.end_pod(only, 6)
    seen = run.keeper.kube.job("headway-it")
    run.job["metadata"]["resourceVersion"] = "of a change"
    with pytest.raises(Conflict):
        run.keeper.kube.forget_start(seen)
    assert run.job["status"]["startTime"]


def test_a_keeper_that_is_replaced_between_the_two_calls_goes_on(run: KeptRun) -> None:
    choose(run)
    give_back(run)
    del run.job["status"]["startTime"]  # all that the one before has done
    run.keeper.pods.watch.stop()
    run.keeper = run.new_keeper(KINDS)
    assert run.launch(run.keeper) is None
    run.keeper.pods.watch.start()
    run.look(JOB_SECONDS)
    assert not run.job["spec"]["suspend"]
    assert required(run) == KINDS[1].terms
    start_again(run)
    run.look(JOB_SECONDS)
    assert len(run.events("launched")) == 2


def test_without_the_right_to_change_the_kind_it_tries_again_with_the_same(run: KeptRun) -> None:
    """`headway target rbac` printed the accounts for a target without a list."""
    choose(run)
    run.kube.forbidden.add(f"{JOBS}/headway-it/status")
    give_back(run)
    run.look(2 * JOB_SECONDS)
    assert not run.job["spec"]["suspend"]
    assert mark_of(run) is None
    assert run.job["metadata"]["annotations"][ACCELERATORS] == "H100:8"
    assert run.job["spec"]["template"] == {"spec": {"containers": []}}
    (noted,) = run.events("tries_again")
    assert noted["accelerators"] == "H100:8"
    assert "tries again to have 2 nodes with H100:8" in run.said
    (said,) = [words for words in run.said if "headway target rbac" in words]
    assert said.startswith("stays with H100:8, because it may not change to A100-80:8: ")
    start_again(run)
    for number in range(2):
        name = f"it-0-again{number}"
        run.create_pod(0, name)
        run.start_pod(name, "node1")
        run.look(GIVEN_BACK_SECONDS)
        run.end_pod(name, 6)
        assert run.job["spec"]["suspend"], "others may need what it holds"
        run.look(JOB_SECONDS)
        assert run.job["spec"]["suspend"], "there is no other kind to try first"
        run.look(4 * PAUSE_SECONDS)
        start_again(run)
    assert sum("headway target rbac" in words for words in run.said) == 1


def test_a_conflict_is_no_reason_to_stay_with_a_kind(run: KeptRun) -> None:
    choose(run)
    run.kube.refusing[f"PATCH {JOBS}/headway-it/status"] = [(409, "has been modified")]
    give_back(run)
    run.look(3 * JOB_SECONDS)
    assert not run.job["spec"]["suspend"]
    assert required(run) == KINDS[1].terms
