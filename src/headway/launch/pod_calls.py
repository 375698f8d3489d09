"""Calls to the API server that carry out decisions about pods, several at a time. A call that
fails is not repeated here: the next look decides again. The run's store, which may not answer for
minutes, is read in a thread of its own: no call to the API server waits for it."""

from __future__ import annotations

from collections.abc import Callable, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from headway.clock import Clock
from headway.kube.client import KubeClient
from headway.kube.names import SUSPECT
from headway.launch.pod_decisions import (
    PlacePod,
    PodCall,
    ReleasePod,
    RemoveMarker,
    RemovePod,
    ReplacePod,
    TakeBackPod,
)
from headway.launch.pod_watch import pod_facts

CALLS_AT_ONCE = 8
"""With `spot: above_min`, thousands of pods are placed at the start of a run, by one call each."""

STEP_SECONDS = 30.0
"""Time that the outcome for a failed pod waits for the newest step of the run."""

CallKey = tuple[type[PodCall], str]


@dataclass(frozen=True)
class Outcome:
    """A call that has returned."""

    call: PodCall
    error: BaseException | None = None
    step: int | None = None
    """For a failed pod that was released: the newest step of the run, if it could be read."""
    is_back: bool = False
    """For a pod that was not taken back: its machine is back."""


class PodCalls:
    def __init__(
        self,
        kube: KubeClient,
        spot_label: tuple[str, str] | None,
        newest_step: Callable[[], int | None],
        clock: Clock,
    ) -> None:
        """`spot_label`: label of spot machines. `newest_step` may take long: a store is read."""
        self._kube = kube
        self._spot_label = spot_label
        self._newest_step = newest_step
        self._clock = clock
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE)
        self._store = ThreadPoolExecutor(1, thread_name_prefix="newest-step")
        self._steps: dict[str, tuple[Future[int | None], float]] = {}
        """The newest step after the end of each released pod, and when to stop waiting for it."""
        self._running: dict[CallKey, tuple[PodCall, Future[Outcome]]] = {}
        self._done: set[CallKey] = set()
        """Calls that succeeded, until their pod is gone: the watch may still show it as before."""

    def start(self, call: PodCall) -> None:
        """Once for each pod, unless it fails."""
        key = (type(call), call.pod)
        if key not in self._running and key not in self._done:
            self._running[key] = (call, self._threads.submit(self._perform, call))

    def outcomes(self) -> list[Outcome]:
        """Calls that have returned since they were last asked for."""
        returned = {
            key: one
            for key, one in self._running.items()
            if one[1].done() and not self._waits_for_step(key[1])
        }
        found = []
        for key, (call, future) in returned.items():
            del self._running[key]
            error = future.exception()
            if error is None:
                self._done.add(key)
            found.append(
                self._with_step(future.result()) if error is None else Outcome(call, error)
            )
        return found

    def _waits_for_step(self, pod: str) -> bool:
        reading = self._steps.get(pod)
        return (
            reading is not None and not reading[0].done() and self._clock.monotonic() < reading[1]
        )

    def _with_step(self, outcome: Outcome) -> Outcome:
        """Without one if the store did not answer in time."""
        if outcome.call.pod not in self._steps:
            return outcome
        reading, _ = self._steps.pop(outcome.call.pod)
        reading.cancel()  # if it has not begun, it is of no use any more
        is_read = reading.done() and not reading.cancelled() and reading.exception() is None
        return replace(outcome, step=reading.result() if is_read else None)

    def forget(self, known: Set[str]) -> None:
        """Forget pods that are gone."""
        self._done = {key for key in self._done if key[1] in known}

    def wait(self) -> None:
        """Until no call is running, nor a read of the store that is still waited for."""
        wait([future for _, future in self._running.values()])
        wait([reading for reading, _ in self._steps.values()], STEP_SECONDS)

    def _perform(self, call: PodCall) -> Outcome:
        match call:
            case PlacePod():
                not_labelled = self._spot_label if call.is_off_spot else None
                self._kube.lift_gate(call.pod, call.num_affinity_terms, not_labelled)
            case ReplacePod(marking=marking) if marking is not None:
                self._kube.mark_suspect(call.pod, marking.job_uid, marking.until)
            case TakeBackPod(marker=marker) if marker is not None and self._has_ended(marker):
                return Outcome(call, is_back=True)
            case ReplacePod() | TakeBackPod():
                # The Job waits for its own finalizer before it creates another pod, and the API
                # server waits for a kubelet that will not answer.
                self._kube.release_pod(call.pod)
                self._kube.delete_pod(call.pod, grace_seconds=0)
            case ReleasePod():
                self._kube.release_pod(call.pod)
                if call.how is not None:
                    until = self._clock.monotonic() + STEP_SECONDS
                    self._steps[call.pod] = self._store.submit(self._newest_step), until
            case RemovePod() | RemoveMarker():
                self._kube.delete_pod(call.pod, grace_seconds=0)
        return Outcome(call)

    def _has_ended(self, marker: str) -> bool:
        """As only its machine can say: a lost one lets a pod run forever. The keeper may list pods,
        and not get them."""
        found = self._kube.first_pods({SUSPECT: "true"}, 1, {"metadata.name": marker})
        return any(pod_facts(pod).has_ended for pod in found)
