"""Each defect that is put into the keeper's code makes the test that is named beside it fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.fake_kube import fake_kube
from support.kept_run import KeptRun, kept_run
from support.planting import Defect
from unit.launch import test_keeper as keeper
from unit.launch import test_pod_watch as pod_watch

FOUND = (AssertionError, ValueError)
"""ValueError: there is not exactly one event of a kind."""

DEFECTS: list[tuple[Callable[[KeptRun], None], Defect]] = [
    (
        keeper.test_a_lost_pod_is_replaced_on_another_machine,
        Defect(
            "a lost pod is not replaced",
            "pod_decisions",
            "            *replaced,\n",
            "",
        ),
    ),
    (
        keeper.test_a_lost_pod_is_replaced_on_another_machine,
        Defect(
            "workers of a replaced pod are let in again",
            "pod_keeper",
            "isinstance(decision, DismissPod | ReplacePod)",
            "isinstance(decision, DismissPod)",
        ),
    ),
    (
        keeper.test_a_pod_that_is_scheduled_on_the_machine_nevertheless_is_taken_back,
        Defect(
            "a pod is taken back, and its Job waits for its machine to say so",
            "pod_calls",
            "self._kube.release_pod(call.pod)\n                self._kube.delete_pod",
            "self._kube.delete_pod",
        ),
    ),
    (
        keeper.test_a_pod_that_is_scheduled_on_the_machine_nevertheless_is_taken_back,
        Defect(
            "workers of a pod that was taken back are let in",
            "pod_keeper",
            "coordinator.dismiss(outcome.call.pod)",
            "pass",
        ),
    ),
    (
        keeper.test_a_pod_stays_on_a_machine_that_is_back,
        Defect(
            "pods are taken back from a machine that is back",
            "pod_calls",
            "return any(pod_facts(pod).has_ended for pod in found)",
            "return False",
        ),
    ),
    (
        keeper.test_a_pod_that_is_scheduled_on_the_machine_nevertheless_is_taken_back,
        Defect(
            "a machine that is lost passes for one that is back",
            "pod_calls",
            "return any(pod_facts(pod).has_ended for pod in found)",
            "return bool(found)",
        ),
    ),
    (
        keeper.test_a_marker_that_another_run_has_forgotten_is_deleted_when_a_pod_waits,
        Defect(
            "the marker of another run is deleted while its keeper needs it",
            "forgotten_markers",
            "if now > (marker.suspect_until or marker.created) + FORGOTTEN_SECONDS",
            "if True",
        ),
    ),
    (
        keeper.test_the_keeper_of_an_interrupted_launch_ends,
        Defect(
            "the keeper of an interrupted launch waits forever, for one call has failed",
            "job_keeper",
            "has_given_up = self._gave_up_launch(job)",
            "has_given_up = self._gave_up_launch(job) or True",
        ),
    ),
    (
        keeper.test_a_lost_pod_is_replaced_on_another_machine,
        Defect(
            "the next pod goes to the machine that lost one",
            "pod_decisions",
            "marking = Marking(pod.job_uid, suspect.until)",
            "pass",
        ),
    ),
    (
        keeper.test_a_pod_that_is_scheduled_on_the_machine_nevertheless_is_taken_back,
        Defect(
            "a pod on a dead machine is waited for",
            "pod_decisions",
            "return not pod.has_ended and pod.delete_by is None",
            "return False",
        ),
    ),
    (
        keeper.test_a_marker_that_leaves_no_room_for_its_replacement_is_deleted,
        Defect(
            "a quota without room for a marker stops the replacement",
            "pod_decisions",
            "(suspect.until <= now or is_blocked)",
            "suspect.until <= now",
        ),
    ),
    (
        keeper.test_a_failed_deletion_of_a_marker_is_retried,
        Defect(
            "a marker is forgotten when its deletion is asked for",
            "pod_decisions",
            "RemoveMarker(name) for name in sorted(self.ended_markers)",
            "RemoveMarker(self.ended_markers.pop()) for _ in sorted(self.ended_markers)",
        ),
    ),
    (
        keeper.test_a_new_keeper_finds_the_markers_of_the_one_before,
        Defect(
            "a new keeper leaves the markers of the one before",
            "pod_keeper",
            "self._tracker.find_markers(self._kube.pods(wanted, pod_facts)[0], pods)",
            "pass",
        ),
    ),
    (
        lambda run: keeper.test_when_a_run_ends_its_markers_go_before_the_keeper(run, "stopped"),
        Defect(
            "the coordinator of a stopped run goes before its markers",
            "job_decisions",
            "if facts.pods is None or facts.has_markers:",
            "if facts.pods is None:",
        ),
    ),
    (
        keeper.test_a_machine_that_lost_a_pod_is_used_again_later,
        Defect(
            "a machine that lost a pod is never used again",
            "pod_decisions",
            "if suspect.until <= now:\n",
            "if False:\n",
        ),
    ),
    (
        keeper.test_pods_are_replaced_later_when_no_pod_is_heard_of,
        Defect(
            "all pods are replaced when the coordinator is cut off",
            "pod_decisions",
            "LOST_SECONDS if connected else self.alone_seconds",
            "LOST_SECONDS",
        ),
    ),
    (
        keeper.test_a_member_is_left_alone_while_a_new_coordinator_waits_for_it,
        Defect(
            "a member is replaced that a new coordinator waits for",
            "pod_decisions",
            "if pod.name in members:",
            "if False:",
        ),
    ),
    (
        keeper.test_pods_of_a_stopped_run_have_their_grace_period_and_are_not_replaced,
        Defect(
            "pods of a stopped run are replaced while they save",
            "pod_decisions",
            "if pod.delete_by is not None:",
            "if False:",
        ),
    ),
    (
        keeper.test_pods_of_a_stopped_run_that_come_back_are_dismissed_and_not_replaced,
        Defect(
            "pods that Kubernetes has deleted train on",
            "pod_decisions",
            "            *(DismissPod(name) for name in sorted(dismissed)),\n",
            "",
        ),
    ),
    (
        keeper.test_a_failed_pod_is_released_so_that_its_job_replaces_it_at_once,
        Defect(
            "failed pods are left to their Job, which counts them",
            "pod_decisions",
            "for pod in pods if pod.is_uncounted)",
            "for pod in pods if False)",
        ),
    ),
    (
        keeper.test_of_many_failed_pods_the_newest_are_kept,
        Defect(
            "the oldest failed pods are kept",
            "pod_decisions",
            "_failed(pods)[:-KEPT]",
            "_failed(pods)[KEPT:]",
        ),
    ),
    (
        keeper.test_the_minimum_of_nodes_is_kept_off_spot_machines,
        Defect(
            "the minimum of nodes runs on spot machines",
            "pod_decisions",
            "pod.index < self.minimum_nodes",
            "pod.index > self.minimum_nodes",
        ),
    ),
    (
        keeper.test_a_run_whose_pods_keep_running_out_of_memory_is_stopped,
        Defect(
            "pods that run out of memory are retried for ever",
            "job_decisions",
            "if facts.is_hopeless:",
            "if False:",
        ),
    ),
    (
        keeper.test_a_run_that_makes_steps_in_between_continues,
        Defect(
            "a run that loses pods and makes steps is stopped",
            "pod_calls",
            "step=self._newest_step()",
            "step=0",
        ),
    ),
    (
        keeper.test_a_run_is_stopped_when_its_budget_is_used_up,
        Defect(
            "the budget is not heeded",
            "job_decisions",
            "return [NoteBudget(facts.spent_seconds), StopRun()]",
            "return []",
        ),
    ),
    (
        keeper.test_scaling_is_noted_once,
        Defect(
            "scaling is noted at each look",
            "job_decisions",
            "        self.nodes = job.nodes\n",
            "        self.nodes = self.nodes or job.nodes\n",
        ),
    ),
    (
        keeper.test_a_stopped_run_ends_its_coordinator_after_its_last_pod,
        Defect(
            "the coordinator of a stopped run goes before the last pod has saved",
            "job_decisions",
            "and _is_empty(facts)",
            "",
        ),
    ),
    (
        keeper.test_a_run_suspended_by_its_queue_is_left_alone,
        Defect(
            "a run suspended by its queue loses its coordinator",
            "job_decisions",
            "self.is_suspended and (self.queue is None or self.was_stopped)",
            "self.is_suspended",
        ),
    ),
    (
        keeper.test_a_failed_run_notes_the_node_that_failed_and_its_last_words,
        Defect(
            "a failed run does not say which node failed",
            "job_decisions",
            "_failure(job.failure, facts.pods or ())",
            "_failure(job.failure, ())",
        ),
    ),
    (
        keeper.test_a_replaced_coordinator_pod_does_not_start_a_new_launch,
        Defect(
            "a replaced coordinator pod starts a new launch",
            "job_keeper",
            "facts.gave_back is not None or facts.launch == self._tracker.launch",
            "False",
        ),
    ),
    (
        keeper.test_without_the_api_server_nothing_is_done_and_that_is_reported_once,
        Defect(
            "an API server that is away is said at each look",
            "keeper_notes",
            "if error.message != self._away:",
            "if True:",
        ),
    ),
    (
        keeper.test_failed_calls_about_pods_are_retried,
        Defect(
            "a call that failed is not made again",
            "pod_calls",
            "            if error is None:\n                self._done.add(key)\n",
            "            self._done.add(key)\n",
        ),
    ),
    (
        keeper.test_a_call_that_succeeded_is_not_repeated,
        Defect(
            "calls are made again until the watch shows what they did",
            "pod_calls",
            " and key not in self._done",
            "",
        ),
    ),
]

WATCH_DEFECTS: list[tuple[Callable[[pod_watch.WatchedPods], None], Defect]] = [
    (
        pod_watch.test_pods_of_the_run_come_change_and_go,
        Defect(
            "pods that are gone stay known",
            "pod_watch",
            'if what == "DELETED":',
            "if False:",
        ),
    ),
    (
        pod_watch.test_pods_are_listed_again_when_the_server_has_forgotten_what_changed,
        Defect(
            "pods are not listed again after 410 Gone",
            "pod_watch",
            '            except StaleVersion:\n                version = ""\n',
            "",
        ),
    ),
    (
        pod_watch.test_an_unreachable_api_server_is_reported_once_and_the_pods_stay_known,
        Defect(
            "an API server that is away is said at each attempt",
            "pod_watch",
            "if error.message != said:",
            "if True:",
        ),
    ),
]


def cases(defects: list[tuple[Callable[..., None], Defect]]) -> list[object]:
    return [pytest.param(*one, id=one[1].name) for one in defects]


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


@pytest.mark.long("tests the tests of the keeper")
@pytest.mark.parametrize(("finds", "defect"), cases(DEFECTS))
def test_a_defect_of_the_keeper_is_found(
    tmp_path: Path, finds: Callable[[KeptRun], None], defect: Defect
) -> None:
    with kept_run(tmp_path, defect.planted(), *keeper.SETTINGS) as run, pytest.raises(FOUND):
        finds(run)


@pytest.mark.long("tests the tests of the keeper")
@pytest.mark.parametrize(("finds", "defect"), cases(WATCH_DEFECTS))
def test_a_defect_of_the_watch_is_found(
    tmp_path: Path, finds: Callable[[pod_watch.WatchedPods], None], defect: Defect
) -> None:
    kind = defect.planted().pod_watch.PodWatch
    with fake_kube(tmp_path) as kube:
        watched = pod_watch.WatchedPods(kube, kind, seconds=1.0)
        with pytest.raises(FOUND):
            finds(watched)
        watched.watch.stop()


def test_without_a_defect_nothing_is_found(tmp_path: Path) -> None:
    """What finds them is the defects, not the planting."""
    nothing = Defect("nothing", "keeper", "LOOK_SECONDS = 0.5\n", "LOOK_SECONDS = 0.5\n")
    with kept_run(tmp_path, nothing.planted(), *keeper.SETTINGS) as run:
        keeper.test_a_lost_pod_is_replaced_on_another_machine(run)
